"""What waiting would do for a stream of items: the steps that come of it, and how long items wait. Pure.

The items of all steps are one stream. A step takes what waits and new items until as much as an average step
is free; outliers wait for their like (`dataloader_balancers.outliers`), as in a job with `strategy.mode:
relaxed`. The stream's end makes no step: what would still wait there is in none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dataloader_balancers import outliers
from dataloader_svc.cli.simulate_work import Work

_MOST_DRAWS = 8


@dataclass(frozen=True, slots=True)
class Waited:
    """`steps` as waiting makes them; `delay`: steps that a token waited, mean; `oldest`: of an item, most."""

    steps: tuple[Work, ...]
    delay: float
    oldest: int


def waited(steps: Sequence[Work], ranks: int) -> Waited:
    """Outliers are dearer than a rank's equal share of the language model. No steps where none is whole."""
    stream = joined(steps)
    size = int(stream.tokens.sum()) // len(steps)
    line, age, at = np.empty(0, np.int64), np.empty(0, np.int64), 0
    made: list[Work] = []
    delay, tokens, oldest = 0, 0, 0
    while size:
        drawn = _drawn(stream, line, age, at, size, ranks)
        if drawn is None:
            break
        pool, ages, held = drawn
        at = max(at, int(pool.max(initial=-1)) + 1)
        goes = ~held
        made.append(stream.take(pool[goes]))
        sizes = stream.tokens[pool[goes]]
        delay += int((ages[goes] * sizes).sum())
        tokens += int(sizes.sum())
        oldest = max(oldest, int(ages[goes].max(initial=0)))
        line, age = pool[held], ages[held] + 1
    return Waited(tuple(made), delay / tokens if tokens else 0.0, oldest)


def joined(steps: Sequence[Work]) -> Work:
    """The items of all steps, in order."""
    columns = ([getattr(step, name) for step in steps] for name in ("llm", "encoder", "tokens"))
    return Work(*(np.concatenate(column) for column in columns))


def _drawn(
    stream: Work, line: NDArray[np.int64], age: NDArray[np.int64], at: int, size: int, ranks: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]] | None:
    """What waits and new items from `at` on, int64 (n,); the age of each; which of them wait on. None: the
    stream ends before.
    """
    ends = np.cumsum(stream.tokens[at:])
    wanted = size - int(stream.tokens[line].sum())
    for _ in range(_MOST_DRAWS):
        new = 0 if wanted <= 0 else int(np.searchsorted(ends, wanted)) + 1
        if new > len(ends):
            return None
        pool = np.concatenate([line, np.arange(at, at + new)])
        ages = np.concatenate([age, np.zeros(new, np.int64)])
        held = outliers(stream.tokens[pool], ages, stream.llm[pool], ranks, max(size // ranks, 1))
        lacking = size - int(stream.tokens[pool][~held].sum())
        if lacking <= 0:
            return pool, ages, held
        wanted += lacking
    holding = np.flatnonzero(held)  # nearly all are outliers: the oldest go
    before = size - lacking + np.cumsum(stream.tokens[pool[holding]]) - stream.tokens[pool[holding]]
    held[holding[before < size]] = False
    return pool, ages, held
