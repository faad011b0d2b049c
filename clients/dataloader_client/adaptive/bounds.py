"""How far weights may go, and the nearest weights within: what all rules share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
_ROUNDING = 1e-9
_HALVINGS = 100
_LEAST, _BEYOND = 1e-100, 300.0  # e ** 300 lifts the least share above all bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How far weights may go, and how fast: shares of 1.

    min_share, max_share   of every source, always
    max_ratio              most that a source may be above or below its declared share, as a factor
    max_change             most that a share may change in one update

    ValueError where a value makes no sense.
    """

    min_share: float = 0.0
    max_share: float = 1.0
    max_ratio: float = math.inf
    max_change: float = 0.05

    def __post_init__(self) -> None:
        if not 0 <= self.min_share <= self.max_share <= 1:
            raise ValueError(
                f"min_share is {self.min_share}, max_share {self.max_share}: 0 <= min_share <= max_share <= 1"
            )
        if not self.max_ratio >= 1:
            raise ValueError(f"max_ratio is {self.max_ratio}: a factor of 1 or more, 1 for no change")
        if not 0 < self.max_change <= 1:
            raise ValueError(f"max_change is {self.max_change}: a share above 0, at most 1")


def check_names(names: list[str], **given: Mapping[str, float]) -> None:
    for what, values in given.items():
        for name in values:
            if name not in names:
                raise ValueError(f"{what} has {name!r}, which is no source; there are {', '.join(names)}")


def shares(what: str, weights: Mapping[str, float], names: list[str]) -> FloatArray:
    values = np.array([weights.get(name, 0.0) for name in names], np.float64)
    for name, value in zip(names, values.tolist(), strict=True):
        if not 0 <= value < math.inf:
            raise ValueError(f"{what} has {value} for {name!r}: a number that is 0 or more is needed")
    total = float(values.sum())
    if not 0 < total < math.inf:
        raise ValueError(f"{what} sum to {total:g}: at least one must be above 0, and none enormous")
    return values / total


def limits(
    declared: FloatArray, now: FloatArray, bounds: Bounds, names: list[str]
) -> tuple[FloatArray, FloatArray]:
    """Least and most that each share may be next. `now` is within them, so some weights are."""
    low = np.maximum(bounds.min_share, declared / bounds.max_ratio)
    high = np.full(len(names), bounds.max_share)
    if bounds.max_ratio < math.inf:
        high = np.minimum(high, declared * bounds.max_ratio)
    for row, name in enumerate(names):
        if not low[row] - _ROUNDING <= now[row] <= high[row] + _ROUNDING:
            raise ValueError(
                f"the weight of {name!r} is {now[row]:.6g}, and bounds let it be {low[row]:.6g} to "
                f"{high[row]:.6g}: widen them, or set the mixture to weights within"
            )
    low, high = np.minimum(low, now), np.maximum(high, now)  # rounding apart, as they were
    return np.maximum(low, now - bounds.max_change), np.minimum(high, now + bounds.max_change)


def nearest(wanted: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """Of all shares that sum to 1 within [low, high], the nearest to `wanted` by relative entropy.

    It is clip(wanted * factor, low, high) for the one factor that makes it sum to 1 (the conditions of
    Karush, Kuhn and Tucker), found by halving: so sources that no bound holds keep their ratios.
    """
    wanted = np.maximum(wanted, _LEAST)  # what vanished can come back, if a bound wants it
    less, more = -_BEYOND, _BEYOND
    for _ in range(_HALVINGS):
        middle = (less + more) / 2
        if np.clip(wanted * math.exp(middle), low, high).sum() < 1:
            less = middle
        else:
            more = middle
    return np.clip(wanted * math.exp(more), low, high)
