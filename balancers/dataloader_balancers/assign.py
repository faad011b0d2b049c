"""Work onto ranks: which of `num_ranks` gets each item, so that the dearest rank is as cheap as can be.

An item is whatever can't be divided among ranks: a packed sequence, a microbatch, a picture. Knows nothing
of tokens: a cap on tokens or patches is kept by the packer, a sequence at a time, and `per_rank` sequences
of it are then a cap on the rank.

Every balancer has one signature and one contract (`dataloader_svc.testing.balancers.BalancerContract`):

    assign(costs, num_ranks, per_rank=None) -> int32 (n,)

    costs     float (n,), predicted time of each item, 0 to 1e300
    per_rank  most items of a rank; when n = per_rank * num_ranks each gets exactly as many

No rank stays empty while there are at least as many items as ranks. Ties go to the lower index, and no sum
depends on how a processor adds: equal arguments give an equal result on any machine. All but those in ORDERED
give ranks the same loads whatever the order of the items. Bounds and gaps are in `bounds.py`.
"""

from __future__ import annotations

import heapq
import math
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Rounds on arrays beat a heap in Python where there are as many items and ranks as this.
_ROUNDS_FROM_ITEMS, _ROUNDS_FROM_RANKS = 20_000, 1024
_SWAP_UP_TO = 20_000  # items; with more, the greedy rule alone is near enough
_MAX_SWAPS = 200
_PARTNERS = 16  # cheapest ranks that the dearest tries to swap with
_DEAREST = 1e300  # so that no sum overflows
_NEAR = 1e-4  # share of the floor that no swap is worth


class Balancer(Protocol):
    """The signature of every value of BALANCERS; the module's docstring says what it promises."""

    def __call__(
        self, costs: ArrayLike, num_ranks: int, per_rank: int | None = None
    ) -> NDArray[np.int32]: ...


def assign(name: str, costs: ArrayLike, num_ranks: int, *, per_rank: int | None = None) -> NDArray[np.int32]:
    """`BALANCERS[name]`, or a ValueError that lists the names."""
    if name not in BALANCERS:
        raise ValueError(f"unknown balancer {name!r}; known: {', '.join(BALANCERS)}")
    return BALANCERS[name](costs, num_ranks, per_rank)


def arrival(costs: ArrayLike, num_ranks: int, per_rank: int | None = None) -> NDArray[np.int32]:
    """Item i on rank i mod R: what a DataLoader with a DistributedSampler does. No guarantee: the measure."""
    values = _checked(costs, num_ranks, per_rank)
    return (np.arange(len(values)) % num_ranks).astype(np.int32)


def snake(costs: ArrayLike, num_ranks: int, per_rank: int | None = None) -> NDArray[np.int32]:
    """Sorted items dealt 0, 1, ... R-1, R-1, ... 1, 0. Counts differ by at most one.

    Loads differ by at most the dearest item: the cheapest to compute, and the loosest.
    """
    values = _checked(costs, num_ranks, per_rank)
    turn = np.arange(len(values))
    rank = turn % num_ranks
    back = (turn // num_ranks) % 2 == 1
    rank[back] = num_ranks - 1 - rank[back]
    return _unsorted(rank, _descending(values))


def lpt(costs: ArrayLike, num_ranks: int, per_rank: int | None = None) -> NDArray[np.int32]:
    """Longest processing time first: the dearest item to the cheapest rank (Graham 1969, SIAM J. Appl. Math.
    17). Of equally cheap ranks the one with fewer items, then the first.

    Without `per_rank` at most 4/3 - 1/(3R) times the best possible. With it the same rule among ranks that
    have a place left, then, up to 20,000 items, swaps between the dearest and the cheapest while they help
    (heuristic). From 20,000 items on 1,024 ranks, the R/8 dearest items go to the R/8 cheapest ranks at a
    time: without `per_rank` at most 8/7 of the mean load plus the dearest item, in practice as good as one by
    one.
    """
    values = _checked(costs, num_ranks, per_rank)
    limit = len(values) if per_rank is None else per_rank
    order = _descending(values)
    values = values[order]
    large = len(values) >= _ROUNDS_FROM_ITEMS and num_ranks >= _ROUNDS_FROM_RANKS
    ranks = (_lpt_rounds if large else _lpt_heap)(values, num_ranks, limit)
    if per_rank is not None and len(values) <= _SWAP_UP_TO:
        _swap(values, ranks, num_ranks)
    return _unsorted(ranks, order)


def _lpt_heap(values: NDArray[np.float64], num_ranks: int, limit: int) -> NDArray[np.int32]:
    """Ranks of `values`, which descend."""
    heap = [(0.0, rank) for rank in range(num_ranks)]
    count = [0] * num_ranks
    result = []
    for cost in (values + _item_charge(values)).tolist():
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
    charge = _item_charge(values)
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


def karmarkar_karp(costs: ArrayLike, num_ranks: int, per_rank: int | None = None) -> NDArray[np.int32]:
    """Balanced largest differencing (Karmarkar and Karp 1982; for equal counts Yakir 1996, for any number of
    ranks Michiels, Korst, Aarts and van Leeuwen 2003). Counts differ by at most one, even without `per_rank`.

    Groups of R sorted items are joined, the most uneven two at a time, dear shares on cheap ones. Takes
    n log R: for groups of up to some hundred ranks. Heuristic: the nearest to equal where items are many and
    alike; with few and skewed ones `lpt` with `per_rank` is better (Zhang, Mouratidis and Pang, IJCAI 2011).
    """
    values = _checked(costs, num_ranks, per_rank)
    order = _descending(values)
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
    return _unsorted(ranks, order)


def two_phase_lpt(
    llm_costs: ArrayLike, encoder_costs: ArrayLike, num_ranks: int, per_rank: int | None = None
) -> NDArray[np.int32]:
    """One placement for two phases that run one after the other, each as long as its dearest rank: the item
    that weighs most in either goes to the rank whose worse phase stays lowest.

    Both are float64 (n,), each in a unit of its own: loads are compared as shares of the phase's mean. A
    phase without work is ignored. Result and `per_rank` as in BALANCERS. Heuristic; n times R.
    """
    phases = [_checked(costs, num_ranks, per_rank) for costs in (llm_costs, encoder_costs)]
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
    for item in _descending(shares.max(axis=0)).tolist():
        after = load + shares[:, item, None]  # (phases, ranks)
        # The worse phase decides; then the sum of both, then the number of items.
        score = after.max(axis=0) + 1e-3 * after.sum(axis=0) + 1e-9 * count
        rank = int(np.argmin(np.where(count < limit, score, np.inf)))
        load[:, rank] += shares[:, item]
        count[rank] += 1
        result[item] = rank
    return result


def _descending(values: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.argsort(-values, kind="stable")


def _unsorted(ranks: NDArray[np.integer], order: NDArray[np.int64]) -> NDArray[np.int32]:
    """Ranks of the items as they came, from those of the items in `order`."""
    result = np.empty(len(order), np.int32)
    result[order] = ranks
    return result


def _item_charge(values: NDArray[np.float64]) -> float:
    """What an item weighs beyond its cost, so that fewer items break a tie, and free ones are spread too."""
    return float(values.max(initial=0.0)) * 1e-9 or 1.0


def _checked(costs: ArrayLike, num_ranks: int, per_rank: int | None) -> NDArray[np.float64]:
    values = np.asarray(costs, np.float64)
    if values.ndim != 1:
        raise ValueError(f"costs have shape {values.shape}; one dimension is needed")
    if num_ranks < 1:
        raise ValueError(f"num_ranks is {num_ranks}; at least 1")
    wrong = np.flatnonzero(~((values >= 0) & (values <= _DEAREST)))
    if len(wrong):
        first = int(wrong[0])
        raise ValueError(f"item {first} costs {values[first]}; allowed are 0 to {_DEAREST}")
    if per_rank is not None and per_rank * num_ranks < len(values):
        raise ValueError(f"{len(values)} items do not fit {num_ranks} ranks of at most {per_rank}")
    return values


BALANCERS: dict[str, Balancer] = {
    "lpt": lpt,
    "karmarkar_karp": karmarkar_karp,
    "snake": snake,
    "arrival": arrival,
}
ORDERED = frozenset({"arrival"})  # whose loads depend on the order of the items, by design
