"""Pieces one after another, cut where a sequence is full: no gap, at the price of cut documents. Pure.

`dataloader_balancers.concatenate` says where the cuts are. Media and preference pairs are never cut: before
one that does not fit, a sequence ends early. What stands beside its own document in a sequence is one piece
again, so that a document is only parted where it was cut. `pieces.py` has kept media apart for this.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataloader_balancers import Spans, concatenate
from dataloader_svc.planner.pieces import Pieces


class Packed(NamedTuple):
    """Placed pieces grouped by sequence, the offsets of sequences, and what waits, in order."""

    placed: Pieces
    placed_age: NDArray[np.int64]
    offsets: NDArray[np.int64]
    waiting: Pieces
    waiting_age: NDArray[np.int64]


def concatenated(
    pieces: Pieces,
    age: NDArray[np.int64],
    uncut: NDArray[np.bool_],
    capacity: int,
    num_sequences: int | None,
) -> Packed:
    """All pieces in their order, in sequences of `capacity` tokens.

    uncut          bool (n,) pieces that stay whole
    num_sequences  exactly so many, and what comes after them waits; None: as many as there are
    """
    whole = np.flatnonzero(uncut)
    spans = Spans(whole, np.zeros(len(whole), np.int64), pieces.length[whole])
    made = concatenate(pieces.length, capacity, num_sequences=num_sequences, protected=spans)
    cut = pieces.take(made.document)
    start, length = cut.start + made.start, made.length
    cut = replace(cut, start=start, length=length)
    count = int(made.sequence.max(initial=0)) + 1 if num_sequences is None else num_sequences
    first = _first_of_runs(cut, made.sequence)
    joined, sequence, waited = _joined(cut, first), made.sequence[first], age[made.document][first]
    stays = sequence < 0  # at the end: they come after the last sequence
    offsets = np.searchsorted(sequence[~stays], np.arange(count + 1)).astype(np.int64)
    return Packed(joined.take(~stays), waited[~stays], offsets, joined.take(stays), waited[stays])


def sequences_needed(pieces: Pieces, uncut: NDArray[np.bool_], capacity: int) -> int:
    """Sequences that all pieces take."""
    packed = concatenated(pieces, np.zeros(len(pieces), np.int64), uncut, capacity, None)
    return len(packed.offsets) - 1


def _first_of_runs(pieces: Pieces, sequence: NDArray[np.int32]) -> NDArray[np.int64]:
    """Where something begins that does not go on what stands before it: another document, another sequence.

    What waits stays apart: its media must not be taken for text that can be cut.
    """
    begins = np.ones(len(pieces), np.bool_)
    goes_on = pieces.start[1:] == (pieces.start + pieces.length)[:-1]
    goes_on &= (sequence[1:] == sequence[:-1]) & (sequence[1:] >= 0)
    for column in (pieces.source, pieces.epoch, pieces.position):
        goes_on &= column[1:] == column[:-1]
    begins[1:] = ~goes_on
    return np.flatnonzero(begins)


def _joined(pieces: Pieces, first: NDArray[np.int64]) -> Pieces:
    """A piece of each run, of which `first` names the first."""
    if not len(first):
        return pieces
    summed = ("length", "patches", "frames", "media")
    sums = {name: np.add.reduceat(getattr(pieces, name), first) for name in summed}
    return replace(pieces.take(first), **sums)
