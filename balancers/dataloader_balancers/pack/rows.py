"""Layouts for those who don't pack: each document is a row, and the rows of a batch are padded to one width.

What it costs is the padding. `padded` keeps the order of arrival; `bucketed` puts documents of like length
into a batch, as speech and translation toolkits do, and so computes on little else than tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers.pack.pieces import LARGEST, Ints, descending, whole, within


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """`batch` int32 (n,): of each document. `width` int64 (b,): what the rows of each batch are padded to.
    `count` int64 (b,): its rows. `padding`: share of all places that hold no token.
    """

    batch: NDArray[np.int32]
    width: Ints
    count: Ints
    padding: float


def padded(lengths: ArrayLike, capacity: int, *, most_rows: int | None = None, multiple: int = 1) -> Rows:
    """Documents in their order: a batch ends where one more would make it larger than `capacity` places.

    most_rows  of a batch; None: any number
    multiple   widths are rounded up to it, as kernels want

    Padding grows with how unlike neighbours are. It keeps the order that the mixture gave.
    """
    return _rows(lengths, capacity, most_rows, multiple, lambda sizes: np.arange(len(sizes)))


def bucketed(lengths: ArrayLike, capacity: int, *, most_rows: int | None = None, multiple: int = 1) -> Rows:
    """As `padded`, but of all documents the longest go together, and so on down; ties by index.

    Batches come out by falling width: shuffle them, or deal them to ranks by `assign`. Take a few thousand
    documents at once; all at once would make neighbours in training of all that is alike.
    """
    return _rows(lengths, capacity, most_rows, multiple, descending)


LAYOUTS: dict[str, Callable[..., Rows]] = {"padded": padded, "bucketed": bucketed}


def _rows(
    lengths: ArrayLike,
    capacity: int,
    most_rows: int | None,
    multiple: int,
    order_of: Callable[[Ints], Ints],
) -> Rows:
    if capacity < 1 or capacity > LARGEST or multiple < 1 or (most_rows is not None and most_rows < 1):
        raise ValueError(
            f"need a batch of one row of one token and a multiple from 1; "
            f"got {most_rows} rows of {capacity} places, multiple {multiple}"
        )
    sizes = whole(lengths, "lengths")
    within(sizes, 1, capacity // multiple * multiple, "tokens")
    order = order_of(sizes)
    wide = (-(-sizes[order] // multiple) * multiple).tolist()
    most = len(wide) if most_rows is None else most_rows
    begins: list[int] = []
    rows = width = most  # full: the first document begins a batch
    for at, needed in enumerate(wide):
        width = max(width, needed)
        rows += 1
        if rows > most or rows * width > capacity:
            begins.append(at)
            rows, width = 1, needed
    bounds = np.array([*begins, len(wide)], np.int64)
    count: Ints = bounds[1:] - bounds[:-1]
    number = np.repeat(np.arange(len(begins), dtype=np.int32), count)
    batch = np.empty(len(wide), np.int32)
    batch[order] = number
    widths: Ints = np.maximum.reduceat(np.array(wide, np.int64), begins) if begins else np.empty(0, np.int64)
    places = int((widths * count).sum())
    return Rows(batch, widths, count, 1 - int(sizes.sum()) / places if places else 0.0)
