"""One packed sequence over cp ranks, so that each has the same tokens and about the same attention work.

Causal attention makes late tokens dear. The zig-zag cut gives rank r the chunks r and 2 cp - 1 - r of 2 cp
equal ones, one cheap and one dear (Brandon et al. 2023, arXiv 2311.09431; Llama 3, arXiv 2407.21783, 3.3.2).
Over a packed sequence that balances only if it is one document; cut document by document it always does.

Both cuts have one signature: `cut(cu_seqlens, cp)` with `cu_seqlens` int (d+1,) of one sequence, from 0, and
return cp arrays int32 of the sequence's token indices, ascending, disjoint, together all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Cut = Callable[[ArrayLike, int], tuple[NDArray[np.int32], ...]]


def per_sequence(cu_seqlens: ArrayLike, cp: int) -> tuple[NDArray[np.int32], ...]:
    """Zig-zag through the whole sequence, whose length must be a multiple of 2 cp (else ValueError)."""
    bounds = _bounds(cu_seqlens, cp)
    total = int(bounds[-1])
    if total % (2 * cp):
        raise ValueError(f"a sequence of {total} tokens does not divide into 2 x cp = {2 * cp} equal chunks")
    chunks = np.arange(total, dtype=np.int32).reshape(2 * cp, -1)
    return tuple(np.concatenate([chunks[rank], chunks[2 * cp - 1 - rank]]) for rank in range(cp))


def per_document(cu_seqlens: ArrayLike, cp: int) -> tuple[NDArray[np.int32], ...]:
    """Zig-zag inside each document; equal token counts on all ranks when the total is a multiple of cp.

    A document of n tokens gives each rank n // (2 cp) tokens twice, from both ends inwards; the n mod (2 cp)
    tokens left over, in its middle, go one by one to whichever rank has fewest tokens so far.
    """
    bounds = _bounds(cu_seqlens, cp)
    lengths = np.diff(bounds)
    size, rest = np.divmod(lengths, 2 * cp)
    # Leftovers are dealt round the ranks over all documents: the counts then differ by at most one.
    dealt = np.concatenate([[0], np.cumsum(rest)])
    owner = np.empty(int(bounds[-1]), np.int32)
    for start, length, chunk, left, turn in zip(
        bounds[:-1].tolist(), lengths.tolist(), size.tolist(), rest.tolist(), dealt[:-1].tolist(), strict=True
    ):
        half = cp * chunk
        front = np.repeat(np.arange(cp, dtype=np.int32), chunk)
        owner[start : start + half] = front
        owner[start + half : start + half + left] = (turn + np.arange(left)) % cp
        owner[start + length - half : start + length] = front[::-1]
    order = np.argsort(owner, kind="stable").astype(np.int32)
    counts = np.bincount(owner, minlength=cp)
    return tuple(np.split(order, np.cumsum(counts)[:-1]))


def _bounds(cu_seqlens: ArrayLike, cp: int) -> NDArray[np.int64]:
    bounds = np.asarray(cu_seqlens, np.int64)
    if cp < 1:
        raise ValueError(f"cp is {cp}; at least 1")
    if len(bounds) < 1 or bounds[0] != 0 or np.any(np.diff(bounds) < 0):
        raise ValueError(f"cu_seqlens must begin at 0 and not fall; got {bounds[:8].tolist()}...")
    return bounds


CUTS: dict[str, Cut] = {"per_document": per_document, "per_sequence": per_sequence}
