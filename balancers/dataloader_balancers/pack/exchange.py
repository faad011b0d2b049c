"""The last few per cent where pieces are few: exchanges between the dearest sequence and cheaper ones.

A sequence with caps is a rank with caps, so it is `assign`'s local search that makes them. What waits stays,
or finds room that an exchange has made.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dataloader_balancers.assign.descent import descend
from dataloader_balancers.assign.ranks import Cap, Ranks
from dataloader_balancers.assign.ranks import task as placement
from dataloader_balancers.pack.bins import Bins
from dataloader_balancers.pack.pieces import Task

# With more pieces levelling alone leaves so little that this would take longer than all the rest.
FEW = 400
_STEPS = 64


def exchanged(task: Task, result: NDArray[np.int32]) -> NDArray[np.int32]:
    """`result` with a dearest sequence that costs no more; it keeps what a packer promises.

    Of more than `FEW` pieces, `result` itself.
    """
    if task.num_sequences == 1 or not 2 <= int(np.count_nonzero(result >= 0)) <= FEW:
        return result
    # In an order that arrival has no part in: the search breaks ties by index.
    keys: list[NDArray[np.generic]] = [result, *task.weights, task.price, task.sizes, task.urgency]
    order = np.lexsort(keys)
    placed = order[result[order] >= 0]
    caps = [Cap("tokens", task.sizes[placed], task.capacity)]
    caps += [
        Cap("weight", weights[placed], cap) for weights, cap in zip(task.weights, task.caps, strict=True)
    ]
    problem = placement(task.price[placed], Ranks(task.num_sequences), caps)
    bins = Bins(task)
    bins.hold(placed, descend(problem, result[placed].astype(np.int64), _STEPS))
    if len(placed) == len(result):
        return bins.result
    for level in task.levels():
        bins.fill(level[bins.result[level] < 0])
    return bins.result if _nobody_is_overtaken(task, bins.result) else result


def _nobody_is_overtaken(task: Task, result: NDArray[np.int32]) -> bool:
    """Whether no piece waits that some sequence could hold beside those of its own or a higher priority."""
    for urgency in np.unique(task.urgency[result < 0]).tolist():
        waiting = (result < 0) & (task.urgency == urgency)
        older = np.where(task.urgency >= urgency, result, -1)
        bins = Bins(task)
        bins.hold(np.flatnonzero(older >= 0), older[older >= 0])
        if bins.admits(np.flatnonzero(waiting)).any():
            return False
    return True
