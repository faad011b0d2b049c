"""position -> row of a source for one epoch: a pure function of (seed, source name, epoch, extents).

Extents are permuted over the whole source; consecutive permuted extents are joined into a block while they
fit in `block_bytes`; rows are permuted inside the block (docs/decisions/0002). Knows numbers only: no files,
no format, no clock. `reader.py` reads what a block names.

Permutations are the stable argsort of raw 64-bit words of a keyed Philox generator. The words are fixed by
the algorithm; `Generator.permutation` is not (NumPy may change it), and an order must outlive an upgrade.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.sample import keyed_rng

FILE_ORDER_BLOCK_BYTES = 16 * 2**20  # the default of config.Shuffle.block: the lease is as large unshuffled


@dataclass(frozen=True, slots=True)
class BlockRows:
    """The rows of one block.

    extents        int32 (e,)  extent ids, ascending: the order in which to read them
    extent_index   int32 (n,)  for the i-th position of the block, which of `extents` holds it
    row            int32 (n,)  and its row inside that extent
    """

    extents: NDArray[np.int32]
    extent_index: NDArray[np.int32]
    row: NDArray[np.int32]


class Order:
    """One epoch of a source. Building costs O(extents); a block costs O(its rows).

    extent_rows    (E,) rows of each extent, all above zero
    extent_bytes   (E,) their size in memory
    block_bytes    largest block, unless one extent alone is larger; None keeps the order of the files

    `block_starts` is int64 (num_blocks + 1,): block b holds positions block_starts[b] to block_starts[b+1]-1.
    """

    def __init__(
        self,
        extent_rows: NDArray[np.integer],
        extent_bytes: NDArray[np.integer],
        *,
        seed: int,
        source: str,
        epoch: int,
        block_bytes: int | None,
    ) -> None:
        assert len(extent_rows) == len(extent_bytes), "a row count and a size for each extent"
        assert not len(extent_rows) or int(np.min(extent_rows)) > 0, "extents have rows"
        self._seed, self._source, self._epoch = seed, source, epoch
        self._shuffled = block_bytes is not None
        self._extent_rows = np.asarray(extent_rows, np.int64)
        num_extents = len(extent_rows)
        if self._shuffled:
            self._permuted = _permutation(num_extents, seed, source, epoch, "extents")
        else:
            self._permuted = np.arange(num_extents, dtype=np.int32)
        ends = np.cumsum(np.asarray(extent_bytes, np.int64)[self._permuted])
        self._first = _cut(ends, FILE_ORDER_BLOCK_BYTES if block_bytes is None else block_bytes)
        row_ends = np.concatenate([[0], np.cumsum(self._extent_rows[self._permuted])])
        self.block_starts: NDArray[np.int64] = row_ends[self._first]

    @property
    def num_blocks(self) -> int:
        """Blocks of the epoch."""
        return len(self.block_starts) - 1

    @property
    def num_rows(self) -> int:
        """Positions of the epoch: every row of the source once."""
        return int(self.block_starts[-1])

    def locate(self, position: int) -> tuple[int, int]:
        """(block, offset in the block) of a position. IndexError outside 0 <= position < num_rows."""
        if not 0 <= position < self.num_rows:
            raise IndexError(f"position {position} is not in 0..{self.num_rows - 1} of {self._source!r}")
        block = int(np.searchsorted(self.block_starts, position, "right")) - 1
        return block, position - int(self.block_starts[block])

    def extents(self, block: int) -> NDArray[np.int32]:
        """int32 (e,) extents of a block, ascending. IndexError outside 0 <= block < num_blocks."""
        if not 0 <= block < self.num_blocks:
            raise IndexError(f"block {block} is not in 0..{self.num_blocks - 1} of {self._source!r}")
        extents: NDArray[np.int32] = np.sort(self._permuted[self._first[block] : self._first[block + 1]])
        return extents

    def block(self, block: int) -> BlockRows:
        """Which row stands at each position of a block. IndexError outside 0 <= block < num_blocks."""
        extents = self.extents(block)
        counts = self._extent_rows[extents]
        extent_index = np.repeat(np.arange(len(extents), dtype=np.int32), counts)
        row = (np.arange(len(extent_index)) - np.repeat(np.cumsum(counts) - counts, counts)).astype(np.int32)
        if self._shuffled:
            shuffled = _permutation(len(row), self._seed, self._source, self._epoch, "rows", block)
            extent_index, row = extent_index[shuffled], row[shuffled]
        return BlockRows(extents, extent_index, row)


def _permutation(length: int, seed: int, *key: str | int) -> NDArray[np.int32]:
    """int32 (length,), each number below `length` once."""
    words = keyed_rng(seed, *key).bit_generator.random_raw(length)
    return np.argsort(words, kind="stable").astype(np.int32)


def _cut(ends: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """First extent of each block, and one past the last: as many as fit in `limit` bytes, at least one.

    `ends` are cumulative bytes. bisect on a list, not searchsorted: ten times faster for single look-ups.
    """
    sums, first, used = ends.tolist(), [0], 0
    while first[-1] < len(sums):
        stop = max(bisect_right(sums, used + limit, first[-1]), first[-1] + 1)
        used = sums[stop - 1]
        first.append(stop)
    return np.array(first, np.int64)
