"""Packing against an optimal solver (HiGHS, through scipy) on 200 small instances."""

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from dataloader_balancers import LlmCost
from dataloader_balancers.pack import pack

CAPACITY = 4096
COST = LlmCost(linear=1.0, quadratic=1 / CAPACITY)  # a document as long as a sequence: twice a short token

_DRAWS = {
    "texts": lambda rng, n: rng.lognormal(0, 1, n),
    "alike": lambda rng, n: rng.uniform(1, 2, n),
    "few long": lambda rng, n: np.where(rng.random(n) < 0.2, 6, rng.uniform(0.2, 1, n)),
    "any": lambda rng, n: rng.uniform(0.05, 1, n),
}


def instance(draw, seed):
    """Lengths that fill 2 or 3 sequences to 80 to 110 %."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 4))
    drawn = draw(rng, int(rng.integers(3 * count, 4 * count + 1)))
    lengths = drawn / drawn.sum() * rng.uniform(0.8, 1.1) * count * CAPACITY
    return np.clip(lengths, 1, CAPACITY).astype(np.int64), count


def solved(objective, constraints, lowest, highest, integrality):
    result = milp(
        objective,
        constraints=constraints,
        bounds=Bounds(lowest, highest),
        integrality=integrality,
        options={"mip_rel_gap": 2e-3},
    )
    assert result.success, result.message
    return result.mip_dual_bound


def room(lengths, count):
    """Piece i in sequence s (binary, piece by piece): in one at most, and no sequence over its capacity."""
    pieces = len(lengths)
    highest = np.ones((pieces, count))
    for piece in range(min(pieces, count)):  # sequences are alike: piece i needs none beyond the i-th
        highest[piece, piece + 1 :] = 0
    one = LinearConstraint(np.kron(np.eye(pieces), np.ones(count)), -np.inf, 1)
    held = LinearConstraint(np.kron(lengths, np.eye(count)), -np.inf, CAPACITY)
    return [one, held], highest.reshape(-1)


def most_tokens(lengths, count):
    """A proved upper bound on the tokens that can be placed."""
    constraints, highest = room(lengths, count)
    return -solved(-np.repeat(lengths, count).astype(float), constraints, 0, highest, np.ones_like(highest))


def least_cost(lengths, costs, count, tokens):
    """A proved lower bound on the dearest sequence of a packing of at least `tokens`."""
    constraints, highest = room(lengths, count)
    wide = [
        LinearConstraint(np.hstack([rule.A, np.zeros((len(rule.A), 1))]), rule.lb, rule.ub)
        for rule in constraints
    ]
    load = np.hstack([np.kron(costs / costs.max(), np.eye(count)), -np.ones((count, 1))])
    wide.append(LinearConstraint(load, -np.inf, 0))
    wide.append(LinearConstraint(np.append(np.repeat(lengths, count), 0.0), tokens, np.inf))
    objective = np.append(np.zeros_like(highest), 1.0)
    integrality = np.append(np.ones_like(highest), 0)
    return costs.max() * solved(objective, wide, 0, np.append(highest, np.inf), integrality)


@pytest.mark.parametrize("draw", _DRAWS.values(), ids=_DRAWS)
def test_within_two_percent_of_the_optimum(draw):
    for seed in range(50):
        lengths, count = instance(draw, seed)
        costs = COST.of_documents(lengths)
        result = pack("balanced", lengths, count, CAPACITY, costs=costs)
        placed = result >= 0
        tokens = int(lengths[placed].sum())
        most = most_tokens(lengths, count)
        assert 0.98 * most <= tokens <= most * (1 + 1e-9), f"seed {seed}: {lengths}"
        dearest = np.bincount(result[placed], costs[placed]).max()
        least = least_cost(lengths, costs, count, tokens)
        assert least * (1 - 1e-9) <= dearest <= 1.02 * least, f"seed {seed}: {lengths}"
