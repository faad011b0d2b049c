"""The cost of a document by its length, and of packed sequences of documents.

Documents of a packed sequence do not see each other: the cost of a sequence is the sum over its documents,
not a function of its length. That is what makes equal token counts unequal work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from dataloader_balancers.cost.shape import ModelShape

_UNIT = 1e-9


class CostModel(Protocol):
    """What predicts the work of documents, and can be told how long its parts really take."""

    def of_documents(self, lengths: ArrayLike) -> NDArray[np.float64]:
        """float64 (n,): cost of each document of `lengths` int (n,) tokens. Finite and not negative."""
        ...

    def parts(self, lengths: ArrayLike) -> NDArray[np.float64]:
        """float64 (n, p): the same by part; parts are what hardware may run at speeds of their own."""
        ...

    def scaled(self, factors: ArrayLike) -> Self:
        """The model whose parts are `factors` (p,) times these."""
        ...


@dataclass(frozen=True, slots=True)
class LlmCost:
    """`linear * L + quadratic * L^2` for a document of L tokens, and for each (w, q) of `windowed`, layers
    that see at most w tokens, `q * L^2` up to w tokens and `q * (2 w L - w^2)` beyond: L^2 without the
    corner that the window cuts off.

    In 10^9 operations of a forward pass where it is of a model (`shape.py` has formula and sources); any
    unit will do. Its parts are the linear one, which matrices take, and the rest, which attention takes.
    """

    linear: float
    quadratic: float
    windowed: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        check_coefficient("linear", self.linear)
        check_coefficient("quadratic", self.quadratic)
        check_windows(self.windowed, "tokens")

    @classmethod
    def of_model(cls, hidden: int, layers: int) -> LlmCost:
        """By the textbook's layer alone, `24 h^2` a token and `2 h` on each earlier one: the two terms are
        equal at 12 h tokens. `ModelShape.cost` counts what a model really has.
        """
        return cls(24.0 * hidden**2 * layers * _UNIT, 2.0 * hidden * layers * _UNIT)

    @classmethod
    def of_shape(cls, shape: ModelShape) -> LlmCost:
        """What `shape.cost` says."""
        return shape.cost

    @classmethod
    def preset(cls, model: str) -> LlmCost:
        """By name of PRESETS; ValueError lists them."""
        from dataloader_balancers.cost.presets import PRESETS

        if model not in PRESETS:
            raise ValueError(f"unknown model {model!r}; presets: {', '.join(PRESETS)}")
        return PRESETS[model].cost

    def of_documents(self, lengths: ArrayLike) -> NDArray[np.float64]:
        """float64 (n,): cost of each document of `lengths` int (n,) tokens."""
        tokens = np.asarray(lengths, np.float64)
        return self.linear * tokens + self._attention(tokens)

    def parts(self, lengths: ArrayLike) -> NDArray[np.float64]:
        """float64 (n, 2): matrices, attention."""
        tokens = np.asarray(lengths, np.float64)
        return np.stack([self.linear * tokens, self._attention(tokens)], axis=1)

    def scaled(self, factors: ArrayLike) -> Self:
        """With the linear part times the first of `factors` (2,), attention times the second."""
        linear, attention = np.asarray(factors, np.float64).tolist()
        windowed = tuple((window, attention * quadratic) for window, quadratic in self.windowed)
        return type(self)(linear * self.linear, attention * self.quadratic, windowed)

    def _attention(self, tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        total = self.quadratic * tokens * tokens
        for window, quadratic in self.windowed:
            seen = np.minimum(tokens, window)
            total = total + quadratic * seen * (2 * tokens - seen)
        return total


def sequence_cost(lengths: ArrayLike, offsets: ArrayLike, cost: CostModel) -> NDArray[np.float64]:
    """float64 (s,): cost of packed sequences, whose documents are `lengths[offsets[i]:offsets[i+1]]`."""
    return segment_sum(cost.of_documents(lengths), offsets)


def segment_sum(values: ArrayLike, offsets: ArrayLike) -> NDArray[np.float64]:
    """float64 (s,): sums of `values[offsets[i]:offsets[i+1]]`, 0 for an empty segment.

    `offsets` is int (s+1,), ascending, within `values`. Not `np.add.reduceat`, which gives an empty segment
    its neighbour's value, nor differences of a running sum, which make equal segments unequal by rounding.
    """
    bounds = np.asarray(offsets, np.int64)
    numbers = np.asarray(values, np.float64)
    counts = np.diff(bounds)
    if len(bounds) < 1 or bounds[0] < 0 or bounds[-1] > len(numbers) or np.any(counts < 0):
        raise ValueError(f"offsets must ascend within 0 to {len(numbers)}; got {bounds[:8].tolist()} ...")
    segment = np.repeat(np.arange(len(counts)), counts)
    return np.bincount(segment, numbers[bounds[0] : bounds[-1]], len(counts)).astype(np.float64)


def check_coefficient(name: str, value: float) -> None:
    """ValueError where it is none."""
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} is {value}; coefficients are finite and not negative")


def check_windows(windowed: tuple[tuple[int, float], ...], unit: str) -> None:
    """ValueError where one of (window, coefficient) is none."""
    for window, coefficient in windowed:
        if window < 1:
            raise ValueError(f"a window of {window} {unit}; it holds at least one")
        check_coefficient(f"the coefficient of the window of {window} {unit}", coefficient)
