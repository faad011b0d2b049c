"""Weights of the sources at a step: the schedule of the configuration as a function. Pure.

`Schedule.weights` is what one step draws by; `Schedule.ahead` is its sum over the coming steps, which tells
`select.py` how soon a source will be owed what. Knows nothing of samples.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.config import schema
from dataloader_svc.planner.change import Change

_RAMP_PARTS = 8
"""A ramp ahead is taken as this many straight parts: it only orders what is not owed yet."""

_HORIZON = 256
"""Steps ahead beyond which a change of the weights is not looked at."""

_MAX_KNOTS = 64

Weights = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Ahead:
    """Cumulative weights from a step on, piecewise linear.

    steps      int64 (K,) offsets from the step, beginning 0
    integral   float64 (K, k): sum of the weights over the steps before each offset
    slope      float64 (k,): weights from the last offset on
    """

    steps: NDArray[np.int64]
    integral: Weights
    slope: Weights


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """`mixture.schedule` over sources `names`.

    steps   int64 (E,) first step of each entry, from 0, ascending; of two at one step the second holds
    ramps   bool (E,)  whether weights move evenly from the entry before to this one
    table   float64 (E, k) weights of each entry, each row summing to 1
    """

    names: tuple[str, ...]
    steps: NDArray[np.int64]
    ramps: NDArray[np.bool_]
    table: Weights

    @classmethod
    def of(cls, entries: Sequence[schema.MixtureStep], names: tuple[str, ...]) -> Self:
        """From the configuration; a source that an entry does not name has weight 0 there."""
        table = np.array([[entry.weights.get(name, 0.0) for name in names] for entry in entries])
        return cls(
            names=names,
            steps=np.array([entry.step for entry in entries], np.int64),
            ramps=np.array([entry.ramp == "linear" for entry in entries]),
            table=table / table.sum(axis=1, keepdims=True),
        )

    @property
    def digest(self) -> str:
        """Short hash of the weights at all steps; sources of weight 0 do not count."""
        rows = [
            {name: w for name, w in zip(self.names, row, strict=True) if w} for row in self.table.tolist()
        ]
        entries = list(zip(self.steps.tolist(), self.ramps.tolist(), rows, strict=True))
        return hashlib.blake2b(json.dumps(entries, sort_keys=True).encode(), digest_size=6).hexdigest()

    def changed(self, changes: Iterable[Change]) -> Schedule:
        """With `changes`, one after the other, as entries: no step before a change's is drawn otherwise.

        Entries inside of the steps that a change takes to come are dropped; later ones stand.
        """
        schedule = self
        for change in changes:
            schedule = schedule._changed(change)
        return schedule

    def _changed(self, change: Change) -> Schedule:
        row = np.array([change.weights.get(name, 0.0) for name in self.names])
        if not row.sum() > 0:
            return self  # all its sources have left the job
        before = int(np.searchsorted(self.steps, change.at_step, "left"))
        after = int(np.searchsorted(self.steps, change.stop, "right"))
        rising = before < len(self.steps) and bool(self.ramps[before])
        new: list[tuple[int, bool, Weights]] = []
        if rising or change.over:  # where a ramp ends here, or this one begins
            new.append((change.at_step, rising, self._plain(change.at_step)))
        new.append((change.stop, change.over > 0, row / row.sum()))
        steps, ramps, rows = zip(*new, strict=True)
        return replace(
            self,
            steps=np.concatenate([self.steps[:before], np.array(steps, np.int64), self.steps[after:]]),
            ramps=np.concatenate([self.ramps[:before], np.array(ramps), self.ramps[after:]]),
            table=np.concatenate([self.table[:before], np.stack(rows), self.table[after:]]),
        )

    def weights(self, step: int, gone: NDArray[np.bool_] | None = None) -> Weights:
        """float64 (k,), summing to 1: shares of the step's draws.

        Sources in the mask `gone` have 0 and the others share theirs in proportion. Where all that remain
        have weight 0, the first later (else the last) entry that gives one of them any counts; all 0 when
        every source is gone.
        """
        now = self._plain(step)
        if gone is None or not gone.any():
            return now
        entry = int(np.searchsorted(self.steps, step, "right")) - 1
        order = [*range(entry, len(self.steps)), *range(entry, -1, -1)]
        for row in (now, *(self.table[number] for number in order)):
            left = np.where(gone, 0.0, row)
            if left.sum() > 0:
                return np.asarray(left / left.sum())
        return np.zeros(len(self.names))

    def _plain(self, step: int) -> Weights:
        entry = int(np.searchsorted(self.steps, step, "right")) - 1
        if entry + 1 < len(self.steps) and self.ramps[entry + 1]:
            begin, end = int(self.steps[entry]), int(self.steps[entry + 1])
            share = (step - begin) / (end - begin)
            mixed = (1 - share) * self.table[entry] + share * self.table[entry + 1]
            return np.asarray(mixed)
        return np.asarray(self.table[entry])

    def ahead(self, step: int, gone: NDArray[np.bool_]) -> Ahead:
        """The coming weights, from `step` on; a single part where they do not change any more."""
        offsets = self._change_points(step) - step
        integral = np.zeros((len(offsets), len(self.names)))
        for number, (begin, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
            # The weights are linear between change points: the mean of the first and last step is theirs.
            first, last = self.weights(step + begin, gone), self.weights(step + end - 1, gone)
            integral[number + 1] = integral[number] + (end - begin) * (first + last) / 2
        return Ahead(offsets, integral, self.weights(step + int(offsets[-1]), gone))

    def _change_points(self, step: int) -> NDArray[np.int64]:
        """Steps from `step` on at which the slope of the cumulative weights changes, `step` first."""
        points = [step]
        for entry in range(int(np.searchsorted(self.steps, step, "right")), len(self.steps)):
            begin, end = points[-1], int(self.steps[entry])
            if begin == end:
                continue  # two entries of one step
            if begin > step + _HORIZON or (end > step + _HORIZON and not self.ramps[entry]):
                break
            if self.ramps[entry]:
                # The first step by itself: its end is known exactly, the others' only nearly.
                parts = np.unique(np.linspace(begin, end, _RAMP_PARTS + 1).astype(np.int64))
                points += sorted({begin + 1, *parts[1:].tolist()})
            elif len(points) == 1:
                points += sorted({begin + 1, end})
            else:
                points.append(end)
            if len(points) > _MAX_KNOTS:
                break
        return np.array(points, np.int64)
