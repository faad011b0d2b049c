"""Seconds for each unit of predicted work, from measured times: robust, non-negative, close to the model.

A time is taken as `fixed + sum over parts of seconds_k * work_k`: what a step takes whatever is in it
(optimiser, kernel launches), and the work of each part (matrices, attention, encoder) at the speed at which
the hardware really does it. Three things make that harder than least squares:

- Times have outliers (a checkpoint, a page fault, a preempted neighbour). Huber's loss, by iteratively
  reweighted least squares (Huber 1964; Holland and Welsch 1977), counts what lies beyond 1.345 deviations,
  taken from the median of the residuals, no more than linearly.
- Work can't speed a step up: coefficients are non-negative (`nnls.py`).
- Full sequences have as many tokens on every rank in every step: then nothing tells matrices from what is
  fixed. What the times leave open, the model decides: each coefficient is drawn towards the one speed that
  the model would have, as firmly as if 1 row in 10,000 said so (ridge). A part that varies by itself by more
  than a few percent between ranks is decided by the times alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers.calibrate.nnls import nnls

HUBER = 1.345
"""Deviations beyond which a residual is an outlier: 95 % efficient where errors are normal (Huber 1964)."""

RIDGE = 1e-4
_ROUNDS = 30
_TO_DEVIATION = 1.4826  # of the median of absolute residuals, where errors are normal


@dataclass(frozen=True, slots=True)
class Fit:
    """seconds = fixed + work @ per_unit.

    error      median of |measured - predicted| / predicted
    outliers   share of the rows that count less than whole
    rows       that it was made from
    """

    fixed: float
    per_unit: tuple[float, ...]
    error: float
    outliers: float
    rows: int

    def predict(self, work: ArrayLike) -> NDArray[np.float64]:
        """float64 (n,): seconds of `work` (n, p)."""
        per_unit = np.asarray(self.per_unit, np.float64)
        return np.asarray(self.fixed + np.asarray(work, np.float64) @ per_unit)


def fit_seconds(work: ArrayLike, seconds: ArrayLike) -> Fit:
    """The coefficients for `work` float (n, p) by part, in the model's unit, and measured `seconds` (n,).

    ValueError: no rows, shapes that do not fit, negative or infinite work, times that are not positive.
    """
    parts, times = np.asarray(work, np.float64), np.asarray(seconds, np.float64)
    _check(parts, times)
    columns = np.hstack([np.ones((len(times), 1)), parts])
    mean = columns.mean(axis=0)
    speed = _speed(parts.sum(axis=1), times)
    # In units of what each column takes on average, and the model's wish for it.
    scale = np.where(mean > 0, mean, 1.0)
    wish = np.concatenate([[0.0], np.full(parts.shape[1], speed)]) * scale
    scaled = columns / scale
    weights = np.ones(len(times))
    found = wish
    for _ in range(_ROUNDS):
        before, found = found, _weighted(scaled, times, weights, wish)
        residual = np.abs(times - scaled @ found)
        deviation = max(_TO_DEVIATION * float(np.median(residual)), 1e-9 * float(times.mean()))
        weights = np.minimum(1.0, HUBER * deviation / np.maximum(residual, 1e-300))
        if np.allclose(found, before, rtol=1e-7, atol=1e-12 * float(times.mean())):
            break
    predicted = np.maximum(scaled @ found, 1e-300)
    coefficients = np.where(mean > 0, found / scale, np.concatenate([[0.0], np.full(parts.shape[1], speed)]))
    return Fit(
        fixed=float(coefficients[0]),
        per_unit=tuple(coefficients[1:].tolist()),
        error=float(np.median(np.abs(times - predicted) / predicted)),
        outliers=float(np.mean(weights < 1.0)),
        rows=len(times),
    )


def _weighted(
    columns: NDArray[np.float64],
    times: NDArray[np.float64],
    weights: NDArray[np.float64],
    wish: NDArray[np.float64],
) -> NDArray[np.float64]:
    root = np.sqrt(weights)
    firmness = np.sqrt(RIDGE * weights.sum())
    matrix = np.vstack([columns * root[:, None], firmness * np.eye(len(wish))])
    return nnls(matrix, np.concatenate([times * root, firmness * wish]))


def _speed(work: NDArray[np.float64], times: NDArray[np.float64]) -> float:
    """Seconds a unit, were the model right and nothing fixed."""
    some = work > 0
    return float(np.median(times[some] / work[some])) if some.any() else 0.0


def _check(work: NDArray[np.float64], times: NDArray[np.float64]) -> None:
    if work.ndim != 2 or times.shape != work.shape[:1]:
        raise ValueError(f"work {work.shape} and seconds {times.shape} do not fit: expected (n, p) and (n,)")
    if not len(times):
        raise ValueError("no times to fit")
    if not (np.isfinite(work).all() and (work >= 0).all()):
        raise ValueError("work must be finite and not negative")
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise ValueError("seconds must be finite and positive")
