"""One placement for two phases at once."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers.assign.items import checked, descending


def two_phase_lpt(
    llm_costs: ArrayLike, encoder_costs: ArrayLike, num_ranks: int, per_rank: int | None = None
) -> NDArray[np.int32]:
    """One placement for two phases that run one after the other, each as long as its dearest rank: the item
    that weighs most in either goes to the rank whose worse phase stays lowest.

    Both are float64 (n,), each in a unit of its own: loads are compared as shares of the phase's mean. A
    phase without work is ignored. Result and `per_rank` as in BALANCERS. Heuristic; n times R.
    """
    phases = [checked(costs, num_ranks, per_rank) for costs in (llm_costs, encoder_costs)]
    if len(phases[0]) != len(phases[1]):
        raise ValueError(f"{len(phases[0])} LLM costs for {len(phases[1])} encoder costs; each item has both")
    limit = len(phases[0]) if per_rank is None else per_rank
    means = [math.fsum(values) / num_ranks for values in phases]
    shares = np.stack(
        [values / mean if mean > 0 else values for values, mean in zip(phases, means, strict=True)]
    )  # (phases, n)
    load = np.zeros((2, num_ranks))
    count = np.zeros(num_ranks, np.int64)
    result = np.empty(shares.shape[1], np.int32)
    for item in descending(shares.max(axis=0)).tolist():
        after = load + shares[:, item, None]  # (phases, ranks)
        # The worse phase decides; then the sum of both, then the number of items.
        score = after.max(axis=0) + 1e-3 * after.sum(axis=0) + 1e-9 * count
        rank = int(np.argmin(np.where(count < limit, score, np.inf)))
        load[:, rank] += shares[:, item]
        count[rank] += 1
        result[item] = rank
    return result
