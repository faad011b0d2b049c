"""Placement of anything: several phases at once, hard caps, ranks of unlike speed, memory and counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers.assign.descent import BUDGET, NEAR, STEPS, descend
from dataloader_balancers.assign.exchanges import exchange_many
from dataloader_balancers.assign.greedy import best_fit, greedy
from dataloader_balancers.assign.items import checked
from dataloader_balancers.assign.karmarkar_karp import karmarkar_karp
from dataloader_balancers.assign.lpt import lpt
from dataloader_balancers.assign.ranks import Cap, Ints, Ranks, Task, task

_DIFFERENCING_UP_TO = 20_000  # items; and no more than so many ranks
_DIFFERENCING_RANKS = 512
_DEALT_UP_TO, _DEALS = 64, 8  # items for which shuffled starts are cheap and find what the others miss
# Items times ranks. From `_MANY` on exchanges are made in bulk, then one by one within a budget that falls
# from `_SEVERAL` on, beyond which there is one start for several phases; from `_ONLY_MANY` on in bulk alone.
_MANY, _SEVERAL, _ONLY_MANY = 20_000, 200_000, 2_000_000
_FIT_UP_TO = 4_000_000  # items times ranks for which a tight fit is tried


def place(
    costs: ArrayLike, ranks: int | Ranks, caps: Sequence[Cap] = (), *, steps: int = STEPS
) -> NDArray[np.int32]:
    """int32 (n,): the rank of each item, so that the sum over phases of the dearest rank's time is small; -1
    where it waits, because no rank has room for it beside those placed.

    costs  float (n,), or (phases, n) for phases that run one after the other (encoder, language model): ranks
           meet after each. All in one unit of time. The first phase is the one to spare where both can't be.
    ranks  how many, or `Ranks` with speeds and counts
    caps   held without exception
    steps  most tries of the search; 0: the greedy start alone

    Starts: longest processing time first by the worst phase, and by the first phase alone; with one phase and
    like ranks also largest differencing and, up to 64 items, eight shuffled deals; if caps leave something
    out, also best fit. From each a search (`exchanges.py`, `descent.py`), and the best of the results. Beyond
    200,000 pairs of an item and a rank the start is in rounds, and the search shrinks to what keeps the whole
    near n log n. Items go by falling cost, ties by index: an equal problem has an equal result. Heuristic:
    with one phase at most as dear as `lpt`. An impossible problem is a ValueError.
    """
    given = ranks if isinstance(ranks, Ranks) else Ranks(ranks)
    problem = task(costs, given, caps)
    order = problem.ordered()
    result = np.empty(problem.num_items, np.int32)
    result[order] = solve(problem.take(order), steps)
    return result


def local_search(costs: ArrayLike, num_ranks: int, per_rank: int | None = None) -> NDArray[np.int32]:
    """From `lpt`, `karmarkar_karp` and, for few items, shuffled deals: moves and exchanges between the
    dearest rank and others while they help; the best of the results. Never dearer than either of the two.
    Heuristic: within 2 % of the optimum on small instances.
    """
    values = checked(costs, num_ranks, per_rank)
    return place(values, Ranks(num_ranks, per_rank=per_rank))


def solve(problem: Task, steps: int = STEPS) -> Ints:
    """`place` for a task in `ordered()`."""
    best: tuple[tuple[int, float], Ints] | None = None
    for rank in _starts(problem):
        found = _improved(problem, rank, steps)
        if np.any(found < 0):  # an exchange may have made room
            found = greedy(problem, found)
        loads = problem.loads(found)
        score = (int(np.count_nonzero(found < 0)), float(loads.max(axis=1).sum()))
        if best is None or score < best[0]:
            best = score, found
        if score[0] == 0 and np.all(loads.max(axis=1) <= problem.floors * (1 + NEAR)):
            break
    assert best is not None
    return best[1]


def _improved(problem: Task, rank: Ints, steps: int) -> Ints:
    pairs = problem.num_items * problem.num_ranks
    if steps and pairs > _MANY:
        rank = exchange_many(problem, rank)
    if pairs > _ONLY_MANY:
        return rank
    return descend(problem, rank, steps, BUDGET * min(1.0, _SEVERAL / max(pairs, 1)))


def _starts(problem: Task) -> Iterator[Ints]:
    """One after the other, as long as the last was not good enough."""
    items, ranks = problem.num_items, problem.num_ranks
    if _is_plain(problem):
        limit = int(problem.limits[0, 0])
        per_rank = limit if limit < items else None
        yield lpt(problem.costs[0], ranks, per_rank).astype(np.int64)
        if items <= _DIFFERENCING_UP_TO and ranks <= _DIFFERENCING_RANKS:
            yield karmarkar_karp(problem.costs[0], ranks, per_rank).astype(np.int64)
        if items <= _DEALT_UP_TO:
            yield from _deals(items, ranks)
        return
    first = greedy(problem)
    yield first
    if np.any(first < 0) and items * ranks <= _FIT_UP_TO:
        yield best_fit(problem)
    if len(problem.costs) > 1 and items * ranks <= _SEVERAL:
        alone = Task(
            problem.costs[:1],
            problem.slow[:1],
            problem.weights,
            problem.limits,
            problem.means[:1],
            problem.floors[:1],
        )
        order = alone.ordered()
        rank = np.empty(items, np.int64)
        rank[order] = greedy(alone.take(order))
        yield rank


def _deals(items: int, ranks: int) -> Iterator[Ints]:
    """Items dealt in shuffled orders: by multiples of an odd number modulo 2^32, which are equal everywhere,
    as a generator of random numbers need not be.
    """
    for deal in range(1, _DEALS + 1):
        keys = np.arange(1, items + 1, dtype=np.uint64) * np.uint64(2_654_435_761 * (2 * deal + 1)) % 2**32
        rank = np.empty(items, np.int64)
        rank[np.argsort(keys, kind="stable")] = np.arange(items) % ranks
        yield rank


def _is_plain(problem: Task) -> bool:
    """One phase, ranks all alike, no cap but on counts, which all items keep."""
    limit = problem.limits[0]
    alike = bool(np.all(problem.slow == problem.slow[0, 0])) and bool(np.all(limit == limit[0]))
    full = problem.num_items <= limit[0] * problem.num_ranks
    return len(problem.costs) == 1 and len(problem.weights) == 1 and alike and bool(full)
