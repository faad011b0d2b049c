"""Pieces of documents into sequences: whole, under hard caps, as full and as equal as can be.

A piece is a document, or the part of one that fits a sequence; cutting long ones is the caller's decision,
made before. Knows nothing of ranks: packing comes first, and `assign` places what it made.

Every packer, one a file, has one signature and one contract
(`dataloader_svc.testing.balancers.PackerContract`):

    pack(lengths, num_sequences, capacity, priority=None, costs=None, *, limits=()) -> int32 (n,)

    lengths        int (n,), tokens of each piece, 1 to `capacity`
    priority       int (n,), such as steps waited; pieces of a higher one are placed before all of a lower
    costs          float (n,), predicted time of each piece, 0 to 1e300; its length if not given
    limits         further hard caps, such as patches in a sequence

The result is the sequence of each piece, or -1 where it waits. No sequence breaches `capacity` or a limit. A
piece waits only where no sequence could hold it beside the pieces of its own or a higher priority, so one
that has waited longest is always placed. Ties go to the lower index, and no sum depends on how a processor
adds: equal arguments give an equal result on any machine. An impossible piece is a ValueError with its index
and value.

Beside packers: `queued_step` and `outliers` let dear pieces wait for their like; `concatenate` cuts instead
of fitting; LAYOUTS has rows for those who don't pack; `level` says how equal a packing is, and could be.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers.pack.balanced import balanced
from dataloader_balancers.pack.best_fit import best_fit
from dataloader_balancers.pack.concatenate import Concatenated, Spans, concatenate
from dataloader_balancers.pack.everything import in_fewest
from dataloader_balancers.pack.first_fit import first_fit
from dataloader_balancers.pack.level import Level, level
from dataloader_balancers.pack.pieces import Limit, Packer
from dataloader_balancers.pack.rows import LAYOUTS, Rows
from dataloader_balancers.pack.variable import variable
from dataloader_balancers.pack.waiting import Queue, QueuedStep, outliers, queued_step

PACKERS: dict[str, Packer] = {
    "best_fit": best_fit,
    "first_fit": first_fit,
    "balanced": balanced,
    "variable": variable,
}


def pack(
    name: str,
    lengths: ArrayLike,
    num_sequences: int,
    capacity: int,
    *,
    priority: ArrayLike | None = None,
    costs: ArrayLike | None = None,
    limits: Sequence[Limit] = (),
) -> NDArray[np.int32]:
    """`PACKERS[name]`, or a ValueError that lists the names."""
    return _named(name)(lengths, num_sequences, capacity, priority, costs, limits=limits)


def pack_all(
    name: str,
    lengths: ArrayLike,
    capacity: int,
    *,
    priority: ArrayLike | None = None,
    costs: ArrayLike | None = None,
    limits: Sequence[Limit] = (),
) -> NDArray[np.int32]:
    """Every piece in a sequence, in as few as packer `name` needs: the sequence of each piece, int32 (n,).

    Their number is the largest in the result, plus 1; none is empty. It is what best fit needs, at most 11/9
    of the fewest possible plus 6/9 (with no priorities and limits). A packer that leaves pieces over in so
    many gets 1, 2, 4, ... more, up to 2 %; if it still leaves some over, the result is that of best fit.
    """
    return in_fewest(_named(name), lengths, capacity, priority, costs, limits)


def _named(name: str) -> Packer:
    if name not in PACKERS:
        raise ValueError(f"unknown packer {name!r}; known: {', '.join(PACKERS)}")
    return PACKERS[name]


__all__ = [
    "LAYOUTS",
    "PACKERS",
    "Concatenated",
    "Level",
    "Limit",
    "Packer",
    "Queue",
    "QueuedStep",
    "Rows",
    "Spans",
    "best_fit",
    "concatenate",
    "level",
    "outliers",
    "pack",
    "pack_all",
    "queued_step",
]
