"""The items of a step and what they cost, as all of `simulate` has them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Items of a step in order of arrival: samples, or packed sequences.

    llm, encoder   float64 (n,), predicted time of the forward pass on one rank, in one unit
    tokens         int64 (n,)
    """

    llm: Floats
    encoder: Floats
    tokens: Ints

    def take(self, index: Ints) -> Work:
        """Some of the items, in that order."""
        return Work(self.llm[index], self.encoder[index], self.tokens[index])
