"""Ranks that are not alike, and how many sequences each may have. Pure: numbers in, arrays out.

A job says it by dp rank (`strategy.ranks`): speeds by phase, and the most sequences of a step that a rank has
memory for. A rank at 0 gets nothing. `place.py` places by it; `check_mesh` there compares it with the mesh
that ranks joined with.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.config.schema import Strategy
from dataloader_svc.errors import MeshError


@dataclass(frozen=True, slots=True)
class Unlike:
    """Of each dp rank: speed in the language model and in the encoders, 0 in both where it gets nothing; and
    the most sequences of a step, None: any number.
    """

    llm: tuple[float, ...]
    encoder: tuple[float, ...]
    sequences: tuple[int, ...] | None

    @classmethod
    def of(cls, strategy: Strategy) -> Self | None:
        """None where all ranks are alike. A phase that nothing is said of goes as fast as the other."""
        ranks = strategy.ranks
        if ranks is None:
            return None
        llm = ranks.llm or ranks.encoder or [1.0] * len(ranks.sequences or ())
        most = None if ranks.sequences is None else tuple(ranks.sequences)
        return cls(tuple(llm), tuple(ranks.encoder or llm), most)

    @property
    def speeds(self) -> NDArray[np.float64]:
        """(2, dp): language model, encoders."""
        return np.array([self.llm, self.encoder], np.float64)

    @property
    def slow(self) -> NDArray[np.float64]:
        """(2, dp): time that a unit of work takes; 0 where none is done."""
        speeds = self.speeds
        return np.divide(1.0, speeds, out=np.zeros_like(speeds), where=speeds > 0)

    @property
    def most(self) -> NDArray[np.float64]:
        """(dp,): sequences that each rank may have; inf: any number."""
        caps = np.full(len(self.llm), np.inf)
        if self.sequences is not None:
            caps = np.array(self.sequences, np.float64)
        return np.where(np.array(self.llm) > 0, caps, 0.0)

    def check(self, dp: int, sequences: int | None) -> None:
        """MeshError where there are more or fewer ranks than these, or no room for the step's sequences."""
        if len(self.llm) != dp:
            raise MeshError(
                f"strategy.ranks is of {len(self.llm)} dp ranks and the mesh has dp={dp}: give each list one "
                "entry for each dp rank"
            )
        room = float(self.most.sum())
        if sequences is not None and room < sequences:
            raise MeshError(
                f"strategy.ranks.sequences leaves room for {room:.0f} sequences, on ranks that are not at 0, "
                f"and a step has {sequences}: raise it, or lower global_batch"
            )


def counts_allowed(
    count: int, dp: int, per_microbatch: int, *, equal: bool, ranks: Unlike | None
) -> NDArray[np.int64]:
    """int64 (dp,): most of `count` sequences that each dp rank may get.

    equal  as even as memory allows: whole microbatches, as few as hold all; else as many as it likes
    """
    most = np.full(dp, float(count)) if ranks is None else np.minimum(ranks.most, count)
    if not equal:
        return most.astype(np.int64)
    microbatches = _least(most, count, per_microbatch)
    return np.minimum(most, microbatches * per_microbatch).astype(np.int64)


def _least(most: NDArray[np.float64], count: int, size: int) -> int:
    """The least k for which ranks that take at most `most` (dp,) and k * size hold `count` in all."""
    wanted = min(count, float(most.sum()))
    return bisect_left(range(count), wanted, key=lambda k: float(np.minimum(most, k * size).sum()))


def in_rounds(count: int, most: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64 (count,): the rank of each sequence in order of arrival, one to each rank in turn while it may
    have more. With as many for all that is i mod R.
    """
    most = np.minimum(most, _least(most.astype(np.float64), count, 1))
    rounds = np.concatenate([np.arange(number) for number in most.tolist()])
    rank = np.repeat(np.arange(len(most)), most)
    return rank[np.lexsort((rank, rounds))][:count]
