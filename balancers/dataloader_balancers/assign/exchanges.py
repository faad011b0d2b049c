"""Local search for thousands of ranks: many exchanges at once, of arrays, in place of one by one.

A round takes a phase, the ranks that are dearest in it, and for each of them a few of the cheapest that no
other has; of all exchanges of an item between the two the best is made, on all of them together. What counts
is by how much a rank is above the floor, as a share of what the dearest rank of that phase is above it, in
the worst phase: so no phase's dearest rank is ever made dearer, and all of them fall together. A rank has
two places with nothing in them: an exchange for nothing is a move, and all caps are kept alike.

A round costs what it looks at, and the budget is in proportion to the items: near n log n with the sorts.
No bound of its own; never worse than what it began with.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dataloader_balancers.assign.ranks import Floats, Ints, Task

_SPARE = 2  # places with nothing
_PLACES = 6  # of a rank that are looked at in a round, others in the next
_LOOKS, _LOOKS_PER_ITEM = (
    200_000,
    12,
)  # pairs of items in two phases, or of a phase and a cap; some 20 ns each
_GIVERS = 4  # at most a quarter of the ranks give at once ...
_PAIRS = 256  # ... and at least so many pairs of ranks are looked at in a round, if there are as many
_ABOVE = 0.7  # of what the dearest is above its floor: who gives
_TRIES = 4  # rounds without any exchange, each with other partners, before a phase is left as it is
_NEAR = 1e-4  # share of the floor that no exchange is worth
_BLOCK = 256  # pairs of ranks whose exchanges fit a processor's cache
_LESS = 1e-6  # of the same share as `_ABOVE`: no exchange for less


def exchange_many(task: Task, rank: Ints) -> Ints:
    """(i,): better ranks than `rank` (i,), which keeps the caps. What is at -1 stays."""
    search = _Search(task, rank)
    phase = 0
    while search.looked_at < _LOOKS + _LOOKS_PER_ITEM * task.num_items:
        open_ = np.flatnonzero(search.load.max(axis=1) > search.goal)
        if not len(open_):
            break
        phase = int(open_[np.searchsorted(open_, phase + 1) % len(open_)])  # in turn
        search.improve(phase)
    return search.ranks(rank)


class _Search:
    """A placement under change: what stands on each of the places, of which a rank has neighbouring ones."""

    def __init__(self, task: Task, rank: Ints) -> None:
        self.task, nothing = task, task.num_items
        self.costs = np.append(task.costs, np.zeros((len(task.costs), 1)), axis=1)
        # Caps that all items together keep need no look.
        total = task.weights.cumsum(axis=1)[:, -1:] if nothing else np.zeros((len(task.weights), 1))
        bind = np.flatnonzero((task.limits < total).any(axis=1))
        self.weights = np.append(task.weights[bind], np.zeros((len(bind), 1)), axis=1)
        self.limits = task.limits[bind]
        self.whole = bool(np.all(self.weights == np.floor(self.weights)))
        self.load, self.used = task.loads(rank), task.used(rank)[bind]
        self.goal = task.floors * (1 + _NEAR)
        self.fails = np.zeros(len(task.costs), np.int64)
        self.rounds = self.looked_at = 0
        count = np.bincount(rank[rank >= 0], minlength=task.num_ranks)
        self.width = count + _SPARE
        self.begin = np.cumsum(self.width) - self.width
        self.item = np.full(int(self.width.sum()), nothing)
        self.owner = np.repeat(np.arange(task.num_ranks), self.width)
        placed = np.argsort(rank, kind="stable")[np.count_nonzero(rank < 0) :]
        self.item[np.arange(len(placed)) + _SPARE * rank[placed]] = placed

    def ranks(self, before: Ints) -> Ints:
        """(i,): where each item is now."""
        rank = before.copy()
        held = self.item < self.task.num_items
        rank[self.item[held]] = self.owner[held]
        return rank

    def improve(self, phase: int) -> None:
        """One round for `phase`. Where that fails several times, its dearest rank becomes its goal."""
        above = np.maximum(self.load.max(axis=1) - self.goal, 0.0)
        unit = np.where(above > 0, above, 1e-9 * self.task.scale)
        order = np.argsort(self.load[phase], kind="stable")
        dear = self.load[phase, order] > self.goal[phase] + _ABOVE * above[phase]
        ranks = self.task.num_ranks
        count = min(max(ranks // _GIVERS, 1), int(np.count_nonzero(dear)), ranks - 1)
        made = False
        if count:
            each = max(1, min(max(_PAIRS, ranks // _GIVERS) // count, (ranks - count) // count))
            first = int(self.fails[phase]) * count * each % (ranks - count)
            cheap = np.roll(order[: ranks - count], -first)[: count * each]
            givers = order[::-1][:count]
            made = self._exchange(givers, cheap.reshape(each, -1).T, unit)
        self.fails[phase] = 0 if made else self.fails[phase] + 1
        if self.fails[phase] == _TRIES or count == 0:
            self.goal[phase] = max(self.goal[phase], self.load[phase].max())
            self.fails[phase] = 0
        self.rounds += 1

    def _exchange(self, givers: Ints, partners: Ints, unit: Floats) -> bool:
        """The best exchange of each of `givers` (k,) with one of its `partners` (k, m), all different ranks,
        where it helps; whether any did.
        """
        one, two = np.repeat(givers, partners.shape[1]), partners.ravel()
        mine, theirs = self._places(one), self._places(two)
        load = (self.load - self.goal[:, None]) / unit[:, None]
        pace = self.task.slow / unit[:, None]
        found = [
            self._best(one[part], two[part], self.item[mine[part]], self.item[theirs[part]], load, pace)
            for part in (slice(start, start + _BLOCK) for start in range(0, len(one), _BLOCK))
        ]
        self.looked_at += mine.shape[1] * theirs.size * (len(self.costs) + len(self.weights)) // 2
        after = np.concatenate([value for value, _ in found]).reshape(partners.shape)
        pair = after.argmin(axis=1) + np.arange(len(givers)) * partners.shape[1]
        now = load.take(givers, axis=1).max(axis=0)
        pair = pair[after.min(axis=1) < now - _LESS * np.abs(now)]
        x, y = np.divmod(np.concatenate([at for _, at in found])[pair], theirs.shape[1])
        self._swap(one[pair], two[pair], mine[pair, x], theirs[pair, y])
        return len(pair) > 0

    def _places(self, ranks: Ints) -> Ints:
        """(k, m): places of `ranks` (k,) to look at: all, or some, spread, and others in each round."""
        width = self.width[ranks][:, None]
        column = np.arange(min(int(width.max()), _PLACES))
        spread = (column * width // len(column) + self.rounds) % width
        return self.begin[ranks][:, None] + np.where(width <= len(column), column % width, spread)

    def _best(
        self, one: Ints, two: Ints, mine: Ints, theirs: Ints, load: Floats, pace: Floats
    ) -> tuple[Floats, NDArray[np.intp]]:
        """If `one` (k,) gave one of the items `mine` (k, m) to `two` (k,) for one of `theirs` (k, m'), how
        far the worse of both would at best be above its goal in the worst phase, (k,), inf where caps
        forbid all; and by which of the m m' exchanges. `load` (p, r) is how far ranks are, for which a unit
        of work counts `pace` (p, r).
        """
        worst = np.full((len(one), mine.shape[1], theirs.shape[1]), -np.inf)
        for costs, above, slow in zip(self.costs, load, pace, strict=True):
            given, taken = costs[mine], costs[theirs]
            for rank, sign in ((one, -1.0), (two, 1.0)):
                scale = sign * slow[rank][:, None]
                after = (above[rank][:, None] + given * scale)[:, :, None] - (taken * scale)[:, None, :]
                np.maximum(worst, after, out=worst)
        for weights, used, limit in zip(self.weights, self.used, self.limits, strict=True):
            held = weights[mine][:, :, None] - weights[theirs][:, None, :]
            breach: NDArray[np.bool_] = held > (limit[two] - used[two])[:, None, None]
            breach |= held < (used[one] - limit[one])[:, None, None]
            worst[breach] = np.inf
        flat = worst.reshape(len(one), -1)
        at = flat.argmin(axis=1)
        return flat[np.arange(len(one)), at], at

    def _swap(self, one: Ints, two: Ints, mine: Ints, theirs: Ints) -> None:
        """What is on the places `mine` (k,) of the ranks `one` (k,) and `theirs` of `two`; no rank twice."""
        given, taken = self.item[mine], self.item[theirs]
        self.item[mine], self.item[theirs] = taken, given
        cost = self.costs[:, given] - self.costs[:, taken]
        self.load[:, one] -= cost * self.task.slow[:, one]
        self.load[:, two] += cost * self.task.slow[:, two]
        if self.whole:
            held = self.weights[:, given] - self.weights[:, taken]
            self.used[:, one] -= held
            self.used[:, two] += held
        else:  # rounding must not add up
            for used, weights in zip(self.used, self.weights, strict=True):
                used[:] = np.bincount(self.owner, weights[self.item], self.task.num_ranks)
