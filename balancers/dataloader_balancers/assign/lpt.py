"""Longest processing time first, one by one or in rounds, mended by swaps where counts are equal."""

from __future__ import annotations

import heapq
import math
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers.assign.items import checked, descending, item_charge, unsorted

_T = TypeVar("_T", bound=np.generic)

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
    heap = [(0.0, 0, rank) for rank in range(num_ranks)]
    result = []
    for cost in values.tolist():
        load, count, rank = heap[0]
        result.append(rank)
        if count + 1 < limit:
            heapq.heapreplace(heap, (load + cost, count + 1, rank))
        else:
            heapq.heappop(heap)
    return np.array(result, np.int32)


def _lpt_rounds(values: NDArray[np.float64], num_ranks: int, limit: int) -> NDArray[np.int32]:
    """The same, R/8 at a time. Ranks stay sorted by load: merging a round's back in is cheaper than searching
    all for the cheapest.
    """
    load, rank = np.zeros(num_ranks), np.arange(num_ranks, dtype=np.int32)
    count = np.zeros(num_ranks, np.int64)
    result = np.empty(len(values), np.int32)
    charged = values + item_charge(values)
    start = 0
    while start < len(values):
        size = min(num_ranks // 8, len(values) - start, len(rank))
        chosen, after = rank[:size], load[:size] + charged[start : start + size]
        result[start : start + size] = chosen
        count[chosen] += 1
        stays = count[chosen] < limit
        order = np.argsort(after[stays], kind="stable")
        after, chosen = after[stays][order], chosen[stays][order]
        place = np.searchsorted(load[size:], after, side="right") + np.arange(len(after))
        others = np.ones(len(load) - size + len(after), bool)
        others[place] = False
        load, rank = _merged(load[size:], after, place, others), _merged(rank[size:], chosen, place, others)
        start += size
    return result


def _merged(
    old: NDArray[_T], new: NDArray[_T], place: NDArray[np.int64], others: NDArray[np.bool_]
) -> NDArray[_T]:
    """`new` at `place` and `old` at `others` of one array."""
    result = np.empty(len(others), old.dtype)
    result[place] = new
    result[others] = old
    return result


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
