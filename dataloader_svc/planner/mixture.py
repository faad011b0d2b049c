"""Weights of the sources at a step: the schedule of the configuration as a function. Pure.

`Schedule.weights` is what one step draws by; `Schedule.ahead` is its sum over the coming steps, which tells
`select.py` how soon a source will be owed what. Knows nothing of samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.config import schema

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

    steps   int64 (E,) first step of each entry, from 0, ascending
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
