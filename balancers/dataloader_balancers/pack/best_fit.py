"""Best-fit decreasing: full sequences. The default."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers.pack.bins import Bins
from dataloader_balancers.pack.pieces import Limit, Task


def best_fit(
    lengths: ArrayLike,
    num_sequences: int,
    capacity: int,
    priority: ArrayLike | None = None,
    costs: ArrayLike | None = None,
    *,
    limits: Sequence[Limit] = (),
) -> NDArray[np.int32]:
    """The longest piece into the fullest sequence that has room; of equally full ones the first.

    At most 11/9 of the fewest sequences, plus 6/9, where any number may be opened (Dósa 2007, ESCAPE, LNCS
    4614). About n log n: 100,000 texts into 4,096 sequences take about 20 ms.
    """
    return filled(Task.checked(lengths, num_sequences, capacity, priority, costs, limits))


def filled(task: Task) -> NDArray[np.int32]:
    """The same, of arguments that are checked."""
    bins = Bins(task)
    for level in task.levels():
        bins.fill(level)
    return bins.result
