"""One packed sequence over cp ranks, so that each has the same tokens and about the same attention work.

Causal attention makes late tokens dear. The zig-zag cut gives rank r the chunks r and 2 cp - 1 - r of 2 cp
equal ones, one cheap and one dear (Llama 3, arXiv 2407.21783, section 3.3.2). Over a packed sequence that
balances only if it is one document; cut document by document it always does (WLB-LLM, arXiv 2503.17924).

Both cuts have one signature: `cut(cu_seqlens, cp)` with `cu_seqlens` int (d+1,) of one sequence, from 0, and
return cp arrays int32 of the sequence's token indices: ascending, disjoint, together all of them, and equally
long where the sequence is a multiple of what the cut needs. ValueError for bounds that are none.

`multiple` makes runs of tokens begin and end on multiples of it, as tiles of attention kernels want them (16,
64, 128): what it costs in balance, and which of the two is faster, says `cut_choice.py`. One sequence on a
number of ranks of its own is in `hybrid.py`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Cut = Callable[[ArrayLike, int], tuple[NDArray[np.int32], ...]]


def per_sequence(cu_seqlens: ArrayLike, cp: int, multiple: int = 1) -> tuple[NDArray[np.int32], ...]:
    """Zig-zag through the whole sequence, whose length must be a multiple of 2 cp `multiple` (else
    ValueError).

    Equal attention work if the sequence is one document, or attention sees through document borders. Needs
    the least of an attention kernel: two runs of tokens a rank, each a multiple of `multiple`.
    """
    bounds = _bounds(cu_seqlens, cp, multiple)
    total = int(bounds[-1])
    unit = 2 * cp * multiple
    if total % unit:
        of = f" of a multiple of {multiple} tokens" if multiple > 1 else ""
        raise ValueError(
            f"a sequence of {total} tokens does not divide into 2 x cp = {2 * cp} equal chunks{of}; pad it "
            f"to {total + -total % unit}"
        )
    chunks = np.arange(total, dtype=np.int32).reshape(2 * cp, total // (2 * cp))
    return tuple(np.concatenate([chunks[rank], chunks[2 * cp - 1 - rank]]) for rank in range(cp))


def per_document(cu_seqlens: ArrayLike, cp: int, multiple: int = 1) -> tuple[NDArray[np.int32], ...]:
    """Zig-zag inside each document; equal token counts on all ranks when the total is a multiple of cp.

    A document of n tokens gives each rank n // (2 cp) tokens twice, from both ends inwards. The n mod (2 cp)
    left over, in its middle, are dealt one by one round the ranks, on from where the last document's ended:
    counts differ by at most one. The attention work of two ranks differs by that of two tokens a
    document or less.

    With `multiple` above 1 all this is done in units of so many tokens. What is no whole unit, at a
    document's end, goes where fewest tokens are. Runs begin at multiples within their document, except where
    a rank's share of the sequence is full: less than cp times in all. `cut_choice.cut_load` says how even.
    """
    bounds = _bounds(cu_seqlens, cp, multiple)
    lengths = np.diff(bounds)
    whole = lengths // multiple * multiple
    chunk = whole // (2 * cp * multiple) * multiple
    rest = lengths - 2 * cp * chunk
    # One entry a token from here on.
    document = np.repeat(np.arange(len(lengths)), lengths)
    place = np.arange(int(bounds[-1])) - bounds[document]
    from_edge = np.minimum(place, whole[document] - 1 - place)  # negative behind the last whole unit
    size = chunk[document]
    zigzag = (from_edge >= 0) & (from_edge < cp * size)
    owner = from_edge // np.maximum(size, 1)
    if multiple == 1:
        turn = np.cumsum(rest) - rest
        owner[~zigzag] = (turn[document] + place - cp * size)[~zigzag] % cp
    else:
        owner[~zigzag] = _dealt(rest, cp, multiple)
    order = np.argsort(owner, kind="stable").astype(np.int32)
    return tuple(np.split(order, np.cumsum(np.bincount(owner, minlength=cp))[:-1]))


def _dealt(rest: NDArray[np.int64], cp: int, multiple: int) -> NDArray[np.int64]:
    """The rank of each of the `rest` int (d,) tokens left over in documents, int64 (rest.sum(),): `multiple`
    tokens of a document at a time to the rank that lacks most of its equal share.
    """
    total = int(rest.sum())
    lacking = [(-(total // cp + (rank < total % cp)), rank) for rank in range(cp)]
    heapq.heapify(lacking)
    ranks: list[int] = []
    sizes: list[int] = []
    for tokens in rest.tolist():
        left = tokens
        while left:
            share, rank = lacking[0]
            size = min(multiple, left, -share)
            ranks.append(rank)
            sizes.append(size)
            heapq.heapreplace(lacking, (share + size, rank))
            left -= size
    return np.repeat(np.array(ranks, np.int64), np.array(sizes, np.int64))


def _bounds(cu_seqlens: ArrayLike, cp: int, multiple: int) -> NDArray[np.int64]:
    bounds = np.asarray(cu_seqlens, np.int64)
    if cp < 1:
        raise ValueError(f"cp is {cp}; at least 1")
    if multiple < 1:
        raise ValueError(f"multiple is {multiple}; at least 1")
    if bounds.ndim != 1 or len(bounds) < 1 or bounds[0] != 0:
        raise ValueError(f"cu_seqlens has shape {bounds.shape}; document bounds begin with 0")
    falls = np.flatnonzero(np.diff(bounds) < 0)
    if len(falls):
        at = int(falls[0])
        raise ValueError(f"cu_seqlens falls from {bounds[at]} to {bounds[at + 1]} after document {at}")
    return bounds


CUTS: dict[str, Cut] = {"per_document": per_document, "per_sequence": per_sequence}
