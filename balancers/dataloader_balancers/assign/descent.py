"""Local search: steps that lower the dearest rank of one phase and raise that of no other.

A step moves an item, exchanges two, or, of two ranks with few items, divides them anew in the best of all
ways. It is a descent: it ends where no step between the dearest rank and those it looks at helps. No bound of
its own; it is never worse than what it began with. On small instances the result is within 2 % of the
optimum, which tests hold it to against a solver.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dataloader_balancers.assign.items import smallest
from dataloader_balancers.assign.ranks import Floats, Ints, Task

NEAR = 1e-4  # share of the floor that no step is worth
STEPS = 400
BUDGET = 8_000_000  # pairs looked at in all, some tenths of a second: on hundreds of ranks a step is dear
_PARTNERS = 16  # cheapest ranks that are asked first ...
_PAIRS = 100_000  # ... and then so many as make this number of pairs of items
_DIVIDED = 10  # items of two ranks, of which all divisions are tried
_ITEMS = 64  # of a rank that are tried, spread over its items
_ROUNDING = 1e-12
_LESS = 1e-9  # relative: no step for less, so that rounding can't make it go round


def descend(task: Task, rank: Ints, steps: int = STEPS, budget: float = BUDGET) -> Ints:
    """(i,): ranks after at most `steps` tries from `rank` (i,), which keeps the caps; none begins when
    `budget` pairs of items have been looked at. What is at -1 stays.
    """
    search = _Search(task, rank)
    stuck = phase = 0
    for _ in range(steps):
        if search.looked_at > budget:
            break
        goal = task.floors[phase] * (1 + NEAR)
        if search.load[phase].max() > goal and search.improve(phase):
            stuck = 0
            continue
        stuck, phase = stuck + 1, (phase + 1) % len(task.floors)
        if stuck == len(task.floors):
            break
    return search.rank


class _Search:
    """A placement under change, with the items of each rank at hand."""

    def __init__(self, task: Task, rank: Ints) -> None:
        self.task, self.rank = task, rank.copy()
        self.load, self.used = task.loads(rank), task.used(rank)
        self._order = np.argsort(rank, kind="stable")
        self._bounds = np.searchsorted(rank[self._order], np.arange(task.num_ranks + 1))
        self._changed: dict[int, Ints] = {}
        self.looked_at = 0  # pairs of items

    def items_of(self, rank: int) -> Ints:
        """Ascending."""
        found = self._changed.get(rank)
        return self._order[self._bounds[rank] : self._bounds[rank + 1]] if found is None else found

    def some_of(self, rank: int) -> Ints:
        """At most `_ITEMS` of them, dear and cheap."""
        items = self.items_of(rank)
        if len(items) <= _ITEMS:
            return items
        return items[np.arange(_ITEMS) * len(items) // _ITEMS]

    def improve(self, phase: int) -> bool:
        """One step that makes the dearest rank of `phase` cheaper; False: none was found."""
        dearest = int(np.argmax(self.load[phase]))
        mine = self.some_of(dearest)
        a_rank = max(len(mine) * min(_ITEMS, 1 + len(self.rank) // self.task.num_ranks), 1)
        looked = 0
        for count in (_PARTNERS, max(_PAIRS // a_rank, _PARTNERS)):
            cheap = smallest(self.load[phase], min(count, self.task.num_ranks))[looked:]
            looked = count
            partners = cheap[cheap != dearest]
            if len(partners) and len(mine) and self._step(phase, dearest, mine, partners):
                return True
        cheap = smallest(self.load[phase], min(_PARTNERS, self.task.num_ranks))
        return any(self._divide(phase, dearest, rank) for rank in cheap[cheap != dearest].tolist())

    def _step(self, phase: int, dearest: int, mine: Ints, partners: Ints) -> bool:
        """The best exchange of an item of `mine` for one of `partners`, or for nothing, if it helps."""
        task, load = self.task, self.load
        lists = [self.some_of(rank) for rank in partners.tolist()]
        theirs = np.concatenate([*lists, np.full(len(partners), -1)])
        self.looked_at += len(mine) * len(theirs)
        owner = np.concatenate([np.repeat(partners, [len(items) for items in lists]), partners])
        given = task.costs[:, mine, None] - np.where(theirs < 0, 0.0, task.costs[:, theirs])[:, None, :]
        held = task.weights[:, mine, None] - np.where(theirs < 0, 0.0, task.weights[:, theirs])[:, None, :]
        less = load[:, dearest, None, None] - given * task.slow[:, dearest, None, None]  # (p, mine, theirs)
        more = load[:, None, owner] + given * task.slow[:, None, owner]
        room = self.used[:, None, owner] + held <= task.limits[:, None, owner]
        room &= self.used[:, dearest, None, None] - held <= task.limits[:, dearest, None, None]
        time = self._time(phase, np.maximum(less, more), room)
        best = int(np.argmin(time))
        if time.flat[best] >= load[phase, dearest] * (1 - _LESS):
            return False
        one, two = divmod(best, len(theirs))
        self._exchange(int(mine[one]), int(theirs[two]), dearest, int(owner[two]))
        return True

    def _divide(self, phase: int, dearest: int, partner: int) -> bool:
        """The items of both ranks in the best of all 2^k ways, if that helps."""
        task = self.task
        items = np.sort(np.append(self.items_of(dearest), self.items_of(partner)))
        if len(items) > _DIVIDED:
            return False
        mine, held = _subset_sums(task.costs[:, items]), _subset_sums(task.weights[:, items])
        less = mine * task.slow[:, dearest, None]  # (p, 2^k); the last subset is all
        more = mine[:, ::-1] * task.slow[:, partner, None]
        room = held <= task.limits[:, dearest, None]
        room &= held[:, ::-1] <= task.limits[:, partner, None]
        time = self._time(phase, np.maximum(less, more), room)
        best = int(np.argmin(time))
        if time[best] >= self.load[phase, dearest] * (1 - _LESS):
            return False
        taken = (best >> np.arange(len(items))) & 1 == 1
        self._give(dearest, items[taken])
        self._give(partner, items[~taken])
        return True

    def _time(self, phase: int, after: Floats, room: NDArray[np.bool_]) -> Floats:
        """The time of `phase` in `after` (p, ...); inf without `room` (c, ...), or where another phase would
        have a dearer rank than now, above its floor.
        """
        allowed = np.all(room, axis=0)
        for other in range(len(after)):
            if other != phase:
                most = max(self.load[other].max(), self.task.floors[other])
                allowed &= after[other] <= most * (1 + _ROUNDING)
        return np.where(allowed, after[phase], np.inf)

    def _exchange(self, mine: int, theirs: int, dearest: int, partner: int) -> None:
        """`mine` to `partner`, and `theirs` (-1: nothing) to `dearest`."""
        left = np.setdiff1d(self.items_of(dearest), [mine], assume_unique=True)
        grown = np.append(np.setdiff1d(self.items_of(partner), [theirs], assume_unique=True), mine)
        self._give(dearest, left if theirs < 0 else np.append(left, theirs))
        self._give(partner, grown)

    def _give(self, rank: int, items: Ints) -> None:
        """All that `rank` has from now on. Summed anew, so that rounding does not add up."""
        items = np.sort(items)
        self.rank[items] = rank
        self._changed[rank] = items
        self.load[:, rank] = (
            self.task.costs[:, items].cumsum(axis=1)[:, -1:].sum(axis=1) * self.task.slow[:, rank]
        )
        self.used[:, rank] = self.task.weights[:, items].cumsum(axis=1)[:, -1:].sum(axis=1)


def _subset_sums(values: Floats) -> Floats:
    """(p, 2^k) of (p, k): column b is the sum over the items whose bit is set in b."""
    sums = np.zeros((len(values), 1))
    for column in values.T:
        sums = np.concatenate([sums, sums + column[:, None]], axis=1)
    return sums
