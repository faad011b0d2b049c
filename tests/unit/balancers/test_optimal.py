"""Placement against an optimal solver (HiGHS, through scipy) on 200 small instances."""

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from dataloader_balancers import floor, loads
from dataloader_balancers.assign import assign

_DRAWS = {
    "whole numbers": lambda rng, n: rng.integers(1, 100, n).astype(float),
    "skewed": lambda rng, n: rng.lognormal(0, 1, n),
    "very skewed": lambda rng, n: rng.lognormal(0, 1, n) ** 2,
    "alike": lambda rng, n: rng.uniform(1, 2, n),
}


def least(costs, ranks, per_rank):
    """A proved lower bound on the dearest rank, at most 0.5 % below the optimum.

    Variables: item i on rank r (binary, item by item), then the load of the dearest rank.
    """
    items = len(costs)
    one_rank = np.kron(np.eye(items), np.ones(ranks))
    load = np.kron(costs, np.eye(ranks))
    count = np.kron(np.ones(items), np.eye(ranks))
    no, yes = np.zeros((items, 1)), np.ones((ranks, 1))
    constraints = [
        LinearConstraint(np.hstack([one_rank, no]), 1, 1),
        LinearConstraint(np.hstack([load, -yes]), -np.inf, 0),
        LinearConstraint(np.hstack([count, 0 * yes]), 0, per_rank or items),
    ]
    highest = np.ones(items * ranks + 1)
    highest[-1] = np.inf
    for item in range(min(items, ranks)):  # ranks are alike: item i needs no rank beyond the i-th
        highest[item * ranks + item + 1 : (item + 1) * ranks] = 0
    lowest = np.zeros(items * ranks + 1)
    lowest[-1] = floor(costs, ranks).value
    solved = milp(
        np.eye(1, items * ranks + 1, items * ranks)[0],
        constraints=constraints,
        bounds=Bounds(lowest, highest),
        integrality=np.append(np.ones(items * ranks), 0),
        options={"mip_rel_gap": 5e-3},
    )
    assert solved.success, solved.message
    return solved.mip_dual_bound


@pytest.mark.parametrize("draw", _DRAWS.values(), ids=_DRAWS)
@pytest.mark.parametrize("equal_counts", [False, True])
def test_within_two_percent_of_the_optimum(draw, equal_counts):
    over = []
    for seed in range(25):
        rng = np.random.default_rng(seed)
        ranks = int(rng.integers(2, 5))
        costs = draw(rng, int(rng.integers(ranks, 3 * ranks + 1)))
        per_rank = -(-len(costs) // ranks) if equal_counts else None
        held = loads(costs, assign("local_search", costs, ranks, per_rank=per_rank), ranks)
        over.append(held.max() / least(costs, ranks, per_rank))
    assert min(over) >= 1 - 1e-9
    assert max(over) <= 1.02
