"""Largest differencing: unlike loads are joined until one set of them is left."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers.assign.items import checked, descending, unsorted


def karmarkar_karp(costs: ArrayLike, num_ranks: int, per_rank: int | None = None) -> NDArray[np.int32]:
    """Balanced largest differencing (Karmarkar and Karp 1982; for equal counts Yakir 1996, for any number of
    ranks Michiels, Korst, Aarts and van Leeuwen 2003). Counts differ by at most one, even without `per_rank`.

    Groups of R sorted items are joined, the most uneven two at a time, dear shares on cheap ones. Takes
    n log R: for groups of up to some hundred ranks. Heuristic: the nearest to equal where items are many and
    alike; with few and skewed ones `lpt` with `per_rank` is better (Zhang, Mouratidis and Pang, IJCAI 2011).
    """
    values = checked(costs, num_ranks, per_rank)
    order = descending(values)
    items = [(cost, [place]) for place, cost in enumerate(values[order].tolist())]
    items += [(0.0, [])] * (-len(items) % num_ranks)  # nothings, so that every group has R
    heap: list[tuple[float, int, list[tuple[float, list[int]]]]] = []
    for start in range(0, len(items), num_ranks):
        group = items[start : start + num_ranks]
        heap.append((group[-1][0] - group[0][0], start, group))  # shares descend: the first key is <= 0
    heapq.heapify(heap)
    for number in range(len(items), len(items) + len(heap) - 1):  # of equals the oldest: short lists first
        (_, _, first), (_, _, second) = heapq.heappop(heap), heapq.heappop(heap)
        joined = [(a + b, x + y) for (a, x), (b, y) in zip(first, reversed(second), strict=True)]
        joined.sort(key=lambda share: (-share[0], share[1]))
        heapq.heappush(heap, (joined[-1][0] - joined[0][0], number, joined))
    ranks = np.empty(len(values), np.int32)
    for rank, (_, places) in enumerate(heap[0][2] if heap else []):
        ranks[places] = rank
    return unsorted(ranks, order)
