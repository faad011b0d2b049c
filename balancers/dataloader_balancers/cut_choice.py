"""Which cut of a sequence over cp ranks is faster: predicted time of each rank, and the choice by it.

Cut by document, all ranks have the same attention to do, in more and shorter runs of tokens; cut by sequence,
each has two long runs, and ranks with the ends of long documents have more to do. Which is faster depends on
the documents and on how well the kernel works on short runs, so WLB-LLM chooses for each sequence by
predicted time (arXiv 2503.17924, section 5.3). Here that is a formula in place of its table of measurements:

    time of a rank = linear * tokens + 2 quadratic * pairs computed + per_run * runs

and the same for the pairs within each sliding window that the cost has, at its own coefficient.

A *run* is a range of consecutive tokens of one document, which is one call's block of queries. A kernel works
in tiles of `tile` queries by `tile` keys and computes those whole that the causal mask touches
(FlashAttention-2, arXiv 2307.08691, section 3.1): a run of q queries that begins at token s of its document
computes the sum over its tiles of queries of tile * (the last query's keys, rounded up to tiles). With
`tile` 1 and `per_run` 0, pairs are those of causal attention, exactly. Pure; knows nothing of the network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers.context_parallel import CUTS, per_document, per_sequence
from dataloader_balancers.cost import LlmCost


@dataclass(frozen=True, slots=True)
class Kernel:
    """What an attention kernel makes of short runs.

    tile      queries and keys of a tile; 128 as FlashAttention has at the usual head sizes
    per_run   fixed time of each run, in the unit of the cost: launch, or reading keys anew. 0: none
    multiple  tokens that runs should be multiples of; 1: any
    """

    tile: int = 128
    per_run: float = 0.0
    multiple: int = 1

    def __post_init__(self) -> None:
        if self.tile < 1 or self.multiple < 1:
            raise ValueError(f"tile is {self.tile} and multiple {self.multiple}; both at least 1")
        if not (math.isfinite(self.per_run) and self.per_run >= 0):
            raise ValueError(f"per_run is {self.per_run}; finite and not negative")


@dataclass(frozen=True, slots=True, eq=False)
class CutLoad:
    """What each of cp ranks gets of one sequence; all arrays (cp,).

    tokens  int64
    pairs   int64, queries times keys that causal attention needs, exactly
    tiles   int64, those that are computed, in whole tiles; of layers without a window
    runs    int64, ranges of consecutive tokens of one document
    time    float64, predicted, in the unit of the cost
    """

    tokens: NDArray[np.int64]
    pairs: NDArray[np.int64]
    tiles: NDArray[np.int64]
    runs: NDArray[np.int64]
    time: NDArray[np.float64]

    @property
    def dearest(self) -> float:
        """Time of the slowest rank, which the others wait for; 0 without ranks."""
        return float(self.time.max(initial=0.0))


def cut_load(
    cu_seqlens: ArrayLike, parts: tuple[ArrayLike, ...], cost: LlmCost, kernel: Kernel = Kernel()
) -> CutLoad:
    """Exact load of each rank under a cut: `parts` as a Cut returns them for `cu_seqlens` int (d+1,)."""
    bounds = np.asarray(cu_seqlens, np.int64)
    windows = [window for window, _ in cost.windowed]
    found = [_rank_load(bounds, np.asarray(part, np.int64), kernel.tile, windows) for part in parts]
    tokens, pairs, runs, tiles, *seen = np.array(found, np.int64).reshape(len(found), 4 + len(windows)).T
    time = cost.linear * tokens + 2.0 * cost.quadratic * tiles + kernel.per_run * runs
    for (_, quadratic), computed in zip(cost.windowed, seen, strict=True):
        time = time + 2.0 * quadratic * computed
    return CutLoad(tokens, pairs, tiles, runs, time)


def _rank_load(
    bounds: NDArray[np.int64], part: NDArray[np.int64], tile: int, windows: Sequence[float]
) -> list[int]:
    """[tokens, pairs, runs, pairs in whole tiles, and of those the ones in each window] of the tokens `part`,
    ascending.
    """
    if not len(part):
        return [0] * (4 + len(windows))
    document = np.searchsorted(bounds, part, side="right") - 1
    new = np.ones(len(part), np.bool_)
    new[1:] = (np.diff(part) != 1) | (np.diff(document) != 0)
    first = np.flatnonzero(new)
    length = np.diff(np.append(first, len(part)))
    begin = part[first] - bounds[document[first]]
    pairs = int((length * begin + length * (length + 1) // 2).sum())
    # One entry a tile of queries: the keys of its last query, in whole tiles.
    count = -(-length // tile)
    run = np.repeat(np.arange(len(first)), count)
    number = np.arange(len(run)) - np.repeat(np.cumsum(count) - count, count)
    keys = -(-(begin[run] + np.minimum((number + 1) * tile, length[run])) // tile)  # in tiles
    result = [len(part), pairs, len(first), int(keys.sum()) * tile * tile]
    for window in windows:  # of a tile's queries the first sees farthest back
        before = np.maximum(0, begin[run] + number * tile + 1 - int(window)) // tile
        result.append(int((keys - before).sum()) * tile * tile)
    return result


@dataclass(frozen=True, slots=True, eq=False)
class ChosenCut:
    """The faster cut of one sequence.

    name   key of CUTS
    parts  cp arrays int32: what the cut returned
    loads  name -> load, of each cut that was possible
    """

    name: str
    parts: tuple[NDArray[np.int32], ...]
    loads: Mapping[str, CutLoad]

    @property
    def load(self) -> CutLoad:
        """Of the chosen cut."""
        return self.loads[self.name]


def choose_cut(
    cu_seqlens: ArrayLike, cp: int, cost: LlmCost, kernel: Kernel = Kernel(), *, name: str | None = None
) -> ChosenCut:
    """The cut whose slowest rank is predicted to be the fastest; of equal ones the one with fewer runs.

    `cu_seqlens` int (d+1,) of one sequence. A cut by sequence is possible only where the sequence is a
    multiple of 2 cp `kernel.multiple`; the other always. `name` asks for one cut. ValueError for bounds that
    are none, and for a name that is unknown or whose cut is not possible. A cut of the user's own in CUTS
    is one more to choose from.
    """
    if name is not None and name not in CUTS:
        raise ValueError(f"unknown cut {name!r}; known: {', '.join(CUTS)}")
    total = int(np.asarray(cu_seqlens, np.int64)[-1]) if np.size(cu_seqlens) else 0
    divides = total % (2 * max(cp, 1) * kernel.multiple) == 0
    parts = {
        each: _cut(each, cu_seqlens, cp, kernel.multiple)
        for each, cut in CUTS.items()
        if name == each or (name is None and cut is not cheaper and (cut is not per_sequence or divides))
    }
    loads = {each: cut_load(cu_seqlens, part, cost, kernel) for each, part in parts.items()}
    best = min(loads, key=lambda each: (loads[each].dearest, int(loads[each].runs.max(initial=0)), each))
    return ChosenCut(best, parts[best], MappingProxyType(loads))


def cheaper(cu_seqlens: ArrayLike, cp: int) -> tuple[NDArray[np.int32], ...]:
    """A Cut: `choose_cut` with the default kernel. Ranks have as many tokens under either cut, and runs are
    free, so the model's coefficients do not matter.
    """
    return choose_cut(cu_seqlens, cp, LlmCost(0.0, 0.5)).parts


CUTS["cheaper"] = cheaper


def _cut(name: str, cu_seqlens: ArrayLike, cp: int, multiple: int) -> tuple[NDArray[np.int32], ...]:
    """`CUTS[name]`; a cut of the user's own need know nothing of multiples."""
    for cut in (per_document, per_sequence):
        if CUTS[name] is cut:
            return cut(cu_seqlens, cp, multiple)
    return CUTS[name](cu_seqlens, cp)
