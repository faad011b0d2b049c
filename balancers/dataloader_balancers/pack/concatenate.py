"""Documents one after another, cut wherever a sequence is full: no gap at all, at the price of cut documents.

What most pre-training pipelines do (GPT-3, arXiv 2005.14165, appendix B, with an end-of-text token between
documents). A cut costs the later part its context; best fit at the same fill cuts hardly any document (Ding
et al. 2024, arXiv 2404.10830). A cut never runs through a protected span, such as the tokens of a picture:
the sequence then ends before it, and has a gap.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers.pack.pieces import LARGEST, Ints, whole, within


@dataclass(frozen=True, slots=True, eq=False)
class Concatenated:
    """Pieces in order. Piece i is tokens [`start[i]`, `start[i] + length[i]`) of `document[i]`, int64 (m,)
    each, and in `sequence[i]` int32 (m,), or waits where that is -1.
    """

    document: Ints
    start: Ints
    length: Ints
    sequence: NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Tokens that stay together: `length` int (k,) of them, from `start` int (k,) in `document` int (k,);
    ascending, and none in another.
    """

    document: ArrayLike
    start: ArrayLike
    length: ArrayLike


def concatenate(
    lengths: ArrayLike, capacity: int, *, num_sequences: int | None = None, protected: Spans | None = None
) -> Concatenated:
    """Documents of `lengths` int (n,) in their order, in sequences of `capacity` tokens.

    num_sequences  what comes after so many waits; None: as many as there are, the last as full as it gets.
                   With too few tokens for them, the last ones are empty

    Without protected spans all sequences but the last are full to the token. Takes n log n at most.
    """
    if capacity < 1 or capacity > LARGEST or (num_sequences is not None and num_sequences < 1):
        raise ValueError(f"need at least one sequence of one token; got {num_sequences} of {capacity}")
    sizes = whole(lengths, "lengths")
    within(sizes, 1, LARGEST, "tokens")
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    borders = _borders(total, capacity, *_in_stream(sizes, ends, capacity, protected))
    # Every document and every sequence begins a piece.
    starts = np.sort(np.concatenate([ends - sizes, borders]), kind="stable")  # merges what is sorted
    starts = starts[np.append(True, starts[1:] > starts[:-1])[: len(starts)]]
    document = np.searchsorted(ends, starts, side="right")
    sequence = np.searchsorted(borders, starts, side="right") - 1
    if num_sequences is not None:
        sequence[sequence >= num_sequences] = -1
    length = np.diff(np.append(starts, total))
    return Concatenated(document, starts - (ends - sizes)[document], length, sequence.astype(np.int32))


def _in_stream(
    sizes: Ints, ends: Ints, capacity: int, protected: Spans | None
) -> tuple[list[int], list[int]]:
    """First token of each protected span in the stream of all documents, and the first after it."""
    if protected is None:
        return [], []
    document = whole(protected.document, "documents of spans")
    start = whole(protected.start, "starts of spans", len(document))
    length = whole(protected.length, "lengths of spans", len(document))
    if len(document) == 0:
        return [], []
    _span_within(document, 0, len(sizes) - 1, "is in document")
    _span_within(length, 1, capacity, "has length")
    over = np.flatnonzero((start < 0) | (start + length > sizes[document]))
    if len(over):
        at = int(over[0])
        raise ValueError(
            f"span {at} is [{start[at]}, {start[at] + length[at]}) of document {document[at]}, "
            f"which has {sizes[document[at]]} tokens"
        )
    first = (ends - sizes)[document] + start
    wrong = np.flatnonzero(first[1:] < (first + length)[:-1])
    if len(wrong):
        raise ValueError(f"span {wrong[0] + 1} begins before the end of the one before it; order them")
    return first.tolist(), (first + length).tolist()


def _span_within(values: Ints, least: int, most: int, what: str) -> None:
    wrong = np.flatnonzero((values < least) | (values > most))
    if len(wrong):
        raise ValueError(f"span {wrong[0]} {what} {values[wrong[0]]}; allowed are {least} to {most}")


def _borders(total: int, capacity: int, first: list[int], after: list[int]) -> Ints:
    """First token of each sequence."""
    if not first:
        return np.arange(0, total, capacity)
    borders = []
    at = 0
    while at < total:
        borders.append(at)
        at += capacity
        span = bisect_right(first, at) - 1  # the last that begins at or before the cut
        if span >= 0 and first[span] < at < after[span]:
            at = first[span]
    return np.array(borders, np.int64)
