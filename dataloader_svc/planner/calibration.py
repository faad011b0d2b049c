"""From the times that ranks report to the costs that steps are placed by. Keeps no clock; blocks nowhere
but in `read_factors`.

Packing never follows what is learned here: which documents share a sequence must not depend on timing. A
placement may, and must be the same whenever it is made again. So *factors*, one for each part of the work,
hold from a step on, are in the store before that step is, and count for every session of their generation:
decision 0007.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dataloader_balancers.calibrate import Calibrator
from dataloader_client._pb import planner_service_pb2
from dataloader_svc.planner.place import MeshSize
from dataloader_svc.store.base import Store

log = logging.getLogger(__name__)

KEPT_STEPS = 64
"""Placed steps whose reports may still come; a trainer is behind its plans by some `planner.ahead`."""

PATIENCE_STEPS = 4
"""A step is taken as it is when reports of one so much later come: a rank that is away reports nothing."""

CHANGE = 0.05
"""What a part must have moved by against the rest, for new factors: less changes no placement for the better
(docs/balancing.md says what an error costs).
"""

MOST_ENTRIES = 1000
"""Of a generation; then factors stay as they are."""

MOST_ERROR = 0.25
"""Median error of a fit beyond which it is none."""


@dataclass(frozen=True, slots=True)
class Factors:
    """What the parts of the work are multiplied with from `from_step` on; only their ratios matter. No parts:
    the configured costs alone.
    """

    from_step: int
    parts: tuple[float, ...]
    error: float

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        values = json.loads(data)
        return cls(values["from_step"], tuple(values["parts"]), values["error"])


def factors_log(generation: int) -> str:
    """Name of the log of a generation's factors, numbered from 0."""
    return f"factors/{generation}"


def read_factors(store: Store, generation: int) -> tuple[Factors, ...]:
    """Those of a generation, in order of the steps from which they hold. Blocks."""
    rows = store.read(factors_log(generation), 0, MOST_ENTRIES)
    return tuple(Factors.from_json(value) for _, value in rows)


def factors_at(entries: Sequence[Factors], step: int) -> Factors | None:
    """Those that hold at a step, out of a generation's in order; None: the configured costs alone."""
    held = [entry for entry in entries if entry.from_step <= step]
    return held[-1] if held else None


@dataclass(slots=True)
class _Step:
    """A placed step: work (dp, parts), and what was reported of it."""

    work: NDArray[np.float64]
    own: NDArray[np.float64] = field(init=False)  # (dp,) seconds, NaN: nobody said
    whole: float = 0.0
    reports: int = 0

    def __post_init__(self) -> None:
        self.own = np.full(len(self.work), np.nan)


class Calibration:
    """Takes in placements and reports, in any order of steps; gives factors when they should change."""

    def __init__(self) -> None:
        self._session = 0
        self._world = 0
        self._steps: OrderedDict[int, _Step] = OrderedDict()
        self._calibrator: Calibrator | None = None
        self._named: frozenset[int] = frozenset()
        self._mean: NDArray[np.float64] | None = None  # work of a rank by part, over all steps

    @property
    def calibrator(self) -> Calibrator | None:
        """The fit so far; None before the first step was placed."""
        return self._calibrator

    def placed(self, session: int, step: int, mesh: MeshSize, work: NDArray[np.float64]) -> None:
        """A step goes out to ranks. Another session's reports are forgotten; another dp begins a new fit."""
        if session != self._session:
            self._session, self._world = session, mesh.dp * mesh.cp * mesh.tp * mesh.pp
            self._steps.clear()
        known = self._calibrator
        if known is None or (known.num_ranks, known.parts) != work.shape:
            self._calibrator = Calibrator(*work.shape)
            self._mean = None
        if step not in self._steps:  # several constructors ask for it
            self._steps[step] = _Step(work)
            while len(self._steps) > KEPT_STEPS:
                self._steps.popitem(last=False)

    def reported(self, times: planner_service_pb2.StepTimes) -> None:
        """Take in what constructors pass on. What is of no step that is known here is ignored."""
        if times.session != self._session:
            return
        rows = zip(times.step, times.dp_rank, times.step_time, times.compute_time, strict=True)
        for number, dp_rank, step_time, compute_time in rows:
            step = self._steps.get(number)
            if step is None or dp_rank >= len(step.own):
                continue
            step.reports += 1
            step.whole = max(step.whole, step_time)
            if compute_time > 0:  # of the ranks that share sequences, the slowest
                step.own[dp_rank] = np.fmax(step.own[dp_rank], compute_time)
        if times.step:
            self._take(max(times.step))

    def _take(self, latest: int) -> None:
        """Give the calibrator what is complete, or old enough, in order of steps."""
        for number in sorted(self._steps):
            step = self._steps[number]
            late = step.reports > 0 and number <= latest - PATIENCE_STEPS
            if step.reports >= self._world or late:
                del self._steps[number]
                self._observe(step)

    def _observe(self, step: _Step) -> None:
        calibrator = self._calibrator
        assert calibrator is not None, "a step was placed"
        mean = step.work.mean(axis=0)
        self._mean = mean if self._mean is None else 0.9 * self._mean + 0.1 * mean
        before = calibrator.drifts
        if np.isfinite(step.own).any():
            calibrator.observe_own(step.work, step.own)
        else:
            calibrator.observe_step(step.work, step.whole)
        if calibrator.drifts > before:
            log.warning("planner: step times of all ranks have left the fit; it is made anew")
        self._name_slow(calibrator)

    def _name_slow(self, calibrator: Calibrator) -> None:
        slow = calibrator.ranks.factors()
        for rank in sorted(slow.keys() - self._named):
            log.warning("planner: dp rank %d is slow: %.2f times what others take", rank, slow[rank])
        for rank in sorted(self._named - slow.keys()):
            log.info("planner: dp rank %d is no longer slow", rank)
        self._named = frozenset(slow)

    def proposal(self, now: Factors | None) -> tuple[tuple[float, ...], float] | None:
        """(factors, error of the fit) where they should take the place of `now`'s; else None."""
        fit = None if self._calibrator is None else self._calibrator.fit
        if fit is None or self._mean is None or fit.error > MOST_ERROR:
            return None
        wanted = _relative(np.asarray(fit.per_unit), self._mean)
        held = None if now is None or len(now.parts) != len(self._mean) else np.asarray(now.parts)
        before = _relative(np.ones(len(self._mean)) if held is None else held, self._mean)
        if wanted is None or before is None:
            return None
        some = self._mean > 0
        if not (np.abs(wanted - before) > CHANGE * np.maximum(before, 1e-300))[some].any():
            return None
        return tuple(wanted.tolist()), fit.error

    def to_message(self, now: Factors | None) -> planner_service_pb2.Calibration:
        """For Status. `now`: the factors that the next step is placed by."""
        message = planner_service_pb2.Calibration()
        if now is not None:
            message.factors.extend(now.parts)
            message.from_step = now.from_step
        calibrator = self._calibrator
        if calibrator is None:
            return message
        message.steps, message.drifts = calibrator.steps, calibrator.drifts
        message.slow.update(calibrator.ranks.factors())
        fit = calibrator.fit
        if fit is not None:
            message.fixed, message.error, message.outliers = fit.fixed, fit.error, fit.outliers
            message.per_unit.extend(fit.per_unit)
            message.observations = fit.rows
        return message


def _relative(per_unit: NDArray[np.float64], mean: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Per unit of the whole, so that a rank with the mean's work costs what it did; None where all is 0."""
    total, scaled = float(mean.sum()), float((per_unit * mean).sum())
    return per_unit * (total / scaled) if scaled > 0 else None
