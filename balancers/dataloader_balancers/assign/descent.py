"""Local search: moves and exchanges that lower the dearest rank of one phase and raise that of no other.

A descent: it ends where neither a move of one item nor an exchange of two between the dearest rank and those
it looks at helps. No bound of its own; it is never worse than what it began with. (For why exchanges pay most
after a greedy start, see Graham, Lawler, Lenstra and Rinnooy Kan 1979; on small instances the result is
within 2 % of the optimum, which tests hold it to against a solver.)
"""

from __future__ import annotations

import numpy as np

from dataloader_balancers.assign.items import smallest
from dataloader_balancers.assign.ranks import Ints, Task

NEAR = 1e-4  # share of the floor that no step is worth
STEPS = 400
_PARTNERS = 16  # cheapest ranks that are asked first ...
_PAIRS = 400_000  # ... and then so many as make this number of pairs of items
_ITEMS = 64  # of a rank that are tried, spread over its items
_ROUNDING = 1e-12
_LESS = 1e-9  # relative: no step for less, so that rounding can't make it go round


def descend(task: Task, rank: Ints, steps: int = STEPS) -> Ints:
    """(i,): ranks after at most `steps` tries from `rank` (i,), which keeps the caps. What is at -1 stays."""
    search = _Search(task, rank)
    stuck = phase = 0
    for _ in range(steps):
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
        return False

    def _step(self, phase: int, dearest: int, mine: Ints, partners: Ints) -> bool:
        """The best exchange of an item of `mine` for one of `partners`, or for nothing, if it helps."""
        task, load = self.task, self.load
        lists = [self.some_of(rank) for rank in partners.tolist()]
        theirs = np.concatenate([*lists, np.full(len(partners), -1)])
        owner = np.concatenate([np.repeat(partners, [len(items) for items in lists]), partners])
        given = task.costs[:, mine, None] - np.where(theirs < 0, 0.0, task.costs[:, theirs])[:, None, :]
        held = task.weights[:, mine, None] - np.where(theirs < 0, 0.0, task.weights[:, theirs])[:, None, :]
        less = load[:, dearest, None, None] - given * task.slow[:, dearest, None, None]  # (p, mine, theirs)
        more = load[:, None, owner] + given * task.slow[:, None, owner]
        allowed = np.all(self.used[:, None, owner] + held <= task.limits[:, None, owner], axis=0)
        allowed &= np.all(
            self.used[:, dearest, None, None] - held <= task.limits[:, dearest, None, None], axis=0
        )
        after = np.maximum(less, more)
        for other in range(len(load)):
            if other != phase:
                allowed &= after[other] <= max(load[other].max(), task.floors[other]) * (1 + _ROUNDING)
        time = np.where(allowed, after[phase], np.inf)
        best = int(np.argmin(time))
        if time.flat[best] >= load[phase, dearest] * (1 - _LESS):
            return False
        one, two = divmod(best, len(theirs))
        self._exchange(int(mine[one]), int(theirs[two]), dearest, int(owner[two]))
        return True

    def _exchange(self, mine: int, theirs: int, dearest: int, partner: int) -> None:
        """`mine` to `partner`, and `theirs` (-1: nothing) to `dearest`."""
        for item, old, new in ((mine, dearest, partner), (theirs, partner, dearest)):
            if item < 0:
                continue
            self.rank[item] = new
            self._changed[old] = np.setdiff1d(self.items_of(old), [item], assume_unique=True)
            self._changed[new] = np.sort(np.append(self.items_of(new), item))
            self.used[:, old] -= self.task.weights[:, item]
            self.used[:, new] += self.task.weights[:, item]
        for rank in (dearest, partner):  # anew, so that rounding does not add up
            items = self.items_of(rank)
            self.load[:, rank] = self.task.costs[:, items].sum(axis=1) * self.task.slow[:, rank]
