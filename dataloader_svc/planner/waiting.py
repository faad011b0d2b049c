"""Relaxed strategies: outliers wait for their like, and what that costs. Pure.

A document that is dearer than a whole average sequence makes its step late, unless others of the step are as
dear. `dataloader_balancers.outliers` says which should wait; here is what a job says of it, and two figures:
how long a token of a step had waited, and how far what was placed so far is from the mixture, of which what
was drawn is never more than a sample away. What waits stands in the state (`state.py`) with its age, so a job
resumes with the very line that it had. `select.py` draws as much more as waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dataloader_balancers import outliers
from dataloader_svc.config.schema import Strategy
from dataloader_svc.planner.pieces import Pieces
from dataloader_svc.planner.state import State


@dataclass(frozen=True, slots=True)
class Wait:
    """How outliers wait: at most `max_age` steps; they cost more than an equal share by `tolerance` of it,
    and go once they have waited enough for what they cost the step, by `patience`.
    """

    max_age: int
    tolerance: float
    patience: float

    @classmethod
    def of(cls, strategy: Strategy) -> Self | None:
        """None where the strategy is strict."""
        wait = strategy.waiting
        return None if wait is None else cls(wait.max_age, wait.tolerance, wait.patience)


def held(
    wait: Wait,
    length: NDArray[np.int64],
    age: NDArray[np.int64],
    costs: NDArray[np.float64],
    num_sequences: int,
    mean_length: int,
    longest: int,
) -> NDArray[np.bool_]:
    """Which pieces wait on, bool (n,), of those for a step of `num_sequences` of `mean_length` tokens, and of
    `longest` at most.

    length, age  int64 (n,); costs  float64 (n,), of the language model
    """
    return outliers(
        length,
        age,
        costs,
        num_sequences,
        max(mean_length, 1),
        longest=longest,
        tolerance=wait.tolerance,
        patience=wait.patience,
        max_age=wait.max_age,
    )


def mean_delay(placed: Pieces, age: NDArray[np.int64]) -> float:
    """Steps that a token of the step had waited, on average. `age` int64 (n,) of the pieces."""
    tokens = placed.tokens
    return float((age * placed.length).sum()) / tokens if tokens else 0.0


def mixture_error(after: State, *, by_samples: bool) -> float:
    """Largest distance of a source's share of all that was placed so far from its target, 0 to 1.

    by_samples  shares are of samples, not of tokens; one whose parts wait has not been placed
    """
    sources = after.sources.values()
    drawn = np.array([source.samples if by_samples else source.tokens for source in sources], np.float64)
    target = drawn + [source.credit for source in sources]
    waiting = after.waiting
    if by_samples:
        first = np.flatnonzero(np.diff(waiting.sample, prepend=-1))
        waits = np.bincount(waiting.source[first], minlength=len(drawn))
    else:
        waits = np.bincount(waiting.source, waiting.length, len(drawn))
    placed = drawn - waits
    if placed.sum() <= 0 or target.sum() <= 0:
        return 0.0
    return float(np.abs(placed / placed.sum() - target / target.sum()).max())
