"""Balanced packing: full sequences of equal predicted cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers.pack.best_fit import filled
from dataloader_balancers.pack.exchange import exchanged
from dataloader_balancers.pack.leveling import Way, leveled
from dataloader_balancers.pack.pieces import Limit, Task
from dataloader_balancers.pack.search import searched

# This share of the tokens that best fit places is kept, ...
_KEEP = 0.995
# ... and this much more of them before cheap sequences are made dearer.
_FULLER = 0.999
# Where there is this much for each token of room, sequences become full.
_FULL = 0.99
# Of so few pieces all ways are tried and the best is taken; of more, the first that serves.
_TRY_ALL_UP_TO = 4096
# Best fit that comes so near to its floor needs no help.
_NEAR = 1.001


def balanced(
    lengths: ArrayLike,
    num_sequences: int,
    capacity: int,
    priority: ArrayLike | None = None,
    costs: ArrayLike | None = None,
    *,
    limits: Sequence[Limit] = (),
) -> NDArray[np.int32]:
    """Equal cost by `leveling.py`, as far as sequences stay full.

    Places at least 99.5 % of the tokens that `best_fit` places, and unless it places more, its dearest
    sequence costs no more than that of `best_fit`: where the heuristic reaches neither, the result is that of
    `best_fit`. It can't go below the dearest piece (`bounds.floor`). About n log n: 100,000 texts take some
    60 ms. Up to a thousand pieces are also exchanged, and up to 16 tried through.
    """
    task = Task.checked(lengths, num_sequences, capacity, priority, costs, limits)
    best = filled(task)
    value = _judged(task, best, _FULLER * task.tokens(best))
    if len(task.sizes) > _TRY_ALL_UP_TO and _is_level(task, best):
        return best
    enough, fuller = _KEEP * task.tokens(best), _FULLER * task.tokens(best)
    for way in _ways(task):
        result = leveled(task, way)
        attempt = _judged(task, result, fuller)
        if task.tokens(result) >= enough and attempt <= value:
            best, value = result, attempt
            if len(task.sizes) > _TRY_ALL_UP_TO:
                break
    result = exchanged(task, best)
    return searched(task, result if _judged(task, result, fuller) <= value else best)


def _ways(task: Task) -> list[Way]:
    """The likeliest first."""
    if int(task.sizes.sum()) >= _FULL * task.num_sequences * task.capacity:
        likely = [Way("excess", 4), Way("cost", 8), Way("cost", 1)]
    else:
        likely = [Way("cost", 8), Way("excess", 4), Way("cost", 1)]
    if len(task.sizes) > _TRY_ALL_UP_TO:
        return likely[:2]
    return [*likely, Way("excess", 64), Way("cost", 64), Way("excess", 1), Way("excess", 2), Way("cost", 2)]


def _judged(task: Task, result: NDArray[np.int32], fuller: float) -> tuple[float, bool, float]:
    """Less is better: the dearest sequence; whether room is wasted; how cheap the cheapest is."""
    load = task.loads(result)
    return float(load.max()), task.tokens(result) < fuller, -float(load.min())


def _is_level(task: Task, result: NDArray[np.int32]) -> bool:
    load = task.loads(result)
    mean = float(np.cumsum(load)[-1]) / len(load)
    return float(load.max()) <= _NEAR * mean and mean <= _NEAR * float(load.min())
