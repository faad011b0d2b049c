"""A cost function of the user's own: arrays in, arrays out, and checked whenever it is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

_SAMPLE = np.array([1, 2, 3, 100, 1000, 32_768], np.int64)
"""Sizes that a new function is tried on."""


class CostFunctionError(ValueError):
    """A function's result is no cost: names the function, and what was found."""


@dataclass(frozen=True, slots=True)
class FunctionCost:
    """`function(sizes)`, times `factor`: sizes int64 (n,) of documents in tokens, or of media in patches.

    The result is an array of n numbers, finite and not negative, each of which depends on its own size
    alone; any unit will do as long as all phases use it. CostFunctionError where that does not hold: what it
    gives for a few sizes is looked at at once, its shape and numbers at every call. It may be called from
    any thread, on arrays of any length, and must give equal results for equal sizes: plans are made again.
    """

    function: Callable[[NDArray[np.int64]], ArrayLike]
    name: str
    factor: float = 1.0

    def __post_init__(self) -> None:
        together = self._call(_SAMPLE)
        alone = np.concatenate([self._call(_SAMPLE[i : i + 1]) for i in range(len(_SAMPLE))])
        if not np.array_equal(together, alone):
            worst = int(np.argmax(np.abs(together - alone)))
            raise CostFunctionError(
                f"{self.name}: the cost of one of {_SAMPLE[worst]} is {together[worst]:g} among others and "
                f"{alone[worst]:g} by itself; it must depend on that size alone"
            )
        self._call(_SAMPLE[:0])

    def of_documents(self, lengths: ArrayLike) -> NDArray[np.float64]:
        """float64 (n,): cost of each of `lengths` int (n,)."""
        return self.factor * self._call(np.asarray(lengths, np.int64))

    def of_patches(self, patches: ArrayLike) -> NDArray[np.float64]:
        """float64 (n,): cost of each of `patches` int (n,); nothing costs nothing."""
        sizes = np.asarray(patches, np.int64)
        costs = np.zeros(len(sizes))
        some = sizes > 0
        costs[some] = self.of_documents(sizes[some])
        return costs

    def parts(self, lengths: ArrayLike) -> NDArray[np.float64]:
        """float64 (n, 1): there is no telling its parts apart."""
        return self.of_documents(lengths)[:, None]

    def scaled(self, factors: ArrayLike) -> Self:
        """With its one part times `factors` (1,)."""
        (factor,) = np.asarray(factors, np.float64)
        return type(self)(self.function, self.name, self.factor * float(factor))

    def _call(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        given = sizes.copy()  # what it does to its argument is its own affair
        try:
            result = np.asarray(self.function(given))
        except Exception as error:
            raise CostFunctionError(
                f"{self.name} failed on {len(sizes)} sizes: {type(error).__name__}: {error}"
            ) from error
        if result.shape != sizes.shape:
            raise CostFunctionError(
                f"{self.name}: {len(sizes)} sizes give a result of shape {result.shape}; expected "
                f"({len(sizes)},): it is called with an array, and returns one as long"
            )
        if result.dtype.kind not in "iuf":
            raise CostFunctionError(f"{self.name}: the result has dtype {result.dtype}; expected numbers")
        costs = result.astype(np.float64)
        bad = np.flatnonzero(~(np.isfinite(costs) & (costs >= 0)))
        if len(bad):
            first = int(bad[0])
            raise CostFunctionError(
                f"{self.name}: the cost of one of {sizes[first]} is {costs[first]:g}; costs are finite "
                "and not negative"
            )
        return costs
