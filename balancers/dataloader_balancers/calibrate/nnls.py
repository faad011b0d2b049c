"""Non-negative least squares for a handful of unknowns."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def nnls(matrix: ArrayLike, target: ArrayLike) -> NDArray[np.float64]:
    """float64 (p,): the x >= 0 for which |matrix x - target| is least. `matrix` is (n, p), `target` (n,).

    The active-set method of Lawson and Hanson (Solving Least Squares Problems, 1974, chapter 23): unknowns
    enter the passive set one by one, the most promising first, and leave it where they would be negative. It
    ends for every input; of several solutions (columns that depend on each other) it gives one of them,
    always the same. ValueError for shapes that don't fit.
    """
    a, b = np.asarray(matrix, np.float64), np.asarray(target, np.float64)
    if a.ndim != 2 or b.shape != a.shape[:1]:
        raise ValueError(f"matrix {a.shape} and target {b.shape} do not fit: expected (n, p) and (n,)")
    scale = np.linalg.norm(a, axis=0)
    used = np.flatnonzero(scale > 0)  # a column of zeros decides nothing: 0
    x = np.zeros(a.shape[1])
    x[used] = _solve(a[:, used] / scale[used], b) / scale[used]
    return x


def _solve(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """With columns of length 1."""
    unknowns = a.shape[1]
    x, passive = np.zeros(unknowns), np.zeros(unknowns, np.bool_)
    tolerance = 1e-12 * max(float(np.linalg.norm(b)), 1e-300)
    for _ in range(3 * unknowns + 1):
        gradient = a.T @ (b - a @ x)
        gradient[passive] = -np.inf
        if passive.all() or gradient.max(initial=-np.inf) <= tolerance:
            break
        entering = int(np.argmax(gradient))
        passive[entering] = True
        while True:
            wished = np.zeros(unknowns)
            wished[passive] = np.linalg.lstsq(a[:, passive], b, rcond=None)[0]
            negative = passive & (wished <= 0)
            if not negative.any():
                x = wished
                break
            # As far towards it as all stay non-negative; those that reach 0 leave.
            steps = x[negative] / np.maximum(x[negative] - wished[negative], 1e-300)
            x = x + float(steps.min()) * (wished - x)
            leaving = negative & (x <= 1e-15 * max(1.0, float(np.abs(x).max())))
            leaving[np.flatnonzero(negative)[int(np.argmin(steps))]] = True
            passive &= ~leaving
            x[~passive] = 0.0
            if not passive.any():
                break
    return x
