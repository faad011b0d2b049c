"""Sequences of unequal length and equal cost: fewer tokens where documents are long (WLB-LLM)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers.pack.best_fit import filled
from dataloader_balancers.pack.exchange import exchanged
from dataloader_balancers.pack.leveling import Way, leveled
from dataloader_balancers.pack.pieces import Limit, Task
from dataloader_balancers.pack.search import searched

# The first of the best is taken; of many pieces only the first is tried.
_WAYS = (Way("cost", 8), Way("cost", 64), Way("cost", 2), Way("cost", 1), Way("excess", 4))
_TRY_ALL_UP_TO = 512


def variable(
    lengths: ArrayLike,
    num_sequences: int,
    capacity: int,
    priority: ArrayLike | None = None,
    costs: ArrayLike | None = None,
    *,
    limits: Sequence[Limit] = (),
) -> NDArray[np.int32]:
    """Equal cost first; `capacity` is the most that a sequence may hold, not what it should hold.

    Give it more room than there are tokens: sequences of 1.25 times the mean length level out documents that
    cost up to 1.25 times the mean (WLB-LLM, arXiv 2503.17924, section 4.1). Where there are as many tokens as
    room, sequences become full, and `balanced` is the better name. Places at least as many tokens as
    `best_fit`, and where it places as many, its dearest sequence costs no more.
    """
    task = Task.checked(lengths, num_sequences, capacity, priority, costs, limits)
    first = task.urgency > task.urgency.min(initial=0)
    if first.any():  # by one priority after the other, sequences can't be as level
        result = _oldest_first(task, _packed(replace(task, urgency=np.zeros_like(task.urgency))))
        if (result[first] >= 0).all() and _judged(task, result) <= _judged(task, filled(task)):
            return result
    return _packed(task)


def _oldest_first(task: Task, result: NDArray[np.int32]) -> NDArray[np.int32]:
    """Pieces alike in all but their priority share out their places by it, not by which came first."""
    _, kind = np.unique(np.column_stack([task.sizes, task.price, *task.weights]), axis=0, return_inverse=True)
    left_over = result < 0
    dealt = np.empty_like(result)
    dealt[np.lexsort((-task.urgency, kind))] = result[np.lexsort((result, left_over, kind))]
    return dealt


def _packed(task: Task) -> NDArray[np.int32]:
    best = filled(task)
    value = _judged(task, best)
    for way in _WAYS if len(task.sizes) <= _TRY_ALL_UP_TO else _WAYS[:1]:
        result = leveled(task, way)
        attempt = _judged(task, result)
        if attempt < value:
            best, value = result, attempt
    result = exchanged(task, best)
    return searched(task, result if _judged(task, result) <= value else best)


def _judged(task: Task, result: NDArray[np.int32]) -> tuple[int, float]:
    """Less is better: tokens left over, then the dearest sequence."""
    return -task.tokens(result), float(task.loads(result).max())
