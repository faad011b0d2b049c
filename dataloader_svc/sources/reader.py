"""One source of a job: blocks of samples by name, and where each of them lies.

Puts together the index, the orders of the epochs in use and the format. Knows nothing of leases, memory
limits or tokens: `loader/read.py` goes on with what `read_block` returns. Safe to call from several threads.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.config.schema import Source
from dataloader_svc.errors import BadSample, Reason, SourceError, StateError, Unreachable
from dataloader_svc.sample import BlockId, Listing, RowRef
from dataloader_svc.sources.base import Extent, Fields, Rows
from dataloader_svc.sources.fields import fields_of
from dataloader_svc.sources.index import (
    Progress,
    SourceIndex,
    build_index,
    extent_of,
    first_shards,
    make_format,
)
from dataloader_svc.sources.interleaved import roles_of, with_documents
from dataloader_svc.sources.order import BlockRows, Order
from dataloader_svc.sources.reduce import reduced
from dataloader_svc.sources.repaired import Layouts, parts_of
from dataloader_svc.storage import Storage
from dataloader_svc.transforms.per_source import make_transforms

NOT_ASKED_FOR = BadSample(Reason.FILTERED, "not asked for")

_PARTS_KEPT = 8
_ORDERS_KEPT = 3  # the epoch being read, the next one looked ahead to, and one that is re-read


@dataclass(frozen=True, slots=True, eq=False)
class BlockSamples:
    """The samples of a block, in order of position: index i is position `start + i`.

    columns     role -> list of n values as in `sources.base.Rows`; those of bad samples mean nothing
    bad         index -> why the sample can't be used
    raw         name -> list of n values, of the fields that the source's transforms look at
    index       digest of the source's index, by which they were found
    shard, row  int32 (n,), int64 (n,): where each sample lies; `ref` words it
    """

    block: BlockId
    start: int
    columns: dict[str, list[Any]]
    bad: dict[int, BadSample]
    shard: NDArray[np.int32]
    row: NDArray[np.int64]
    paths: tuple[str, ...]
    raw: dict[str, list[Any]] = field(default_factory=dict)
    index: str = ""

    def __len__(self) -> int:
        return len(self.row)

    def ref(self, index: int) -> RowRef:
        """Shard path and row of sample `index` of the block."""
        return RowRef(self.paths[self.shard[index]], int(self.row[index]))


class SourceReader:
    """Reads the blocks of one source. Building it indexes the source, from the cache where it can."""

    def __init__(
        self,
        name: str,
        source: Source,
        base_dir: Path,
        cache_dir: Path | None,
        seed: int,
        progress: Progress | None = None,
        *,
        storage: Storage | None = None,
    ) -> None:
        self.name = name
        self.source = source
        self.fields = fields_of(source)
        self.roles = roles_of(self.fields)
        self._storage = storage or Storage()
        self._files = build_index(name, source, base_dir, cache_dir, progress, storage=self._storage)
        self._key = source.was or name  # of all that is drawn: it outlives a renaming
        self._layouts = None if cache_dir is None else Layouts(cache_dir, self._key)
        self._transforms = make_transforms(source)
        self.index = self._reading(self._files)
        if self._layouts is not None and self.index.files is None:
            problem = self._layouts.keep(self._files, self.index.digest)
            if problem is not None:
                self.index = replace(self.index, warnings=(*self.index.warnings, problem))
        self._format = make_format(source, self._storage)
        self._seed = seed
        self._block_bytes = source.shuffle.block if source.shuffle else None
        self._media_root: str | None = None
        if source.media_root is not None:
            self._media_root = self._storage.join(str(base_dir.absolute()), source.media_root)
        self._orders: OrderedDict[int, Order] = OrderedDict()
        self._parts: OrderedDict[Listing, SourceReader] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def num_rows(self) -> int:
        """Positions of an epoch."""
        return self.index.num_rows

    @property
    def listing(self) -> Listing:
        """The shards that its epochs are made of."""
        return Listing(len(self.index.paths), self.index.digest)

    def listed(self, listing: Listing) -> SourceReader:
        """This source with epochs made of `listing`, which more shards may follow by now; the last are kept.

        Raises StateError, naming shards where it can, when the files don't begin with those.
        """
        if listing.digest in ("", self.index.digest):
            return self
        with self._lock:
            part = self._parts.get(listing)
            if part is None:
                part = self._parts[listing] = self._of(listing)
            self._parts.move_to_end(listing)
            while len(self._parts) > _PARTS_KEPT:
                self._parts.popitem(last=False)
            return part

    def _of(self, listing: Listing) -> SourceReader:
        there = len(self._files.paths)
        # A state of before counts were kept has none: the longest beginning that it may mean.
        for shards in [listing.shards] if listing.shards else range(there, 0, -1):
            index = self._reading(first_shards(self._files, shards)) if shards <= there else None
            if index is not None and index.digest == listing.digest:
                return self._with(index)
        changes = "" if self._layouts is None else self._layouts.changes(self._files, listing.digest)
        count = f"{listing.shards or 'some'} shards"
        raise StateError(
            f"source {self.name!r}: its files are not those of the state ({count} with index "
            f"{listing.digest}; {there} shards now){': ' if changes else ''}{changes}. Only shards that come "
            "last in the list may be added. Restore the others, or start without the state; where rows were "
            "repaired in place, run `dataloader-svc quarantine readmit` first"
        )

    def _with(self, index: SourceIndex) -> SourceReader:
        part = copy(self)
        part.index = index
        vars(part).update(_orders=OrderedDict(), _parts=OrderedDict(), _lock=threading.Lock())
        return part

    def accept_repair(self, *listings: Listing, note: bool = True) -> None:
        """Read the files, as they are, in the orders of those of the state: its `listings`, newest last.

        note   so will all that open the source with this index cache
        Raises SourceError where they can't be a repair of those; the text says what differs.
        """
        if self._layouts is None:
            raise SourceError("there is no index_cache to note a repair in")
        parts: list[tuple[Listing, SourceIndex, SourceIndex]] = []
        for listing in listings:
            matched = self._layouts.matched(self._files, listing.digest)
            files = first_shards(self._files, len(matched.paths))
            index = reduced(matched, self._transforms, self._key)
            if index.digest != listing.digest:
                raise SourceError(
                    f"the settings that choose its rows have changed since index {listing.digest}"
                )
            parts.append((listing, files, index))
        for listing, files, _ in parts if note else ():
            self._layouts.accept(files, listing.digest)
        with self._lock:
            self.index = parts[-1][2]
            self._orders.clear()
            self._parts.clear()
            self._parts.update((listing, self._with(index)) for listing, _, index in parts)

    def _reading(self, files: SourceIndex) -> SourceIndex:
        index = files if self._layouts is None else self._layouts.apply(files)
        return reduced(index, self._transforms, self._key)

    def order(self, epoch: int) -> Order:
        """The order of an epoch; the last few are kept."""
        with self._lock:
            order = self._orders.pop(epoch, None)
            if order is None:
                order = Order(
                    self.index.extents.kept,
                    self.index.extents.num_bytes,
                    seed=self._seed,
                    source=self._key,
                    epoch=epoch,
                    block_bytes=self._block_bytes,
                )
            self._orders[epoch] = order
            while len(self._orders) > _ORDERS_KEPT:
                self._orders.popitem(last=False)
            return order

    def locate_row(self, epoch: int, position: int) -> RowRef:
        """Where the sample of a position lies. Costs the arithmetic of one block, no I/O."""
        order = self.order(epoch)
        block, offset = order.locate(position)
        rows = order.block(block)
        shard, extent = self.index.extent(int(rows.extents[rows.extent_index[offset]]))
        return RowRef(self.index.paths[shard], extent.first_row + int(rows.row[offset]))

    def read_block(self, block: BlockId, only: Collection[int] | None = None) -> BlockSamples:
        """Read all samples of a block. Never raises for what the files hold: such samples are in `bad`.

        only   positions: the others stand in `bad` too, and extents that hold none of these are not read
        """
        order = self.order(block.epoch)
        layout = order.block(block.block)
        columns: dict[str, list[Any]] = {role: [] for role in self.roles}
        raw: dict[str, list[Any]] = {name: [] for name in self.fields.raw}
        bad: dict[int, BadSample] = {}  # by place in file order; turned into positions below
        firsts: list[int] = []
        start = 0
        asked, left_out = _asked_for(layout, int(order.block_starts[block.block]), only)
        for index, number in enumerate(layout.extents.tolist()):
            kept = int(self.index.extents.kept[number])
            firsts.append(start)
            start += kept
            if index not in asked:
                for values in (*columns.values(), *raw.values()):
                    values.extend([None] * kept)
                continue
            rows = self.read_extent(number)
            for role, values in columns.items():
                values.extend(rows.columns[role][:kept])
            for name, values in raw.items():
                values.extend(rows.raw[name][:kept])
            bad.update((firsts[-1] + row, error) for row, error in rows.bad.items() if row < kept)
        places = np.array(firsts, np.int64)[layout.extent_index] + layout.row
        return BlockSamples(
            block=block,
            start=int(order.block_starts[block.block]),
            columns={role: _take(values, places) for role, values in columns.items()},
            bad=_bad_by_position(bad, places) | left_out,
            shard=self.index.extents.shard[layout.extents][layout.extent_index],
            row=self.index.extents.first_row[layout.extents][layout.extent_index] + layout.row,
            paths=self.index.paths,
            raw={name: _take(values, places) for name, values in raw.items()},
            index=self.index.digest,
        )

    def read_extent(self, number: int) -> Rows:
        """All rows of an extent of the index; bad ones where it can't be read."""
        if self.index.files is None:
            return self._read_extent(*self.index.extent(number))
        parts = []
        for there, first, last in parts_of(self.index, number):
            rows = self._read_extent(*extent_of(self.index.files, there))
            parts.append(_rows_between(rows, first, last))
        return _joined(parts)

    def lacking(self) -> dict[str, str]:
        """Fields that transforms look at and no row of the first block has -> what there is, for a person."""
        if not self.fields.raw:
            return {}
        found = self.read_block(BlockId(self.name, 0, 0)).raw
        empty = [name for name, values in found.items() if all(value is None for value in values)]
        return {name: what for name in empty if (what := self._instead_of(name)) is not None}

    def _instead_of(self, name: str) -> str | None:
        """What the first extent has instead of a field, as the format says of a text; None: it has it."""
        files = self.index.extents if self.index.files is None else self.index.files
        shard, extent = extent_of(files, 0)
        path, context = self.index.paths[shard], self._format.context
        other = type(self._format)(replace(context, fields=Fields({"text": (name,)})))
        try:
            missing = other.index_shard(path).missing.get("text")
            problem = next(iter(other.read(path, extent).bad.values()), None)
        except SourceError:  # it is there, and no text
            return None
        if missing is not None:
            return f"no {missing}"
        return problem.detail if problem is not None and problem.reason == Reason.MISSING_FIELD else None

    def read_media(self, path: str, shard: str) -> bytes:
        """Bytes of a media file named by a row of `shard`: below `media_root`, or else the shard's folder."""
        root = shard.rpartition("/")[0] if self._media_root is None else self._media_root
        try:
            where = self._storage.join(root, path)
            return self._storage.read_all(where)
        except Unreachable as error:
            if not where.startswith(("https://", "http://")):
                raise
            # Addresses that rows name die one by one: that is the data's fault, and no reason to stop.
            raise BadSample(Reason.MISSING_FILE, str(error)) from error
        except (SourceError, ValueError) as error:  # ValueError: a NUL in the name
            raise BadSample(Reason.MISSING_FILE, str(error)) from error

    def _read_extent(self, shard: int, extent: Extent) -> Rows:
        """Rows of an extent; where it can't be read, as many bad ones."""
        path = self.index.paths[shard]
        try:
            size = self._storage.stat(path).size
            if size != self.index.sizes[shard]:
                raise SourceError(f"{path}: had {self.index.sizes[shard]} bytes when indexed, has {size} now")
            rows = self._format.read(path, extent)
            if lacking := [name for name in self.fields.raw if name not in rows.raw]:
                raise SourceError(
                    f"{path}: format {self.source.format!r} doesn't give what transforms look at: "
                    f"Rows.raw lacks {', '.join(lacking)}"
                )
        except Unreachable:  # says nothing of the rows
            raise
        except SourceError as error:
            reason = BadSample(Reason.UNREADABLE_SHARD, str(error))
            empty = [None] * extent.num_rows
            return Rows(
                extent.num_rows,
                dict.fromkeys(self.roles, empty),
                dict.fromkeys(range(extent.num_rows), reason),
                dict.fromkeys(self.fields.raw, empty),
            )
        return rows if self.source.interleaved is None else with_documents(rows, self.source.interleaved)


def _rows_between(rows: Rows, first: int, last: int) -> Rows:
    return Rows(
        last - first,
        {role: values[first:last] for role, values in rows.columns.items()},
        {row - first: error for row, error in rows.bad.items() if first <= row < last},
        {name: values[first:last] for name, values in rows.raw.items()},
    )


def _joined(parts: Sequence[Rows]) -> Rows:
    """Rows one after the other."""
    starts = np.cumsum([0, *(part.num_rows for part in parts)]).tolist()
    return Rows(
        starts[-1],
        {role: [value for part in parts for value in part.columns[role]] for role in parts[0].columns},
        {
            start + row: error
            for part, start in zip(parts, starts, strict=False)
            for row, error in part.bad.items()
        },
        {name: [value for part in parts for value in part.raw[name]] for name in parts[0].raw},
    )


def _asked_for(
    layout: BlockRows, start: int, only: Collection[int] | None
) -> tuple[Collection[int], dict[int, BadSample]]:
    """Which of a block's extents to read, and its samples that are left out, by index, ascending."""
    if only is None:
        return range(len(layout.extents)), {}
    wanted = np.zeros(len(layout.row), bool)
    wanted[np.fromiter(only, np.int64, len(only)) - start] = True
    extents = set(layout.extent_index[wanted].tolist())
    return extents, dict.fromkeys(np.flatnonzero(~wanted).tolist(), NOT_ASKED_FOR)


def _take(values: list[Any], places: NDArray[np.int64]) -> list[Any]:
    return [values[place] for place in places.tolist()]


def _bad_by_position(bad: dict[int, BadSample], places: NDArray[np.int64]) -> dict[int, BadSample]:
    """From place in file order to index in the block, ascending."""
    if not bad:
        return {}
    index_of = np.empty(len(places), np.int64)
    index_of[places] = np.arange(len(places))
    return dict(sorted((int(index_of[place]), error) for place, error in bad.items()))
