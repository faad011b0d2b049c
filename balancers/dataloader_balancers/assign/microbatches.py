"""Microbatches of each rank: in which order they run, and what their losses weigh where ranks have unlike
numbers of them.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Shape = Literal["middle", "falling"]


def order_microbatches(
    costs: ArrayLike, rank: ArrayLike, num_ranks: int, shape: Shape = "middle"
) -> NDArray[np.int32]:
    """int32 (n,): the turn, from 0, at which its rank runs each item; -1 for one at -1 in `rank` int (n,).

    On every rank items stand in order of cost, and those of the same standing have the same turn: ranks that
    meet in each microbatch (sharded weights, experts) then meet with work alike. `shape` is the order of the
    standings: "falling", or dear ones in the "middle" and cheap ones at both ends, which pipelines want: they
    are filled by the first microbatch and drained by the last, and wait for either on every stage. A rank
    with fewer items than others has none at the outermost turns, the last one first: its free turns are
    empty microbatches where ranks have to meet, and nothing where they need not.
    """
    values, ranks = np.asarray(costs, np.float64), np.asarray(rank, np.int64)
    if values.ndim != 1 or values.shape != ranks.shape:
        raise ValueError(f"{values.shape} costs for {ranks.shape} ranks; one of each for every item")
    wrong = np.flatnonzero((ranks < -1) | (ranks >= num_ranks))
    if len(wrong):
        raise ValueError(f"item {wrong[0]} is on rank {ranks[wrong[0]]}; ranks are -1 to {num_ranks - 1}")
    turn = np.full(len(values), -1, np.int32)
    placed = np.flatnonzero(ranks >= 0)
    order = placed[np.lexsort((-values[placed], ranks[placed]))]
    counts = np.bincount(ranks[placed], minlength=num_ranks)
    standing = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    turn[order] = turns(int(counts.max(initial=0)), shape)[standing]
    return turn


def turns(count: int, shape: Shape = "middle") -> NDArray[np.int64]:
    """int64 (count,): the turn of each standing, 0 being the dearest; the cheapest is last in any shape."""
    if shape not in ("middle", "falling"):
        raise ValueError(f"shape is {shape!r}; known: middle, falling")
    standing = np.arange(count)
    if shape == "falling":
        return standing
    step = (standing + 1) // 2
    right = standing % 2 == (1 if count % 2 == 0 else 0)
    return (count - 1) // 2 + np.where(right, step, -step)


def loss_weights(loss_tokens: ArrayLike, rank: ArrayLike, num_ranks: int) -> NDArray[np.float64]:
    """float64 (n,): what to multiply each microbatch's mean loss with, so that every token of the step counts
    the same.

    `loss_tokens` float (n,) is the sum of its tokens' loss weights, `rank` int (n,) where it runs, -1 for
    nowhere (weight 0). For trainers that average a microbatch's loss over its tokens, add the gradients of a
    rank's microbatches, and average over ranks: then, with w = ranks * tokens / all tokens, the gradient is
    that of the mean over all tokens of the step, whatever the number of microbatches of a rank. A trainer
    that divides by a number of microbatches has to multiply with it first.
    """
    tokens, ranks = np.asarray(loss_tokens, np.float64), np.asarray(rank, np.int64)
    if tokens.ndim != 1 or tokens.shape != ranks.shape:
        raise ValueError(f"{tokens.shape} token counts for {ranks.shape} ranks; one of each for a microbatch")
    wrong = np.flatnonzero(~((tokens >= 0) & np.isfinite(tokens)))
    if len(wrong):
        raise ValueError(f"microbatch {wrong[0]} has {tokens[wrong[0]]} loss tokens; finite numbers from 0")
    wrong = np.flatnonzero((ranks < -1) | (ranks >= num_ranks))
    if len(wrong):
        raise ValueError(f"microbatch {wrong[0]} is on rank {ranks[wrong[0]]}; -1 to {num_ranks - 1}")
    counted = np.where(ranks >= 0, tokens, 0.0)
    total = float(np.cumsum(counted)[-1]) if len(counted) else 0.0
    return counted * (num_ranks / total) if total > 0 else np.zeros(len(tokens))
