"""When times no longer follow the fit: for the whole job, or for one rank of it.

Cumulative sums (Page 1954, Continuous inspection schemes): residuals, in deviations, beyond a slack are
added up, never below zero, and an alarm is raised where the sum reaches a height. With slack k and height h a
stream of independent normal residuals gives about one false alarm in exp(2 k h) steps; a shift of d
deviations is found within some h / (d - k). Residuals are clipped to `CLIP` deviations, so that it takes
several of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

CLIP = 3.0
SLACK = 1.0
HEIGHT = 12.0
"""With the slack: a false alarm in 3e10 observations, a shift of 3 deviations after 6 of them."""


@dataclass(slots=True)
class Cusum:
    """Of one stream, to both sides."""

    up: float = 0.0
    down: float = 0.0

    def add(self, residual: float) -> bool:
        """Take in a residual in deviations; whether it is an alarm, after which it starts afresh."""
        clipped = min(max(residual, -CLIP), CLIP)
        self.up = max(0.0, self.up + clipped - SLACK)
        self.down = max(0.0, self.down - clipped - SLACK)
        if max(self.up, self.down) < HEIGHT:
            return False
        self.up = self.down = 0.0
        return True


@dataclass(slots=True)
class SlowRanks:
    """Which ranks take longer for their work than the others for theirs, and by how much.

    A rank is slow from the alarm on until its sum is back at zero, which takes about as long. Its excess is
    a running mean over some eight steps.
    """

    num_ranks: int
    sums: NDArray[np.float64] = field(init=False)
    slow: NDArray[np.bool_] = field(init=False)
    excess: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.sums = np.zeros(self.num_ranks)
        self.slow = np.zeros(self.num_ranks, np.bool_)
        self.excess = np.zeros(self.num_ranks)

    def add(self, log_ratio: ArrayLike, deviation: float) -> None:
        """Take in a step: log(measured / predicted) (num_ranks,), NaN for ranks that reported nothing.

        What all ranks share is no rank's own: it is held against their median. Fewer than two say nothing.
        """
        ratios = np.asarray(log_ratio, np.float64)
        known = np.isfinite(ratios)
        if known.sum() < 2:
            return
        own = ratios[known] - np.median(ratios[known])
        self.excess[known] += (own - self.excess[known]) / 8
        steps = np.clip(own / deviation, -CLIP, CLIP) - SLACK
        self.sums[known] = np.clip(self.sums[known] + steps, 0.0, HEIGHT)
        self.slow = np.where(self.slow, self.sums > 0, self.sums >= HEIGHT)

    def factors(self) -> dict[int, float]:
        """Rank -> time over that of the others for like work, of the slow ones; slowest first."""
        ranks = np.flatnonzero(self.slow)
        order = ranks[np.argsort(-self.excess[ranks], kind="stable")]
        return {int(rank): float(np.exp(self.excess[rank])) for rank in order}

    def to_dict(self) -> dict[str, Any]:
        """As JSON-able values."""
        return {
            "sums": self.sums.tolist(),
            "slow": np.flatnonzero(self.slow).tolist(),
            "excess": self.excess.tolist(),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        found = cls(len(values["sums"]))
        found.sums = np.asarray(values["sums"], np.float64)
        found.slow[values["slow"]] = True
        found.excess = np.asarray(values["excess"], np.float64)
        return found
