"""Every piece in a sequence, in as few sequences as a packer needs: for steps that are given in samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers.pack.best_fit import filled
from dataloader_balancers.pack.pieces import Limit, Packer, Task

# Share of sequences beyond best fit's that are opened for a packer that needs them.
_MORE = 0.02


def in_fewest(
    packer: Packer,
    lengths: ArrayLike,
    capacity: int,
    priority: ArrayLike | None,
    costs: ArrayLike | None,
    limits: Sequence[Limit],
) -> NDArray[np.int32]:
    """What `pack_all` promises, for a packer instead of a name."""
    task = Task.checked(lengths, 1, capacity, priority, costs, limits)
    if not len(task.sizes):
        return np.empty(0, np.int32)
    # Best fit opens a sequence only for a piece that no open one admits, so any two together breach a cap:
    # there are at most twice as many as the totals ask for, and one.
    full = [task.sizes.sum() / capacity]
    full += [weights.sum() / max(cap, 1) for weights, cap in zip(task.weights, task.caps, strict=True)]
    enough = min(2 * math.ceil(sum(full)) + 1, len(task.sizes))
    result = filled(replace(task, num_sequences=enough))
    fewest = len(np.unique(result))
    more = 0
    while more <= max(1, fewest * _MORE):
        attempt = packer(lengths, fewest + more, capacity, priority, costs, limits=limits)
        if (attempt >= 0).all():
            result = attempt
            break
        more = 2 * more or 1
    return np.unique(result, return_inverse=True)[1].reshape(-1).astype(np.int32)
