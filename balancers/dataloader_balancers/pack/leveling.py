"""Equal predicted cost over sequences: dear pieces are dealt, cheap ones fill up to one level.

Three steps, for each priority by itself:

1. The dearest few pieces of each sequence go, dearest first, to the sequences that have least: Graham's rule
   (1969, SIAM J. Appl. Math. 17), in rounds of an eighth of the sequences, as placement does it. In a round,
   the longest piece goes to the emptiest sequence.
2. The others, whose cost is all but proportional to their tokens, rise like water: each sequence may take
   tokens up to the level at which all of them are used up, or to its capacity. Best fit within that.
3. What is left finds its place by best fit.

What counts in step 1 as a piece's work depends on what ends a sequence. Where all become full, its cost is
its tokens at the rate of the filling, which is the same for all, and beyond that what its dear pieces cost
more than that: their *excess* is dealt. Where they don't, their cost is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dataloader_balancers.pack.bins import Bins
from dataloader_balancers.pack.pieces import Floats, Ints, Task

# A round deals to one in so many sequences; in longer rounds the last ones get less than their share.
_ROUND = 8
# A piece that no cheap sequence admits tries so many times as many others, then is left to best fit.
_TRIES = 8


Work = Literal["excess", "cost"]
WORK: tuple[Work, ...] = ("excess", "cost")


@dataclass(frozen=True, slots=True)
class Way:
    """How to level: by which work, and how many dear pieces a sequence gets before it is filled."""

    work: Work
    dealt: int


def leveled(task: Task, way: Way) -> NDArray[np.int32]:
    """The sequence of each piece, int32 (n,), or -1."""
    bins = Bins(task)
    dear = np.zeros(len(task.sizes), np.bool_)
    dear[np.lexsort((-task.urgency, -task.sizes, -task.price))[: way.dealt * task.num_sequences]] = True
    rate = _rate(task, dear)
    work = np.maximum(task.price - rate * task.sizes, 0.0) if way.work == "excess" else task.price
    for level in task.levels():
        part = level[dear[level]]
        _deal(task, bins, work, part[np.lexsort((-task.sizes[part], -work[part]))])
        rest = level[bins.result[level] < 0]
        tokens = int(task.sizes[rest].sum())
        if rate > 0 and tokens < int(bins.free[0].sum()):
            bins.fill(rest, _allowance(bins.free[0], task.loads(bins.result) / rate, tokens))
            rest = rest[bins.result[rest] < 0]
        bins.fill(rest)
    return bins.result


def _rate(task: Task, dear: NDArray[np.bool_]) -> float:
    """Cost of a token of what fills sequences up; if all pieces are dear, of the cheapest of them."""
    filling = ~dear
    tokens = int(task.sizes[filling].sum())
    if tokens:
        # A running sum, since it adds in order: the same on any machine.
        return float(np.cumsum(task.price[filling])[-1]) / tokens
    return float((task.price / task.sizes).min(initial=math.inf)) if len(dear) else 0.0


def _deal(task: Task, bins: Bins, work: Floats, pieces: Ints) -> None:
    """`pieces` in their order to the sequences that have least work, where those have room."""
    placed = bins.result >= 0
    load = np.bincount(bins.result[placed], work[placed], task.num_sequences).astype(np.float64)
    size = max(1, task.num_sequences // _ROUND)
    for start in range(0, len(pieces), size):
        waiting = pieces[start : start + size]
        order = np.argsort(load, kind="stable")[: size * _TRIES]
        while len(waiting) and len(order):
            count = min(len(waiting), len(order))
            places, order = order[:count], order[count:]
            places = places[np.argsort(-bins.free[0, places], kind="stable")]
            asking = waiting[np.argsort(-task.sizes[waiting], kind="stable")]
            fits = bins.fits(asking[:count], places)
            bins.put(asking[:count][fits], places[fits])
            load[places[fits]] += work[asking[:count][fits]]
            waiting = np.concatenate([asking[:count][~fits], asking[count:]])


def _allowance(room: Ints, load: Floats, tokens: int) -> Ints:
    """How many of `tokens` each may take so that all end at one level, or full: int (sequences,).

    `room` int (sequences,); `load` float (sequences,), in tokens as well. All in whole numbers: found by
    halving, with sums that are exact.
    """
    if tokens >= int(room.sum()):
        return room
    ground = np.minimum(load, 2.0**53).astype(np.int64)
    low, high = int(ground.min()), int((ground + room).max())
    while low < high:
        level = (low + high + 1) // 2
        if int(np.clip(level - ground, 0, room).sum()) <= tokens:
            low = level
        else:
            high = level - 1
    return np.clip(low - ground, 0, room)
