"""Work onto ranks: which of `num_ranks` gets each item, so that the dearest rank is as cheap as can be.

Every balancer has one signature and one contract: `assign(costs, num_ranks, per_rank=None)` returns int32
(n,). With `per_rank`, no rank gets more than that many items; when n = per_rank * num_ranks each gets exactly
as many. Ties go to the lower index. The lower bound and the gap to it are in `bounds.py`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Balancer = Callable[..., NDArray[np.int32]]

_ROUNDS_FROM = 20_000  # items above which rounds on arrays beat a heap in Python
_MAX_SWAPS = 200


def arrival(costs: ArrayLike, num_ranks: int, per_rank: int | None = None) -> NDArray[np.int32]:
    """Item i on rank i mod R: what a DataLoader with a DistributedSampler does. No guarantee."""
    values = _checked(costs, num_ranks, per_rank)
    return (np.arange(len(values)) % num_ranks).astype(np.int32)


def snake(costs: ArrayLike, num_ranks: int, per_rank: int | None = None) -> NDArray[np.int32]:
    """Sorted items dealt 0, 1, ... R-1, R-1, ... 1, 0. Equal counts. Heuristic: loads differ by less than
    the dearest item.
    """
    values = _checked(costs, num_ranks, per_rank)
    turn = np.arange(len(values))
    rank = turn % num_ranks
    back = (turn // num_ranks) % 2 == 1
    rank[back] = num_ranks - 1 - rank[back]
    result = np.empty(len(values), np.int32)
    result[_descending(values)] = rank
    return result


def lpt(costs: ArrayLike, num_ranks: int, per_rank: int | None = None) -> NDArray[np.int32]:
    """Longest processing time first: the dearest item to the cheapest rank (Graham 1969).

    Without `per_rank` at most 4/3 - 1/(3R) times the best. With it, the same rule among ranks that have a
    place left, then swaps between the dearest and other ranks while they help; heuristic. Above 20,000 items
    the rule is applied to R/8 items at a time, on arrays, at the same quality.
    """
    values = _checked(costs, num_ranks, per_rank)
    limit = len(values) if per_rank is None else per_rank
    if len(values) > _ROUNDS_FROM:
        return _lpt_rounds(values, num_ranks, limit)
    result = _lpt_heap(values, num_ranks, limit)
    return result if per_rank is None else _swap(values, result, num_ranks)


def _lpt_heap(values: NDArray[np.float64], num_ranks: int, limit: int) -> NDArray[np.int32]:
    heap = [(0.0, rank) for rank in range(num_ranks)]
    count = [0] * num_ranks
    result = np.empty(len(values), np.int32)
    order = _descending(values)
    for index, cost in zip(order.tolist(), values[order].tolist(), strict=True):
        load, rank = heapq.heappop(heap)
        result[index] = rank
        count[rank] += 1
        if count[rank] < limit:
            heapq.heappush(heap, (load + cost, rank))
    return result


def _lpt_rounds(values: NDArray[np.float64], num_ranks: int, limit: int) -> NDArray[np.int32]:
    load = np.zeros(num_ranks)
    count = np.zeros(num_ranks, np.int64)
    order = _descending(values)
    result = np.empty(len(values), np.int32)
    size = max(1, num_ranks // 8)
    start = 0
    while start < len(order):
        open_ranks = np.flatnonzero(count < limit)
        size_now = min(size, len(open_ranks), len(order) - start)
        nearest = np.argpartition(load[open_ranks], size_now - 1)[:size_now]
        cheapest = open_ranks[nearest]
        cheapest = cheapest[np.lexsort((cheapest, load[cheapest]))]
        chunk = order[start : start + size_now]
        result[chunk] = cheapest
        load[cheapest] += values[chunk]
        count[cheapest] += 1
        start += size_now
    return result


def _swap(values: NDArray[np.float64], rank: NDArray[np.int32], num_ranks: int) -> NDArray[np.int32]:
    """Exchange an item of the dearest rank for one of another while the dearer of the two gets cheaper."""
    load = np.bincount(rank, values, num_ranks)
    for _ in range(_MAX_SWAPS):
        worst = int(np.argmax(load))
        mine = np.flatnonzero(rank == worst)
        others = np.flatnonzero(rank != worst)
        if not len(mine) or not len(others):
            break
        # (mine, others): what moves away from the dearest rank by exchanging the two.
        delta = values[mine][:, None] - values[others][None, :]
        pair_max = np.maximum(load[worst] - delta, load[rank[others]][None, :] + delta)
        at = np.unravel_index(int(np.argmin(pair_max)), pair_max.shape)
        if pair_max[at] >= load[worst] * (1 - 1e-9):
            break
        one, two = int(mine[at[0]]), int(others[at[1]])
        load[worst] -= delta[at]
        load[rank[two]] += delta[at]
        rank[one], rank[two] = rank[two], rank[one]
    return rank


def karmarkar_karp(costs: ArrayLike, num_ranks: int, per_rank: int | None = None) -> NDArray[np.int32]:
    """Balanced largest differencing (Karmarkar and Karp 1982; Yakir 1996): always equal counts, up to one.

    Groups of R sorted items are joined, the most uneven two at a time, dear shares on cheap ones. n R log n:
    for groups of up to some hundred ranks. Heuristic; better than LPT where counts must be equal.
    """
    values = _checked(costs, num_ranks, per_rank)
    order = _descending(values).tolist()
    order += [-1] * (-len(order) % num_ranks)  # nothings, so that every group has R
    heap: list[tuple[float, int, list[tuple[float, list[int]]]]] = []
    for start in range(0, len(order), num_ranks):
        group = [(float(values[i]) if i >= 0 else 0.0, [i]) for i in order[start : start + num_ranks]]
        heap.append((group[-1][0] - group[0][0], start, group))
    heapq.heapify(heap)
    while len(heap) > 1:
        (_, number, first), (_, _, second) = heapq.heappop(heap), heapq.heappop(heap)
        joined = [(a + b, x + y) for (a, x), (b, y) in zip(first, reversed(second), strict=True)]
        joined.sort(key=lambda share: (-share[0], share[1]))
        heapq.heappush(heap, (joined[-1][0] - joined[0][0], number, joined))
    result = np.empty(len(values), np.int32)
    for rank, (_, items) in enumerate(heap[0][2] if heap else []):
        result[[item for item in items if item >= 0]] = rank
    return result


def two_phase_lpt(
    llm: ArrayLike, encoder: ArrayLike, num_ranks: int, per_rank: int | None = None
) -> NDArray[np.int32]:
    """Both phases at once: the item that weighs most in either to the rank whose worse phase stays lowest.

    `llm` and `encoder` are float64 (n,), each in a unit of its own; loads are compared as shares of the mean.
    Heuristic.
    """
    one, two = _checked(llm, num_ranks, per_rank), _checked(encoder, num_ranks, per_rank)
    limit = len(one) if per_rank is None else per_rank
    scale = [max(values.sum() / num_ranks, 1e-300) for values in (one, two)]
    shares = np.stack([one / scale[0], two / scale[1]])  # (2, n)
    load = np.zeros((2, num_ranks))
    count = np.zeros(num_ranks, np.int64)
    result = np.empty(len(one), np.int32)
    for index in _descending(shares.max(axis=0)).tolist():
        after = load + shares[:, index, None]
        score = np.where(count < limit, after.max(axis=0) + 1e-3 * after.sum(axis=0), np.inf)
        rank = int(np.argmin(score))
        load[:, rank] += shares[:, index]
        count[rank] += 1
        result[index] = rank
    return result


def _descending(values: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.argsort(-values, kind="stable")


def _checked(costs: ArrayLike, num_ranks: int, per_rank: int | None) -> NDArray[np.float64]:
    values = np.asarray(costs, np.float64).reshape(-1)
    if num_ranks < 1:
        raise ValueError(f"num_ranks is {num_ranks}; at least 1")
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(wrong):
        first = int(wrong[0])
        raise ValueError(f"item {first} costs {values[first]}; costs are finite and not negative")
    if per_rank is not None and per_rank * num_ranks < len(values):
        raise ValueError(f"{len(values)} items do not fit {num_ranks} ranks of {per_rank}")
    return values


BALANCERS: dict[str, Balancer] = {
    "lpt": lpt,
    "karmarkar_karp": karmarkar_karp,
    "snake": snake,
    "arrival": arrival,
}
