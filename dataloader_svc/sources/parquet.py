"""Parquet: extents are row groups, and only the mapped columns are read.

Columns are resolved by name in each shard. A column of a type that can't serve makes the shard unusable; one
that a shard lacks makes its rows bad, unless every shard lacks it, which is a mistake in the mapping.
Dictionary columns become plain strings. Strings are checked to be UTF-8, value by value where one is not.

Footers: an open file costs 0.84 KB a column chunk and up to 45 ms to parse (measured: 50 columns x 500
groups, 21 MB), so the index keeps row-group numbers and sizes, and parsed footers are kept only up to
`_FOOTER_BYTES` a source.

Known: pyarrow 26 ends the process, instead of raising, where `column()` of a row group meets damaged size
statistics in a footer (3 of 2,300 tiny files with random bytes changed). Only `index_shard` calls it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dataloader_svc import storage
from dataloader_svc.errors import BadSample, Reason, SourceError
from dataloader_svc.sources.base import SOURCES, Extent, Fields, Rows, ShardIndex
from dataloader_svc.sources.fields import describe_missing, media_value, messages_value

_FOOTER_BYTES = 8 * 2**20
_CHUNK_COST = 840  # bytes of a parsed footer a column chunk, measured


@SOURCES.register("parquet")
class Parquet:
    """`offset`: number of the row group. `num_bytes`: uncompressed size of the mapped columns."""

    def __init__(self, fields: Fields, *, extent_bytes: int) -> None:  # noqa: ARG002  row groups are given
        self._fields = fields
        self._footers = _Footers(_FOOTER_BYTES)

    def index_shard(self, path: str) -> ShardIndex:
        """Read the footer."""
        with _reading(path), pq.ParquetFile(storage.local_path(path)) as file:
            schema, metadata = file.schema_arrow, file.metadata
            missing = {
                role: "column " + describe_missing(names, schema.names)
                for role, names in self._fields.names.items()
                if not set(names) & set(schema.names)
            }
            for role, names in self._fields.names.items():
                for name in names:
                    _check_type(path, schema, role, name)
            extents = list(self._row_groups(schema, metadata))
        return ShardIndex(tuple(extents), () if extents else (f"{path}: has no rows",), missing)

    def read(self, path: str, extent: Extent) -> Rows:
        """Read the mapped columns of a row group."""
        with _reading(path):
            metadata = self._footers.get(path)
            with pq.ParquetFile(storage.local_path(path), metadata=metadata) as file:
                if extent.offset >= file.num_row_groups:
                    raise SourceError(f"{path}: has no row group {extent.offset} (any more)")
                self._footers.keep(path, file.metadata)
                wanted = [name for names in self._fields.names.values() for name in names]
                present = [name for name in wanted if name in file.schema_arrow.names]
                table = file.read_row_group(extent.offset, columns=present, use_threads=False)
        num_rows = table.num_rows if present else extent.num_rows
        if num_rows != extent.num_rows:
            raise SourceError(
                f"{path}: row group {extent.offset} had {extent.num_rows} rows, has {num_rows} now"
            )
        bad: dict[int, BadSample] = {}
        columns: dict[str, Any] = {}
        for role, names in self._fields.names.items():
            here = [(name, table.column(name)) for name in names if name in present]
            if not here:
                error = BadSample(Reason.MISSING_FIELD, f"this shard has no column {' or '.join(names)}")
                columns[role] = [None] * num_rows
                bad.update((row, error) for row in range(num_rows) if row not in bad)
            elif role == "text":
                columns[role] = _text_column(*here[0], bad)
            else:
                columns[role] = _object_column(role, here, num_rows, bad)
        return Rows(num_rows, columns, bad)

    def _row_groups(self, schema: pa.Schema, metadata: Any) -> Iterator[Extent]:
        wanted = {name for names in self._fields.names.values() for name in names}
        # leaves of a nested column are called name.list.element...; a plain column may be called so too
        mapped = {name: pa.types.is_nested(schema.field(name).type) for name in wanted & set(schema.names)}
        first_row = 0
        paths = (metadata.schema.column(i).path for i in range(metadata.num_columns))
        leaves = [
            any(path == name or (nested and path.startswith(f"{name}.")) for name, nested in mapped.items())
            for path in paths
        ]
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            if group.num_rows <= 0:
                continue
            sizes = (group.column(i).total_uncompressed_size for i, used in enumerate(leaves) if used)
            yield Extent(first_row, group.num_rows, number, 1, max(1, sum(sizes)))
            first_row += group.num_rows


class _Footers:
    """The last parsed footers, up to a number of bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: OrderedDict[str, tuple[storage.FileStat, Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: str) -> Any:
        """A FileMetaData of the file as it is now, or None."""
        stat = storage.stat(path)
        with self._lock:
            kept = self._kept.get(path)
            if kept is None or kept[0] != stat:
                return None
            self._kept.move_to_end(path)
            return kept[1]

    def keep(self, path: str, metadata: Any) -> None:
        """Keep a footer, and drop the least recently used beyond the limit."""
        cost = _CHUNK_COST * metadata.num_columns * metadata.num_row_groups + 1024
        stat = storage.stat(path)
        with self._lock:
            self._kept[path] = (stat, metadata, cost)
            self._kept.move_to_end(path)
            total = sum(entry[2] for entry in self._kept.values())
            while total > self._limit:
                total -= self._kept.popitem(last=False)[1][2]


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Arrow's errors as SourceError. Arrow raises ValueError, OSError and its own for damaged files."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError) as error:
        text = str(error).strip().splitlines()
        raise SourceError(f"{path}: is not readable as parquet: {text[0] if text else error!r}") from error


def _text_column(name: str, column: pa.ChunkedArray, bad: dict[int, BadSample]) -> list[str | None]:
    """Strings of a column, converted at once; null and undecodable ones are None and in `bad`."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type):
        column = column.cast(pa.large_string() if pa.types.is_string_view(column.type) else pa.large_binary())
    values: list[Any]
    try:
        values = column.to_numpy().tolist()
    except (UnicodeDecodeError, pa.ArrowException):  # some value is not UTF-8: find out which
        values = column.cast(pa.large_binary()).to_numpy().tolist()
    for row, value in enumerate(values):
        if value is None:
            bad.setdefault(row, BadSample(Reason.MISSING_FIELD, f"column {name!r} is null"))
        elif isinstance(value, bytes):
            try:
                values[row] = value.decode()
            except UnicodeDecodeError as error:
                values[row] = None
                detail = f"column {name!r} is not UTF-8 at byte {error.start}"
                bad.setdefault(row, BadSample(Reason.BAD_RECORD, detail))
    return values


def _object_column(
    role: str, columns: list[tuple[str, pa.ChunkedArray]], num_rows: int, bad: dict[int, BadSample]
) -> list[Any]:
    """Messages or media: of several columns the first that is not null in a row."""
    raw = [(name, _is_list(column.type), _to_python(column)) for name, column in columns]
    values: list[Any] = [None] * num_rows
    for row in range(num_rows):
        name, is_list, cells = next((entry for entry in raw if entry[2][row] is not None), raw[0])
        cell = cells[row]
        try:
            if isinstance(cell, UnicodeDecodeError):
                raise BadSample(Reason.BAD_RECORD, f"column {name!r} is not UTF-8")
            if role == "messages":
                values[row] = messages_value(cell, name)
            else:
                values[row] = media_value(cell, name, null_is_none=is_list)
        except BadSample as error:
            bad.setdefault(row, error)
    return values


def _to_python(column: pa.ChunkedArray) -> list[Any]:
    """Python values; a cell with a string that is not UTF-8 is the error itself."""
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        values = []
        for row in range(len(column)):
            try:
                values.append(column[row].as_py())
            except UnicodeDecodeError as error:
                values.append(error)
    return values


def _check_type(path: str, schema: pa.Schema, role: str, name: str) -> None:
    """SourceError for a column whose type can't serve the role, or that is there twice."""
    places = schema.get_all_field_indices(name)
    if not places:
        return
    if len(places) > 1:
        raise SourceError(f"{path}: has {len(places)} columns called {name!r}")
    found = schema.field(places[0]).type
    wanted = {"text": "a string", "messages": "a list of structs {role, content}"}.get(
        role, "binary, a string (a path), a struct {bytes, path}, or a list of them"
    )
    if not _serves(role, found):
        raise SourceError(f"{path}: {role}: column {name!r} is {found}; it must be {wanted}")


def _serves(role: str, found: pa.DataType) -> bool:
    if isinstance(found, pa.BaseExtensionType):
        found = found.storage_type
    if pa.types.is_null(found):
        return True  # every row is null, which is told row by row
    if role == "text":
        return _is_bytes(found)
    if role == "messages":
        return _is_list(found) and pa.types.is_struct(found.value_type)
    if _is_list(found):
        return not _is_list(found.value_type) and _serves(role, found.value_type)
    return _is_bytes(found) or (
        pa.types.is_struct(found)
        and any(field.name in ("bytes", "path") and _is_bytes(field.type) for field in found)
    )


def _is_list(found: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(found) or pa.types.is_large_list(found) or pa.types.is_fixed_size_list(found)
    )


def _is_bytes(found: pa.DataType) -> bool:
    """Strings or binary, plain or as dictionary."""
    if pa.types.is_dictionary(found):
        return _is_bytes(found.value_type)
    tests = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
    )
    return any(test(found) for test in tests)
