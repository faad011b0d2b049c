"""Longest processing time first, one by one or in rounds, mended by swaps where counts are equal."""

from __future__ import annotations

import heapq
import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers.assign.items import checked, descending, item_charge, unsorted

# Rounds on arrays beat a heap in Python where there are as many items and ranks as this.
_ROUNDS_FROM_ITEMS, _ROUNDS_FROM_RANKS = 20_000, 1024
_SWAP_UP_TO = 20_000  # items; with more, the greedy rule alone is near enough
_MAX_SWAPS = 200
_PARTNERS = 16  # cheapest ranks that the dearest tries to swap with
_NEAR = 1e-4  # share of the floor that no swap is worth


def lpt(costs: ArrayLike, num_ranks: int, per_rank: int | None = None) -> NDArray[np.int32]:
    """Longest processing time first: the dearest item to the cheapest rank (Graham 1969, SIAM J. Appl. Math.
    17). Of equally cheap ranks the one with fewer items, then the first.

    Without `per_rank` at most 4/3 - 1/(3R) times the best possible. With it the same rule among ranks that
    have a place left, then, up to 20,000 items, swaps between the dearest and the cheapest while they help
    (heuristic). From 20,000 items on 1,024 ranks, the R/8 dearest items go to the R/8 cheapest ranks at a
    time: without `per_rank` at most 8/7 of the mean load plus the dearest item, in practice as good as one by
    one.
    """
    values = checked(costs, num_ranks, per_rank)
    limit = len(values) if per_rank is None else per_rank
    order = descending(values)
    values = values[order]
    large = len(values) >= _ROUNDS_FROM_ITEMS and num_ranks >= _ROUNDS_FROM_RANKS
    ranks = (_lpt_rounds if large else _lpt_heap)(values, num_ranks, limit)
    if per_rank is not None and len(values) <= _SWAP_UP_TO:
        _swap(values, ranks, num_ranks)
    return unsorted(ranks, order)


def _lpt_heap(values: NDArray[np.float64], num_ranks: int, limit: int) -> NDArray[np.int32]:
    """Ranks of `values`, which descend."""
    heap = [(0.0, rank) for rank in range(num_ranks)]
    count = [0] * num_ranks
    result = []
    for cost in (values + item_charge(values)).tolist():
        load, rank = heap[0]
        result.append(rank)
        count[rank] += 1
        if count[rank] < limit:
            heapq.heapreplace(heap, (load + cost, rank))
        else:
            heapq.heappop(heap)
    return np.array(result, np.int32)


def _lpt_rounds(values: NDArray[np.float64], num_ranks: int, limit: int) -> NDArray[np.int32]:
    """The same, R/8 at a time."""
    load = np.zeros(num_ranks)
    count = np.zeros(num_ranks, np.int64)
    result = np.empty(len(values), np.int32)
    charge = item_charge(values)
    start = 0
    while start < len(values):
        taking = count < limit
        size = min(num_ranks // 8, len(values) - start, int(np.count_nonzero(taking)))
        cheapest = _smallest(np.where(taking, load, np.inf), size)
        chunk = slice(start, start + size)
        result[chunk] = cheapest
        load[cheapest] += values[chunk] + charge
        count[cheapest] += 1
        start += size
    return result


def _smallest(values: NDArray[np.float64], size: int) -> NDArray[np.int64]:
    """Indices of the `size` smallest, ascending, ties by index.

    `argpartition` alone picks other ones among ties on processors with other vector instructions.
    """
    border = np.partition(values, size - 1)[size - 1]
    found = np.flatnonzero(values <= border)
    if len(found) > size:
        tied = np.flatnonzero(values[found] == border)
        found = np.delete(found, tied[size - len(found) :])
    return found[np.argsort(values[found], kind="stable")]


def _swap(values: NDArray[np.float64], rank: NDArray[np.int32], num_ranks: int) -> None:
    """In place: exchange items of the dearest rank and a cheap one while the dearer of the two falls."""
    load = np.bincount(rank, values, num_ranks)
    enough = max(math.fsum(values) / num_ranks, float(values.max(initial=0.0))) * (1 + _NEAR)
    for _ in range(_MAX_SWAPS):
        worst = int(np.argmax(load))
        if load[worst] <= enough:
            return
        mine = np.flatnonzero(rank == worst)
        best = (float(load[worst]) * (1 - 1e-9), -1, -1)
        for other in np.argsort(load, kind="stable")[:_PARTNERS].tolist():
            theirs = np.flatnonzero(rank == other)
            if other != worst and len(theirs):
                best = min(best, _exchange(values, mine, theirs, float(load[worst]), float(load[other])))
        _, one, two = best
        if one < 0:
            return
        moved = values[one] - values[two]
        load[worst] -= moved
        load[rank[two]] += moved
        rank[one], rank[two] = rank[two], rank[one]


def _exchange(
    values: NDArray[np.float64],
    mine: NDArray[np.int64],
    theirs: NDArray[np.int64],
    my_load: float,
    their_load: float,
) -> tuple[float, int, int]:
    """(dearer of the two loads afterwards, item of mine, item of theirs) of the best exchange: the pair whose
    difference is nearest to half of that of the loads.
    """
    theirs = theirs[np.argsort(values[theirs], kind="stable")]
    wanted = values[mine] - (my_load - their_load) / 2
    above = np.minimum(np.searchsorted(values[theirs], wanted), len(theirs) - 1)
    below = np.maximum(above - 1, 0)
    best = (math.inf, -1, -1)
    for partner in (theirs[below], theirs[above]):
        moved = values[mine] - values[partner]
        after = np.maximum(my_load - moved, their_load + moved)
        at = int(np.argmin(after))
        best = min(best, (float(after[at]), int(mine[at]), int(partner[at])))
    return best
