"""Whether a plan may be used: only where every model that one has says that it gains."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

GAIN = 1e-9
"""Relative gain that counts as one: above the rounding of sums."""


def no_harm(times: ArrayLike) -> int:
    """Index of the plan to use. `times` float (m, c): predicted time of each of c plans under each of
    m models, in any unit of the model's own; plan 0 is what one has without planning: the order of arrival.

    Of the plans that are faster than plan 0 under *every* model, the one whose least gain is largest; plan 0
    where there is none. So a fit that went wrong can only cost the gain, as long as one model is right.
    ValueError for no models or plans, or for times that are not finite and non-negative.
    """
    table = np.asarray(times, np.float64)
    if table.ndim != 2 or not table.size:
        raise ValueError(f"times has shape {table.shape}; expected (models, plans), at least one of each")
    if not (np.isfinite(table).all() and (table >= 0).all()):
        raise ValueError("times must be finite and not negative")
    arrival = table[:, :1]
    ratio = np.where(table > 0, np.inf, 1.0)  # where there is nothing to gain
    np.divide(table, arrival, out=ratio, where=arrival > 0)
    worst = ratio.max(axis=0)
    best = int(np.argmin(worst))
    return best if worst[best] < worst[0] - GAIN else 0
