"""Indices of ragged rows: what one array operation needs to copy many runs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def ragged(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The runs starts[i], starts[i]+1, ... (counts[i] of them) one after the other."""
    ends = np.cumsum(counts)
    runs: NDArray[np.int64] = np.arange(int(ends[-1]) if len(ends) else 0, dtype=np.int64)
    runs += np.repeat(starts - (ends - counts), counts)
    return runs
