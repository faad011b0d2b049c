"""`choose_cut` for all sequences of a step at once, by formulas in place of token indices.

A plan of 100,000 documents must not list 200 million tokens to know which cut of each sequence is faster.
Where the runs of each rank begin and end follows from the documents' lengths (`context_parallel.py`), and the
tiles of a run have a closed form: b tokens into its document, q queries in tiles of t see, in whole tiles,

    ceil((b + t) / t) + ceil((b + 2 t) / t) + ... + ceil((b + q) / t)

keys, the sum of an arithmetic series and one more where q is no multiple of t. All in whole numbers: the same
times, to the last bit, as `cut_load` has by looking at every token, which tests hold it to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers.cost import LlmCost
from dataloader_balancers.cut_choice import Kernel

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NAMES = ("per_document", "per_sequence")
_DEFAULT = Kernel()
_BLOCK = 8192  # documents times ranks that are looked at together, so that all of it stays in the cache


@dataclass(frozen=True, slots=True, eq=False)
class ChosenCuts:
    """The faster cut of each of a step's sequences.

    choice  int8 (s,): index into NAMES, keys of CUTS
    time    float64 (2, s): predicted time of the slowest rank under each of NAMES, in the unit of the cost;
            inf where a sequence does not divide into 2 cp chunks
    """

    choice: NDArray[np.int8]
    time: Floats

    @property
    def dearest(self) -> Floats:
        """float64 (s,): under the chosen cut."""
        dearest: Floats = self.time.min(axis=0)
        return dearest


def choose_cuts(
    lengths: ArrayLike, documents: ArrayLike, cp: int, cost: LlmCost, kernel: Kernel = _DEFAULT
) -> ChosenCuts:
    """The cut of each sequence whose slowest rank is predicted to be the fastest, as `choose_cut` has it.

    lengths    int (d,), tokens of each document, one sequence after another
    documents  int (s,), how many of them each sequence has; together d
    cp         ranks of a sequence, from 1
    kernel     of `multiple` 1: others cut by rules that have no formula (`choose_cut`)

    Takes d times cp: 100,000 documents over 4 ranks some 30 ms. ValueError names what is wrong.
    """
    tokens, count = np.asarray(lengths, np.int64), np.asarray(documents, np.int64)
    _check(tokens, count, cp, kernel)
    bounds = np.append(0, np.cumsum(count))  # documents of sequence i: bounds[i] to bounds[i + 1]
    begins = np.append(0, np.cumsum(tokens))  # of documents, in tokens of the step
    runs = _Runs(bounds, cp, kernel.tile, [int(window) for window, _ in cost.windowed])
    by_document = runs.load(tokens)
    by_sequence = runs.load_of_pieces(*_by_sequence(begins, begins[bounds], cp))
    time, most = [], []
    for load in (by_document, by_sequence):
        held, number, tiles, *seen = load
        spent = cost.linear * held + 2.0 * cost.quadratic * tiles + kernel.per_run * number
        for (_, quadratic), computed in zip(cost.windowed, seen, strict=True):
            spent = spent + 2.0 * quadratic * computed
        time.append(spent.max(axis=1))
        most.append(number.max(axis=1))
    time[1] = np.where(np.diff(begins[bounds]) % (2 * cp), np.inf, time[1])
    better = (time[1] < time[0]) | ((time[1] == time[0]) & (most[1] < most[0]))
    return ChosenCuts(better.astype(np.int8), np.stack(time))


def _check(tokens: Ints, count: Ints, cp: int, kernel: Kernel) -> None:
    if tokens.ndim != 1 or count.ndim != 1:
        raise ValueError(f"lengths have shape {tokens.shape}, documents {count.shape}; one dimension each")
    for what, values in (("document", tokens), ("sequence", count)):
        wrong = np.flatnonzero(values < 0)
        if len(wrong):
            unit = "tokens" if what == "document" else "documents"
            raise ValueError(f"{what} {wrong[0]} has {values[wrong[0]]} {unit}; numbers from 0")
    if int(count.sum()) != len(tokens):
        raise ValueError(f"sequences have {int(count.sum())} documents in all, of {len(tokens)}")
    if cp < 1:
        raise ValueError(f"cp is {cp}; at least 1")
    if kernel.multiple != 1:
        raise ValueError(f"multiple is {kernel.multiple}; here only 1: use choose_cut, a sequence at a time")


def _turns(tokens: Ints, bounds: Ints, cp: int) -> Ints:
    """Int (d,): how many tokens of a sequence were dealt one by one before each of its documents."""
    rest = tokens % (2 * cp)
    before = np.append(0, np.cumsum(rest))
    turns: Ints = before[:-1] - np.repeat(before[bounds[:-1]], np.diff(bounds))
    return turns


def _by_document(tokens: Ints, turn: Ints, cp: int) -> tuple[Ints, Ints, Ints]:
    """Runs of each rank in each document, counted from its first token: begin and length int (2, d, cp) of
    its early and its late chunk, and begin int (2, d, cp) of the up to two single tokens of the middle that
    it is dealt; -1: there is none. What touches a chunk is part of it: length 0 where one has the other's.
    """
    chunk = (tokens // (2 * cp))[:, None]
    rest = tokens[:, None] - 2 * cp * chunk
    rank = np.arange(cp)
    begin = np.stack([rank * chunk, tokens[:, None] - (rank + 1) * chunk])
    length = np.stack([chunk.repeat(cp, axis=1)] * 2)
    nearest = (rank - turn[:, None]) % cp
    single = np.stack([nearest, nearest + cp])
    single = np.where(single < rest, single + cp * chunk, -1)
    _join(begin[..., -1], length[..., -1], single[..., -1])
    return begin, length, single


def _join(begin: Ints, length: Ints, single: Ints) -> None:
    """In place, (2, d) each: the innermost chunks touch the middle, and each other where it is empty."""
    there = length[0] > 0
    for row in single:
        grows = there & (row >= 0) & (row == begin[0] + length[0])
        length[0] += grows
        row[grows] = -1
    for row in single[::-1]:
        grows = there & (row >= 0) & (row == begin[1] - 1)
        begin[1] -= grows
        length[1] += grows
        row[grows] = -1
    touch = there & (begin[0] + length[0] == begin[1])
    length[0] += np.where(touch, length[1], 0)
    length[1, touch] = 0


def _by_sequence(begins: Ints, starts: Ints, cp: int) -> tuple[Ints, Ints, Ints]:
    """(key, begin, length), int (runs,): pieces of the 2 cp chunks of each sequence, cut where documents
    begin. `key` is sequence times cp plus rank. The two chunks in the middle are one rank's, and one.
    """
    size = np.diff(starts) // (2 * cp)
    inner = np.delete(np.arange(2 * cp), cp)
    chunks = (starts[:-1, None] + inner * size[:, None]).ravel()
    both = np.append(chunks, begins[:-1])  # two sorted runs, which this sort merges
    order = np.argsort(both, kind="stable")
    at = both[order]
    chunk = np.cumsum(order < len(chunks)) - 1  # the last that begins here or before
    document = np.arange(len(both)) - 1 - chunk
    last = np.append(at[1:] > at[:-1], True) & (at < starts[-1])
    at, chunk, document = at[last], chunk[last], document[last]
    sequence, number = np.divmod(chunk, len(inner))
    rank = np.minimum(inner, 2 * cp - 1 - inner)[number]
    return sequence * cp + rank, at - begins[document], np.diff(np.append(at, starts[-1]))


class _Runs:
    """Sums over the runs of each rank of each sequence: [tokens, runs, pairs in whole tiles, and of those the
    ones in each window], int (s, cp) each.
    """

    def __init__(self, bounds: Ints, cp: int, tile: int, windows: Sequence[int]) -> None:
        self._bounds, self._cp, self._tile, self._windows = bounds, cp, tile, windows

    def load(self, tokens: Ints) -> list[Ints]:
        """Cut by document, of `tokens` (d,) each."""
        turns = _turns(tokens, self._bounds, self._cp)
        upto = np.zeros((3 + len(self._windows), len(tokens) + 1, self._cp), np.int64)
        step = max(1, _BLOCK // self._cp)
        for start in range(0, len(tokens), step):
            part = slice(start, start + step)
            begin, length, single = _by_document(tokens[part], turns[part], self._cp)
            runs = zip(upto, self._each(begin, length), self._singles(single), strict=True)
            for row, (early, late), (one, two) in runs:
                row[1:][part] = early + late + one + two
        upto.cumsum(axis=1, out=upto)
        return [row[self._bounds[1:]] - row[self._bounds[:-1]] for row in upto]

    def load_of_pieces(self, key: Ints, begin: Ints, length: Ints) -> list[Ints]:
        """Of runs (k,), by `key`."""
        sums = np.zeros((3 + len(self._windows), (len(self._bounds) - 1) * self._cp), np.int64)
        for row, values in zip(sums, self._each(begin, length), strict=True):
            np.add.at(row, key, values)
        return [row.reshape(-1, self._cp) for row in sums]

    def _each(self, begin: Ints, length: Ints) -> list[Ints]:
        tile = self._tile
        full = length // tile
        part = length > full * tile
        keys = full * (full + 1) // 2 - full * (-begin // tile) - part * (-(begin + length) // tile)
        result = [length, (length > 0).astype(np.int64), keys * (tile * tile)]
        count = full + part
        for window in self._windows:  # of a tile's queries the first sees farthest back
            skipped = (begin + 1 - window) // tile  # tiles before the first query's window; below 0: none
            first = np.clip(-skipped, 0, count)
            before = (count - first) * (count + first - 1) // 2 + (count - first) * skipped
            result.append((keys - before) * (tile * tile))
        return result

    def _singles(self, begin: Ints) -> list[Ints]:
        """The same of runs of one token, none where `begin` is -1."""
        there = (begin >= 0).astype(np.int64)
        keys = (begin // self._tile + 1) * there
        area = self._tile * self._tile
        before = [np.maximum((begin + 1 - window) // self._tile, 0) for window in self._windows]
        return [there, there, keys * area, *((keys - skipped) * area for skipped in before)]
