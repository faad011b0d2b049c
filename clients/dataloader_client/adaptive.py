"""Weights of sources that follow their losses, within bounds. Pure functions; nothing is asked of a service.

A trainer sums losses by source (`losses.py`), gets its next weights here, and has them made with
`loader.set_mixture`, which logs them and puts them into every state.
"""

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


def by_excess_loss(
    weights: Mapping[str, float],
    losses: Mapping[str, float],
    references: Mapping[str, float],
    *,
    declared: Mapping[str, float],
    bounds: Bounds,
    rate: float = 1.0,
    smoothing: float = 1e-3,
) -> dict[str, float]:
    """The next weights, summing to 1: sources that are learned less well than they could be get more.

    weights      that hold now, as the last `set_mixture` or this function gave them
    losses       mean loss of a target token of each source, of the model that is trained. A source that had
                 no target since is left out; it neither gains nor loses by its loss
    references   the same of a reference model: what each source can be learned to
    declared     weights of the configuration, which `bounds` refer to; they name the sources
    rate         of the exponentiated gradient: the paper's eta
    smoothing    share of the uniform distribution that is mixed in: the paper's c

    DoReMi (Xie et al., arXiv 2305.10429), algorithm 1: with the excess losses x = max(loss - reference, 0),

        w' = w * exp(rate * x) / sum(w * exp(rate * x));   next = (1 - smoothing) * w' + smoothing / sources

    and of what is within `bounds` the nearest to it, by relative entropy, of which the rule itself is a step.
    Unlike there, the excess is of a source's mean and not of each token, and one model learns from data drawn
    by the weights, where the paper draws evenly, weights losses, and trains the model proper afterwards on
    the mean of all weights.

    ValueError names the source: a loss that is no finite number, one that is unknown or has no reference,
    weights that are outside of `bounds`.
    """
    names = sorted(declared)
    _check_names(names, weights=weights, losses=losses, references=references)
    goal, now = _shares("declared", declared, names), _shares("weights", weights, names)
    excess = _excess(losses, references, names, now)
    exponents = rate * excess
    moved = now * np.exp(exponents - exponents.max())
    wanted = (1 - smoothing) * moved / moved.sum() + smoothing / len(names)
    low, high = _limits(goal, now, bounds, names)
    return dict(zip(names, _nearest(wanted, low, high).tolist(), strict=True))


def _check_names(names: list[str], **given: Mapping[str, float]) -> None:
    for what, values in given.items():
        for name in values:
            if name not in names:
                raise ValueError(f"{what} has {name!r}, which is no source; there are {', '.join(names)}")


def _shares(what: str, weights: Mapping[str, float], names: list[str]) -> FloatArray:
    values = np.array([weights.get(name, 0.0) for name in names], np.float64)
    for name, value in zip(names, values.tolist(), strict=True):
        if not 0 <= value < math.inf:
            raise ValueError(f"{what} has {value} for {name!r}: a number that is 0 or more is needed")
    total = float(values.sum())
    if not 0 < total < math.inf:
        raise ValueError(f"{what} sum to {total:g}: at least one must be above 0, and none enormous")
    return values / total


def _excess(
    losses: Mapping[str, float], references: Mapping[str, float], names: list[str], now: FloatArray
) -> FloatArray:
    """By source; one without a loss has the mean of the others by weight, which leaves its share."""
    excess = np.full(len(names), np.nan)
    for row, name in enumerate(names):
        if name not in losses:
            continue
        if name not in references:
            raise ValueError(f"there is no reference loss for {name!r}: what can it be learned to?")
        for what, value in (("loss", losses[name]), ("reference loss", references[name])):
            if not math.isfinite(value):
                raise ValueError(
                    f"the {what} of {name!r} is {value}: leave a source out whose loss is not known"
                )
        excess[row] = max(losses[name] - references[name], 0.0)
    known = ~np.isnan(excess)
    weight = float(now[known].sum())
    mean = float((now[known] * excess[known]).sum()) / weight if weight > 0 else 0.0
    return np.where(known, excess, mean)


def _limits(
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


def _nearest(wanted: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
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
