"""Longest processing time first for any `Task`: several phases, caps, unlike ranks; one by one or in rounds.

Both leave an item without a rank (-1) where none has room for it beside those placed before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dataloader_balancers.assign.items import smallest
from dataloader_balancers.assign.ranks import Floats, Ints, Task

# One by one costs items times ranks. Beyond so many pairs, rounds of a share of the ranks; sooner where there
# are several phases, since exchanges then win back in less time what rounds lose.
_ONE_BY_ONE, _ONE_BY_ONE_PHASES = 2_000_000, 200_000
_ROUND = 8  # an eighth of the ranks a round ...
_COARSE, _COARSE_FROM = 2, 512  # ... half of them for several phases, or more items for each rank than that
_PASSES = 4  # over what found no room, before it is tried one by one
_TIE_SUM, _TIE_COUNT = 1e-3, 1e-9  # the worst phase decides; then the sum of all; then the number of items


def greedy(task: Task, before: Ints | None = None) -> Ints:
    """Rank of each item of `task`, which stand in `ordered()`; those that have one in `before` keep it."""
    rank = np.full(task.num_items, -1, np.int64) if before is None else before.copy()
    state = _State(task, rank)
    left = np.flatnonzero(rank < 0)
    few = _ONE_BY_ONE if len(task.costs) == 1 else _ONE_BY_ONE_PHASES
    if len(left) * task.num_ranks > few:
        for _ in range(_PASSES):
            left = _rounds(task, state, rank, left)
            if len(left) * task.num_ranks <= few:
                break
    for item in left.tolist():
        chosen = state.best_of_all(item)
        if chosen >= 0:
            rank[item] = chosen
            state.add(np.array([item]), np.array([chosen]))
    return rank


def best_fit(task: Task) -> Ints:
    """Rank of each item: those that take most of a cap first, each where least room is left. For tight caps,
    where `greedy`, which looks at time, leaves out what could be held.
    """
    bound = np.isfinite(task.limits) & (task.limits > 0)
    limits = np.where(bound, task.limits, 1.0)
    size = (task.weights / limits.max(axis=1, keepdims=True)).max(axis=0)
    rank = np.full(task.num_items, -1, np.int64)
    state = _State(task, rank)
    for item in np.argsort(-size, kind="stable").tolist():
        open_ = state.has_room(item)
        if open_.any():
            left = np.where(bound, (limits - state.used - task.weights[:, item, None]) / limits, 1.0)
            left = left[1:].min(axis=0, initial=1.0)  # of all caps but that on counts
            rank[item] = int(np.argmin(np.where(open_, left, np.inf)))
            state.add(np.array([item]), rank[item : item + 1])
    return rank


class _State:
    """What ranks have while items are placed: time as a share of the phase's mean, and caps used."""

    def __init__(self, task: Task, rank: Ints) -> None:
        self.costs, self.slow = task.costs / task.scale[:, None], task.slow
        self.weights, self.limits = task.weights, task.limits
        self.load = task.loads(rank) / task.scale[:, None]
        self.used = task.used(rank)

    def add(self, items: Ints, ranks: Ints) -> None:
        """No rank twice."""
        # Row by row, and `take` elsewhere: `a[:, b]` is laid out by columns, which are slow to work on.
        for load, cost, slow in zip(self.load, self.costs, self.slow, strict=True):
            load[ranks] += cost[items] * slow[ranks]
        for used, weights in zip(self.used, self.weights, strict=True):
            used[ranks] += weights[items]

    def has_room(self, item: int) -> NDArray[np.bool_]:
        """(ranks,): which could take it."""
        room: NDArray[np.bool_] = np.all(self.used + self.weights[:, item, None] <= self.limits, axis=0)
        return room

    def best_of_all(self, item: int) -> int:
        """The rank with room whose worst phase stays lowest; -1: none has room."""
        open_ = self.has_room(item)
        if not open_.any():
            return -1
        after = self.load + self.costs[:, item, None] * self.slow
        score = after.max(axis=0) + _TIE_SUM * after.sum(axis=0) + _TIE_COUNT * self.used[0]
        return int(np.argmin(np.where(open_, score, np.inf)))


def _rounds(task: Task, state: _State, rank: Ints, items: Ints) -> Ints:
    """Places `items` in rounds, the dearest on the cheapest ranks; returns those that found no room."""
    left, start, num_ranks = [], 0, task.num_ranks
    while start < len(items):
        per_rank = (len(items) - start) / num_ranks
        share = _COARSE if per_rank > _COARSE_FROM or len(task.costs) > 1 else _ROUND
        open_ = np.flatnonzero(state.used[0] < state.limits[0])
        size = min(max(num_ranks // share, 1), len(items) - start, len(open_))
        if size == 0:
            left.append(items[start:])
            break
        chunk = items[start : start + size]
        chosen = open_[_cheapest(state, open_, chunk)]
        held = state.used.take(chosen, axis=1) + state.weights.take(chunk, axis=1)
        fits = np.all(held <= state.limits.take(chosen, axis=1), axis=0)
        left.append(chunk[~fits])
        rank[chunk[fits]] = chosen[fits]
        state.add(chunk[fits], chosen[fits])
        start += size
    return np.concatenate(left) if left else items[:0]


def _cheapest(state: _State, open_: Ints, chunk: Ints) -> Ints:
    """Places in `open_` of as many ranks as there are items in `chunk`, in the order of these."""
    load, slow = state.load.take(open_, axis=1), state.slow.take(open_, axis=1)
    typical = state.costs[:, chunk[len(chunk) // 2], None]  # a mean would depend on how a processor adds
    after = load + typical * slow
    score = after.max(axis=0) + _TIE_SUM * after.sum(axis=0) + _TIE_COUNT * state.used[0, open_]
    cheapest = smallest(score, len(chunk))
    if len(load) == 1:
        return cheapest
    # What weighs more in one phase than in the others goes where that phase has been used least.
    tilt = _tilt(state.costs.take(chunk, axis=1))
    by_need = np.argsort(-tilt, kind="stable")
    by_room = np.argsort(_tilt(load.take(cheapest, axis=1)), kind="stable")
    matched = np.empty_like(cheapest)
    matched[by_need] = cheapest[by_room]
    return matched


def _tilt(values: Floats) -> Floats:
    """(k,): the first phase over the mean of the others, of (p, k)."""
    tilt: Floats = values[0] - values[1:].mean(axis=0)
    return tilt
