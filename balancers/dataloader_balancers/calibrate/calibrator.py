"""The fit of a running job, over a bounded history of its steps.

Ranks report one of two things. *Their own* time: what this rank's work of the step took, without waiting for
others. Or the *step's*: where all ranks meet in every step, each measures the same, which is the time of the
rank with the most to do. Which one that was depends on the fit itself, so for such a step the few ranks are
kept that could be it (the most of any part, of all parts together, by model and by fit), the dearest under
the current fit is taken, and the fit is repeated until it no longer changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers.calibrate.drift import Cusum, SlowRanks
from dataloader_balancers.calibrate.fit import Fit, fit_seconds

RANKS_A_STEP = 16
"""Ranks of a step that are kept, spread over their work: more say little that is new."""

_ALTERNATIONS = 8
_LEAST_DEVIATION = 0.01
"""Of a log residual: below a percent, a difference between ranks is not worth a name."""


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """`seconds` are those of the one of `work` (k, p) that takes longest: a rank's own time where k is 1."""

    work: NDArray[np.float64]
    seconds: float


class Calibrator:
    """Takes in steps, gives the fit.

    num_ranks   data-parallel ranks
    parts       of work that each has (columns of `work`)
    capacity    observations that are kept, latest first
    least       observations before there is a fit
    every       steps between fits

    `fit` is None until there is one. `drifts` counts how often times of all ranks left the fit for good: then
    the history is dropped, so that the next fit is of what the hardware does now.
    """

    def __init__(
        self, num_ranks: int, parts: int, *, capacity: int = 1024, least: int = 32, every: int = 8
    ) -> None:
        if min(num_ranks, parts, capacity, least, every) < 1:
            raise ValueError("num_ranks, parts, capacity, least and every are at least 1")
        self.num_ranks, self.parts = num_ranks, parts
        self._capacity, self._least, self._every = capacity, least, every
        self._history: deque[Observation] = deque(maxlen=capacity)
        self._since = 0  # steps since the last fit
        self._shift = Cusum()
        self._current = True  # the fit is of what the hardware does now, as far as is known
        self.fit: Fit | None = None
        self.drifts = 0
        self.steps = 0
        self.ranks = SlowRanks(num_ranks)

    def observe_own(self, work: ArrayLike, seconds: ArrayLike) -> None:
        """A step in which ranks measured their own work: `work` (num_ranks, p), `seconds` (num_ranks,), NaN
        for those that said nothing. Times that are not positive and finite are taken for silence.
        """
        table = self._work(work)
        times = np.asarray(seconds, np.float64)
        if times.shape != (self.num_ranks,):
            raise ValueError(f"seconds has shape {times.shape}; expected ({self.num_ranks},)")
        known = np.flatnonzero(np.isfinite(times) & (times > 0))
        if not len(known):
            return
        if self.fit is not None:
            ratio = np.full(self.num_ranks, np.nan)
            ratio[known] = np.log(times[known] / np.maximum(self.fit.predict(table[known]), 1e-300))
            self.ranks.add(ratio, self._deviation())
            self._judge(float(np.median(ratio[known])))
        steady = known[~self.ranks.slow[known]]
        chosen = steady if len(steady) else known
        order = chosen[np.argsort(table[chosen].sum(axis=1), kind="stable")]
        spread = np.unique(np.linspace(0, len(order) - 1, min(RANKS_A_STEP, len(order))).astype(np.int64))
        self._history.extend(Observation(table[[rank]], float(times[rank])) for rank in order[spread])
        self._taken()

    def observe_step(self, work: ArrayLike, seconds: float) -> None:
        """A step that took `seconds` on all ranks, which had `work` (num_ranks, p)."""
        table = self._work(work)
        if not (np.isfinite(seconds) and seconds > 0):
            return
        observation = Observation(table[self._could_be_dearest(table)], float(seconds))
        if self.fit is not None:
            predicted = float(self.fit.predict(observation.work).max())
            self._judge(float(np.log(seconds / max(predicted, 1e-300))))
        self._history.append(observation)
        self._taken()

    def _work(self, work: ArrayLike) -> NDArray[np.float64]:
        table = np.asarray(work, np.float64)
        if table.shape != (self.num_ranks, self.parts):
            raise ValueError(f"work has shape {table.shape}; expected ({self.num_ranks}, {self.parts})")
        if not (np.isfinite(table).all() and (table >= 0).all()):
            raise ValueError("work must be finite and not negative")
        return table

    def _could_be_dearest(self, table: NDArray[np.float64]) -> NDArray[np.int64]:
        views = [table.sum(axis=1), *table.T]
        if self.fit is not None:
            views.append(self.fit.predict(table))
        return np.unique([int(np.argmax(view)) for view in views])

    def _deviation(self) -> float:
        """Of log(measured / predicted), where all is well."""
        assert self.fit is not None, "asked with a fit"
        return max(1.4826 * self.fit.error, _LEAST_DEVIATION)

    def _judge(self, log_ratio: float) -> None:
        """Whether the job as a whole has left the fit."""
        if self._current and self._shift.add(log_ratio / self._deviation()):
            self.drifts += 1
            self._history.clear()
            self._current = False  # until there is another fit, this one's residuals say nothing new

    def _taken(self) -> None:
        self.steps += 1
        self._since += 1
        due = self.fit is None or not self._current or self._since >= self._every
        if due and len(self._history) >= self._least:
            self.fit, self._since, self._current = self._fitted(), 0, True

    def _fitted(self) -> Fit:
        seconds = np.array([each.seconds for each in self._history])
        work = np.array([each.work[np.argmax(each.work.sum(axis=1))] for each in self._history])
        found = fit_seconds(work, seconds)
        if all(len(each.work) == 1 for each in self._history):
            return found
        for _ in range(_ALTERNATIONS):
            dearest = np.array([each.work[np.argmax(found.predict(each.work))] for each in self._history])
            if np.array_equal(dearest, work):
                break
            work, found = dearest, fit_seconds(dearest, seconds)
        return found

    # ---- state

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON-able values; some 100 KB where the history is full."""
        fit = self.fit
        return {
            "sizes": [self.num_ranks, self.parts, self._capacity, self._least, self._every],
            "history": [[each.work.tolist(), each.seconds] for each in self._history],
            "counts": [self._since, self.drifts, self.steps],
            "current": self._current,
            "shift": [self._shift.up, self._shift.down],
            "fit": None
            if fit is None
            else [fit.fixed, list(fit.per_unit), fit.error, fit.outliers, fit.rows],
            "ranks": self.ranks.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`: goes on as the one it was taken from would."""
        num_ranks, parts, capacity, least, every = values["sizes"]
        found = cls(num_ranks, parts, capacity=capacity, least=least, every=every)
        found._history.extend(Observation(np.array(work), seconds) for work, seconds in values["history"])
        found._since, found.drifts, found.steps = values["counts"]
        found._current = values["current"]
        found._shift = Cusum(*values["shift"])
        found.ranks = SlowRanks.from_dict(values["ranks"])
        if values["fit"] is not None:
            fixed, per_unit, error, outliers, rows = values["fit"]
            found.fit = Fit(fixed, tuple(per_unit), error, outliers, rows)
        return found
