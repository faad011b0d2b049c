"""All shards of a source and their extents as columns: what an order is made from.

Lists the files (`SourceFormat.list_shards`), has each indexed once by its format, in a few threads, through
the cache (`index_cache.py`). A shard that can't be used is recorded with its reason and gives no rows; the
source fails only where nothing is left. Knows no order and no epoch: `order.py` goes on from here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.config.options import checked_options as options_of
from dataloader_svc.config.schema import Model, Source
from dataloader_svc.errors import ConfigError, SourceError, Unreachable
from dataloader_svc.sources.base import SOURCES, Extent, FormatContext, ShardIndex, SourceFormat
from dataloader_svc.sources.fields import fields_of
from dataloader_svc.sources.index_cache import CorruptIndex, IndexCache
from dataloader_svc.storage import FileStat, Match, Storage

Progress = Callable[[int, int], None]
"""Called with (shards done, shards in all), from the calling thread."""

_THREADS = 4  # footers and scans wait for the disk; more only fight for the interpreter


class BadShard(NamedTuple):
    """A shard that gives no rows, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class ExtentColumns:
    """The extents of a source, in file order.

    shard       int32 (E,)  index into `SourceIndex.paths`
    first_row   int64 (E,)  row of the shard that the extent begins with
    num_rows    int64 (E,)
    offset, length, extra   int64 (E,)  the format's own
    num_bytes   int64 (E,)  size in memory
    kept        int64 (E,)  of `num_rows`, how many of the first ones are rows of the source (`reduce.py`)
    """

    shard: NDArray[np.int32]
    first_row: NDArray[np.int64]
    num_rows: NDArray[np.int64]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    num_bytes: NDArray[np.int64]
    extra: NDArray[np.int64]
    kept: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.shard)


@dataclass(frozen=True, slots=True, eq=False)
class SourceIndex:
    """Shards and extents of a source.

    paths      shard paths as listed, in stable order; `names` the same below the pattern's folder
    sizes      int64 (S,)  bytes
    digest     hash of everything that an order and its rows depend on, but neither folder nor mtime: data may
               be moved or copied. Two processes that disagree on it do not see the same data.
    files      of a repaired source: the extents of its files as they are, by shard and row; `extents` and
               `digest` are those before the repair: where a row lies, they say by number only (`repaired.py`)
    """

    name: str
    paths: tuple[str, ...]
    names: tuple[str, ...]
    sizes: NDArray[np.int64]
    extents: ExtentColumns
    digest: str
    warnings: tuple[str, ...] = ()
    bad_shards: tuple[BadShard, ...] = ()
    files: ExtentColumns | None = None

    @property
    def num_rows(self) -> int:
        """Rows over all shards: the positions of an epoch."""
        return int(self.extents.kept.sum())

    def extent(self, number: int) -> tuple[int, Extent]:
        """(shard, extent) of extent `number`."""
        return extent_of(self.extents, number)


def first_shards(index: SourceIndex, shards: int) -> SourceIndex:
    """The index of a source's files as it was before more were appended: of the first `shards` of them.

    `index` is of files as they are, neither repaired nor reduced.
    """
    extents = int(np.searchsorted(index.extents.shard, shards))
    columns = {field.name: getattr(index.extents, field.name)[:extents] for field in fields(ExtentColumns)}
    kept = ExtentColumns(**columns)
    names, sizes = index.names[:shards], index.sizes[:shards]
    paths = index.paths[:shards]
    bad = tuple(shard for shard in index.bad_shards if shard.path in paths)
    digest = _digest(names, sizes, kept)
    return replace(
        index, paths=paths, names=names, sizes=sizes, extents=kept, digest=digest, bad_shards=bad, warnings=()
    )


def extent_of(columns: ExtentColumns, number: int) -> tuple[int, Extent]:
    """(shard, extent) of row `number` of the columns."""
    values = (getattr(columns, field)[number] for field in Extent._fields)
    return int(columns.shard[number]), Extent(*(int(value) for value in values))


@dataclass(frozen=True, slots=True)
class _Shard:
    """What became of one shard: an index, or a reason why there is none."""

    match: Match
    size: int
    index: ShardIndex
    warnings: tuple[str, ...] = ()
    bad: str | None = None


def make_format(source: Source, storage: Storage) -> SourceFormat:
    """The format of a source, bound to its fields. ConfigError for an unknown name or option."""
    made = SOURCES.get(source.format)
    options = checked_options(made, source.options)
    return made(FormatContext(fields_of(source), storage, source.extent, options))


def checked_options(made: type[SourceFormat], options: Mapping[str, object]) -> Model:
    """`options:` of a source as the format's own model. Raises ConfigError that names the option."""
    try:
        return options_of(made.Options, options, "format")
    except ConfigError as error:
        raise ConfigError(f"options: {error}") from None


def build_index(
    name: str,
    source: Source,
    base_dir: Path,
    cache_dir: Path | None,
    progress: Progress | None = None,
    *,
    storage: Storage | None = None,
) -> SourceIndex:
    """Index every shard of a source, from the cache where it is fresh. Safe for several processes at once.

    Raises SourceError where no file matches, no shard is usable, no row is found, or all lack a mapped field.
    """
    storage = storage or Storage()
    maker = make_format(source, storage)
    try:
        found = maker.list_shards(source.paths, base_dir)
    except SourceError as error:
        raise SourceError(f"source {name!r}: {error}") from error
    cache = None if cache_dir is None else IndexCache(cache_dir, _options(source, maker))
    shards: list[_Shard] = []
    with ThreadPoolExecutor(max_workers=min(_THREADS, len(found)), thread_name_prefix="index") as pool:
        for shard in pool.map(lambda match: _index_one(match, maker, cache), found):
            shards.append(shard)
            if progress is not None:
                progress(len(shards), len(found))
    _refuse_useless(name, source, shards)
    return _assemble(name, shards)


def _index_one(match: Match, maker: SourceFormat, cache: IndexCache | None) -> _Shard:
    size = 0
    try:
        before = maker.context.storage.stat(match.path)
        size = before.size
        index, warnings = _cached(match.path, before, maker, cache)
    except Unreachable:  # to leave the shard out would change the order of all others
        raise
    except SourceError as error:  # never cached: a permission can be mended without touching the file
        return _Shard(match, size, ShardIndex(()), bad=str(error))
    return _Shard(match, size, index, tuple(warnings))


def _cached(
    path: str, before: FileStat, maker: SourceFormat, cache: IndexCache | None
) -> tuple[ShardIndex, list[str]]:
    warnings: list[str] = []
    if cache is not None:
        try:
            index = cache.load(path, before)
        except CorruptIndex as error:
            index, warnings = None, [f"index made anew: {error}"]
        if index is not None:
            return index, warnings
    index = maker.index_shard(path)
    if maker.context.storage.stat(path) != before:
        raise SourceError(f"{path}: changed while it was indexed; wait until it is written, then start again")
    if cache is not None:
        try:
            cache.save(path, before, index)
        except OSError as error:  # the job can run without a cache, only slower to start
            warnings.append(f"{path}: index not cached in {cache.folder}: {error.strerror}")
    return index, warnings


def _options(source: Source, maker: SourceFormat) -> str:
    """Everything besides the file that `index_shard` depends on."""
    names = dict(maker.context.fields.names)
    options = maker.context.options.model_dump(mode="json")
    return json.dumps([source.format, maker.index_version, source.extent, names, options], sort_keys=True)


def _refuse_useless(name: str, source: Source, shards: Sequence[_Shard]) -> None:
    bad = [shard.bad for shard in shards if shard.bad is not None]
    if len(bad) == len(shards):
        raise SourceError(
            f"source {name!r} ({source.format}): none of {len(shards)} shards can be used:{_listed(bad)}"
        )
    full = [shard.index for shard in shards if shard.index.extents]
    if not full:
        odd = [text for shard in shards for text in (shard.bad, *shard.index.warnings) if text]
        raise SourceError(
            f"source {name!r} ({source.format}): no rows in {len(shards)} shards{_listed(odd) or '.'}"
        )
    for role in sorted(set.intersection(*(set(index.missing) for index in full))):
        raise SourceError(f"source {name!r} ({source.format}): {role}: no shard has {full[0].missing[role]}")


def _listed(reasons: Sequence[str]) -> str:
    more = f"\n  ... and {len(reasons) - 3} more" if len(reasons) > 3 else ""
    return "".join(f"\n  {reason}" for reason in reasons[:3]) + more


def _assemble(name: str, shards: Sequence[_Shard]) -> SourceIndex:
    counts = [len(shard.index.extents) for shard in shards]
    table = np.array([extent for shard in shards for extent in shard.index.extents], np.int64)
    column = dict(zip(Extent._fields, table.T.copy(), strict=True))
    shard_of = np.repeat(np.arange(len(shards), dtype=np.int32), counts)
    columns = ExtentColumns(shard=shard_of, kept=column["num_rows"], **column)
    names = tuple(shard.match.name for shard in shards)
    sizes = np.array([shard.size for shard in shards], np.int64)
    warnings: list[str] = []
    for shard in shards:
        warnings += [*shard.warnings, *shard.index.warnings]
        warnings += [f"{shard.match.path}: {role}: no {text}" for role, text in shard.index.missing.items()]
        warnings += [f"unusable shard: {shard.bad}"] if shard.bad is not None else []
    return SourceIndex(
        name=name,
        paths=tuple(shard.match.path for shard in shards),
        names=names,
        sizes=sizes,
        extents=columns,
        digest=_digest(names, sizes, columns),
        warnings=tuple(warnings),
        bad_shards=tuple(BadShard(shard.match.path, shard.bad) for shard in shards if shard.bad is not None),
    )


def _digest(names: Sequence[str], sizes: NDArray[np.int64], columns: ExtentColumns) -> str:
    rows = np.bincount(columns.shard, columns.num_rows, len(names)).astype(np.int64)
    listing = [list(shard) for shard in zip(names, sizes.tolist(), rows.tolist(), strict=True)]
    # 64 bits tell changed files; every byte of it stands in each state once a source.
    digest = hashlib.blake2b(json.dumps(listing).encode(), digest_size=8)
    for column in (columns.num_rows, columns.num_bytes):  # an order is a function of these
        digest.update(column.astype("<i8").tobytes())
    return digest.hexdigest()
