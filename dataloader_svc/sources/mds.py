"""Mosaic MDS: a folder with index.json and shards of samples, raw or compressed (zstd, gzip).

A shard is `[number of samples: 4] [byte offsets: 4 each, one more than samples] [JSON with the columns]
[samples]`, a sample `[sizes of its columns without a fixed one: 4 each] [values]`, little-endian. So an
extent of about `extent_bytes` is found without reading any sample. A compressed shard is read from its plain
copy (`storage/expanded.py`).

index.json says what a shard must be: bytes, samples, perhaps hashes. One that is something else is refused,
or, by choice, read as far as it goes. Values are read in `mds_values.py`, which knows no pickle.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dataloader_svc.config.schema import Model
from dataloader_svc.errors import BadSample, Reason, SourceError
from dataloader_svc.sources.base import SOURCES, Extent, FormatContext, Rows, ShardIndex, SourceFormat
from dataloader_svc.sources.fields import (
    NUMBERS,
    describe_missing,
    raw_root,
    raw_value,
    row_values,
)
from dataloader_svc.sources.mds_index import Shard, ShardFile, hasher, shards_of
from dataloader_svc.sources.mds_values import PICKLE, base_of, decoded, is_known
from dataloader_svc.sources.preference import PAIR_ROLES
from dataloader_svc.storage import Match
from dataloader_svc.transforms.base import MEDIA_KINDS

_INDEX = "index.json"
_UINT = np.dtype("<u4")
_CHUNK = 2**20
_MOST_CONFIG = 16 * 2**20  # bytes of the JSON in a shard; a larger one is damage
_PICTURES = ("jpeg_array", "jpegarray", "list[jpeg]", "list[png]", "list[pil]")


class MdsOptions(Model):
    """`options:` of an MDS source."""

    on_damage: Literal["refuse", "salvage"] = Field(
        default="refuse",
        description="A shard that is not what index.json says (size, samples, hash): left out, or its rows "
        "read as far as they go, with a warning.",
    )
    validate_hash: bool = Field(
        default=True,
        description="Compare a shard with its hash in index.json, where that has one: it is read once, when "
        "it is indexed. xxhash needs the package of that name.",
    )


class _Columns(NamedTuple):
    """Of a shard: names, encodings, and sizes in bytes (0: told by each sample), in order."""

    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int, ...]

    def cells(self, sample: bytes) -> Mapping[str, slice]:
        """Where in a sample each column lies. Raises BadSample where the sizes don't fill it exactly."""
        at = _UINT.itemsize * self.sizes.count(0)
        told = iter(np.frombuffer(sample[:at], _UINT).tolist() if len(sample) >= at else ())
        cells: dict[str, slice] = {}
        for name, size in zip(self.names, self.sizes, strict=True):
            stop = at + (size or next(told, 0))
            cells[name] = slice(at, stop)
            at = stop
        if at != len(sample):
            raise BadSample(Reason.BAD_RECORD, f"columns of {at} bytes in a sample of {len(sample)}")
        return cells


@SOURCES.register("mds")
class Mds(SourceFormat):
    """Mosaic MDS folder with index.json, raw or compressed shards.

    `offset`, `length`: byte range of whole samples, of the expanded shard.
    """

    Options = MdsOptions
    marks = (_INDEX,)

    def __init__(self, context: FormatContext) -> None:
        super().__init__(context)
        assert isinstance(context.options, MdsOptions)
        self._options = context.options
        self._fields = context.fields
        self._shards: dict[str, Shard] = {}  # by path, as index.json was read last
        self._columns: dict[str, _Columns] = {}  # by path; nearly always all the same

    def list_shards(self, patterns: Sequence[str], base_dir: Path) -> list[Match]:
        """The shards that index.json of each folder lists, in its order, be they there or not."""
        storage = self.context.storage
        found: dict[str, Match] = {}
        for pattern in patterns:
            wanted = pattern if pattern.endswith(_INDEX) else f"{pattern.rstrip('/')}/{_INDEX}"
            for index in storage.matches([wanted], base_dir):
                below = index.name.removesuffix(_INDEX)
                for shard, name in self._list(index.path):
                    path = storage.join(index.path.rpartition("/")[0], name)
                    self._shards[path] = shard
                    found[path] = Match(path, below + name)
        return list(found.values())

    def index_shard(self, path: str) -> ShardIndex:
        """Read the offsets; compare size, number of samples and hash with index.json."""
        shard = self._shard(path)
        part = _part(path, shard)
        warnings: list[str] = []
        size = self.context.storage.stat(path).size
        if size != part.size:
            self._complain(f"{path}: has {size} bytes, index.json says {part.size}", warnings)
        if self._options.validate_hash and part.hashes:
            self._check_hash(path, part, warnings)
        offsets, columns = self._header(path, shard, warnings)
        self._columns[path] = columns
        _check_encodings(path, columns, self._fields.names, self._fields.raw)
        missing = {
            role: describe_missing(names, list(columns.names))
            for role, names in self._fields.names.items()
            if not set(names) & set(columns.names)
        }
        extents = tuple(_extents(offsets, self.context.extent_bytes))
        if not extents:
            warnings.append(f"{path}: has no rows")
        return ShardIndex(extents, tuple(warnings), missing)

    def read(self, path: str, extent: Extent) -> Rows:
        """Read a run of samples, and of them the mapped columns."""
        columns = self._columns.get(path) or self._header(path, None, [])[1]
        self._columns[path] = columns
        offsets = self._offsets(path, extent.first_row, extent.num_rows)
        if offsets[0] != extent.offset or offsets[-1] != extent.offset + extent.length or not _rise(offsets):
            raise SourceError(
                f"{path}: samples {extent.first_row} to {extent.first_row + extent.num_rows} lie elsewhere "
                "than when they were indexed"
            )
        data = self.context.storage.read_expanded(path, extent.offset, extent.length)
        values: dict[str, list[Any]] = {role: [] for role in self._fields}
        raw: dict[str, list[Any]] = {name: [] for name in self._fields.raw}
        bad: dict[int, BadSample] = {}
        bounds = (offsets - extent.offset).tolist()
        for row, (start, stop) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
            found: dict[str, Any] = {}
            try:
                found = self._row(columns, data[start:stop])
                by_role = row_values(self._fields, found)
            except BadSample as error:
                bad[row] = BadSample(error.reason, f"sample {extent.first_row + row}: {error.detail}")
                by_role = dict.fromkeys(self._fields)
            for role, value in by_role.items():
                values[role].append(value)
            for name, column in raw.items():
                column.append(raw_value(found, name))
        return Rows(extent.num_rows, dict(values), bad, dict(raw))

    def columns(self, path: str, extent: Extent) -> tuple[str, ...]:  # noqa: ARG002
        """Those of the shard's header, but for pickled ones and unknown encodings."""
        columns = self._header(path, None, [])[1]
        pairs = zip(columns.names, columns.encodings, strict=True)
        return tuple(name for name, encoding in pairs if base_of(encoding) != PICKLE and is_known(encoding))

    def _list(self, path: str) -> Iterator[tuple[Shard, str]]:
        """Shards of an index.json, and the file to read of each: the raw one if this machine has it."""
        storage = self.context.storage
        for shard in shards_of(path, storage.read_all(path)):
            packed, name = shard.compressed, shard.raw.name
            if packed is not None and not (storage.is_local(path) and (Path(path).parent / name).is_file()):
                name = packed.name
            yield shard, name

    def _shard(self, path: str) -> Shard:
        """What index.json says of a shard; read beside it where `list_shards` hasn't been called."""
        if path not in self._shards:
            folder, _, name = path.rpartition("/")
            index = f"{folder}/{_INDEX}"
            for shard in shards_of(index, self.context.storage.read_all(index)):
                for part in (shard.raw, shard.compressed):
                    if part is not None:
                        self._shards[f"{folder}/{part.name}"] = shard
            if path not in self._shards:
                raise SourceError(f"{path}: {index} lists no {name}")
        return self._shards[path]

    def _complain(self, text: str, warnings: list[str]) -> None:
        if self._options.on_damage == "refuse":
            raise SourceError(f"{text}; `options: {{on_damage: salvage}}` reads what can be read")
        warnings.append(text)

    def _check_hash(self, path: str, part: ShardFile, warnings: list[str]) -> None:
        found = hasher(part.hashes)
        if found is None:
            warnings.append(f"{path}: not compared with its hash: {', '.join(part.hashes)} is not installed")
            return
        name, engine = found
        with self.context.storage.open(path) as file:
            try:
                while chunk := file.read(_CHUNK):
                    engine.update(chunk)
            except OSError as error:
                raise SourceError(f"{path}: {error.strerror}") from error
        if engine.hexdigest() != part.hashes[name].lower():
            self._complain(
                f"{path}: is not what was written: {name} {engine.hexdigest()}, "
                f"index.json says {part.hashes[name]}",
                warnings,
            )

    def _header(
        self, path: str, shard: Shard | None, warnings: list[str]
    ) -> tuple[NDArray[np.int64], _Columns]:
        """Offsets of the samples that are there whole, int64 (n+1,), and the columns."""
        opened = self.context.storage.open_expanded(path)
        opened.file.close()
        if opened.cut:
            self._complain(f"{path}: its compressed data is cut short", warnings)
        if shard is not None and _part(path, shard) != shard.raw and opened.size != shard.raw.size:
            self._complain(
                f"{path}: expands to {opened.size} bytes, index.json says {shard.raw.size}", warnings
            )
        (count,) = np.frombuffer(self.context.storage.read_expanded(path, 0, 4), _UINT).tolist()
        if shard is not None and count != shard.samples:
            self._complain(f"{path}: holds {count} samples, index.json says {shard.samples}", warnings)
        table = 4 * (count + 2)
        if table > opened.size:
            raise SourceError(f"{path}: has {opened.size} bytes, too few for offsets of {count} samples")
        offsets = self._offsets(path, 0, count)
        length = int(offsets[0]) - table
        if not 0 <= length <= _MOST_CONFIG or offsets[0] > opened.size:
            raise SourceError(f"{path}: its first sample can't be at byte {offsets[0]}")
        columns = _columns(path, self.context.storage.read_expanded(path, table, length))
        whole = (np.diff(offsets) >= 0) & (offsets[1:] <= opened.size)
        if not whole.all():
            kept = int(np.argmin(whole))
            self._complain(f"{path}: is cut or damaged behind sample {kept} of {count}", warnings)
            offsets = offsets[: kept + 1]
        return offsets, columns

    def _offsets(self, path: str, first: int, count: int) -> NDArray[np.int64]:
        data = self.context.storage.read_expanded(path, 4 + 4 * first, 4 * (count + 1))
        return np.frombuffer(data, _UINT).astype(np.int64)

    def _row(self, columns: _Columns, sample: bytes) -> dict[str, Any]:
        """Values by column; of those that nobody wants, None."""
        cells = columns.cells(sample)
        found: dict[str, Any] = dict.fromkeys(columns.names)
        encodings = dict(zip(columns.names, columns.encodings, strict=True))
        for name in _wanted(columns, self._fields.names, self._fields.raw):
            found[name] = decoded(encodings[name], sample[cells[name]], name)
        return found


def _part(path: str, shard: Shard) -> ShardFile:
    """The one of the shard's files that `path` is."""
    packed = shard.compressed
    return packed if packed is not None and path.endswith(f"/{packed.name}") else shard.raw


def _columns(path: str, data: bytes) -> _Columns:
    try:
        config = json.loads(data)
        names, encodings = config["column_names"], config["column_encodings"]
        sizes = [size or 0 for size in config["column_sizes"]]
        rows = list(zip(names, encodings, sizes, strict=True))
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise SourceError(f"{path}: its columns can't be read: {error!r}") from error
    for name, encoding, size in rows:
        if not (isinstance(name, str) and isinstance(encoding, str) and type(size) is int and size >= 0):
            raise SourceError(f"{path}: its columns can't be read: {name!r}, {encoding!r}, {size!r}")
    return _Columns(tuple(names), tuple(encodings), tuple(sizes))


def _wanted(columns: _Columns, roles: Mapping[str, tuple[str, ...]], raw: Sequence[str]) -> set[str]:
    """Columns that serve a role, or that transforms look at (or into)."""
    mapped = {name for names in roles.values() for name in names} & set(columns.names)
    return mapped | {root for name in raw if (root := raw_root(name, columns.names)) is not None}


def _serving(role: str) -> tuple[str, ...]:
    """Encodings whose values can serve a role."""
    if role == "text":
        return ("str", "json")
    if role in PAIR_ROLES:
        return ("json", "str")
    if role in NUMBERS:
        return ("ndarray", "bytes", "json")
    if role in MEDIA_KINDS:
        return ("bytes", "jpeg", "png", "pil", "str", "json", *_PICTURES)
    return ("json", *_PICTURES) if role == "images" else ("json",)


def _check_encodings(
    path: str, columns: _Columns, roles: Mapping[str, tuple[str, ...]], raw: Sequence[str]
) -> None:
    """Raises SourceError for a wanted column that can't serve, or that is pickled."""
    encodings = dict(zip(columns.names, columns.encodings, strict=True))
    for name in sorted(_wanted(columns, roles, raw)):
        if base_of(encodings[name]) == PICKLE:
            raise SourceError(
                f"{path}: column {name!r} is pickled, and to read a pickle is to run code that it brings; "
                "write it as str, bytes, json or ndarray"
            )
        if not is_known(encodings[name]):
            raise SourceError(f"{path}: column {name!r} has an unknown encoding, {encodings[name]!r}")
    for role, names in roles.items():
        for name in names:
            if name in encodings and base_of(encodings[name]) not in _serving(role):
                raise SourceError(
                    f"{path}: {role}: column {name!r} is {encodings[name]}; "
                    f"must be {' or '.join(_serving(role)[:3])}"
                )


def _rise(offsets: NDArray[np.int64]) -> bool:
    return bool((np.diff(offsets) >= 0).all())


def _extents(offsets: NDArray[np.int64], extent_bytes: int) -> Iterator[Extent]:
    """Runs of samples that end with the one that fills `extent_bytes`."""
    first, count = 0, len(offsets) - 1
    while first < count:
        stop = min(count, max(first + 1, int(np.searchsorted(offsets, offsets[first] + extent_bytes))))
        length = int(offsets[stop] - offsets[first])
        yield Extent(first, stop - first, int(offsets[first]), length, max(1, length))
        first = stop
