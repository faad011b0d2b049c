"""Sorted work dealt there and back."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers.assign.items import checked, descending, unsorted


def snake(costs: ArrayLike, num_ranks: int, per_rank: int | None = None) -> NDArray[np.int32]:
    """Sorted items dealt 0, 1, ... R-1, R-1, ... 1, 0. Counts differ by at most one.

    Loads differ by at most the dearest item: the cheapest to compute, and the loosest.
    """
    values = checked(costs, num_ranks, per_rank)
    turn = np.arange(len(values))
    rank = turn % num_ranks
    back = (turn // num_ranks) % 2 == 1
    rank[back] = num_ranks - 1 - rank[back]
    return unsorted(rank, descending(values))
