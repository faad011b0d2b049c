"""Arrow IPC: streams (a Hugging Face `datasets` cache), files, Feather v2. Extents are record batches.

The index walks the messages and reads no body (`arrow_messages.py`), so a cut file gives its whole batches.
A batch is read as a stream of its own, made of the schema, the dictionaries that hold there, and itself; only
the mapped columns are decompressed. Damaged buffers end a process in Arrow's C++, so all are checked first.

A batch is read whole: a table that was written as one batch is one extent. `batch_size` of the writer (1,000
rows in `datasets`, 65,536 in Feather) is what decides.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from dataloader_svc.errors import SourceError
from dataloader_svc.sources.arrow_columns import check_schema, columns_in_use, rows_of
from dataloader_svc.sources.arrow_messages import BATCH, DICTIONARY, SCHEMA, Damaged, Message, walk
from dataloader_svc.sources.arrow_types import columns_beside_numbers
from dataloader_svc.sources.base import SOURCES, Extent, Rows, ShardIndex, SourceFormat

_COMPRESSION = 3  # how much larger text is than its lz4 or zstd buffers, about
_MOST_ROWS = 2**31 - 1  # of an array, by the specification
_END = struct.pack("<II", 0xFFFFFFFF, 0)


@SOURCES.register("arrow")
class ArrowIpc(SourceFormat):
    """Arrow IPC stream or file, Feather v2, the cache files of Hugging Face `datasets` (.arrow).

    `offset`, `length`: byte range of a record batch. `extra`: dictionary batches in front of it.
    """

    suffixes = (".arrow", ".feather", ".ipc")

    def index_shard(self, path: str) -> ShardIndex:
        """Walk the messages: a few hundred bytes of each batch are read."""
        extents: list[Extent] = []
        missing: dict[str, str] | None = None
        warnings: list[str] = []
        first_row = dictionaries = 0
        try:
            for message in self._messages(path):
                if missing is None:
                    missing = self._check_schema(path, message)
                elif message.kind == DICTIONARY:
                    dictionaries += 1
                elif message.kind == BATCH and message.num_rows:
                    _check_rows(message)
                    extents.append(_extent(message, first_row, dictionaries))
                    first_row += message.num_rows
        except Damaged as error:
            if missing is None:
                raise SourceError(f"{path}: is not readable as Arrow IPC: {error}") from error
            warnings.append(f"{path}: {error}; {first_row} rows of whole batches are read")
        if missing is None:
            raise SourceError(f"{path}: is not readable as Arrow IPC: it holds no schema")
        if not extents:
            warnings.append(f"{path}: has no rows")
        return ShardIndex(tuple(extents), tuple(warnings), missing)

    def read(self, path: str, extent: Extent) -> Rows:
        """Read one record batch."""
        parts = [*self._preamble(path, extent.extra), (extent.offset, extent.length)]
        stream = b"".join(self.context.storage.read_range(path, *part) for part in parts) + _END
        fields = self.context.fields
        with _reading(path):
            schema = pa.ipc.open_stream(stream).schema
            _check_names(schema)
            present = columns_in_use(schema, fields)
            places = [schema.get_field_index(name) for name in present]
            options = pa.ipc.IpcReadOptions(included_fields=places or None, use_threads=False)
            table = pa.ipc.open_stream(stream, options=options).read_all()
            for name in present:
                _check_buffers(table.column(name))
        if table.num_rows != extent.num_rows:
            raise SourceError(
                f"{path}: the batch at byte {extent.offset} had {extent.num_rows} rows, "
                f"has {table.num_rows} now"
            )
        return rows_of(table, extent.num_rows, fields)

    def columns(self, path: str, extent: Extent) -> tuple[str, ...]:  # noqa: ARG002
        """Those of the file's schema that are not numbers alone."""
        try:
            first = next(self._messages(path))
        except (Damaged, StopIteration) as error:
            raise SourceError(f"{path}: is not readable as Arrow IPC: {error}") from error
        data = self.context.storage.read_range(path, first.offset, first.length)
        with _reading(path):
            return columns_beside_numbers(pa.ipc.read_schema(pa.py_buffer(data)))

    def _messages(self, path: str) -> Iterator[Message]:
        size = self.context.storage.stat(path).size
        with self.context.storage.open(path) as file:
            try:
                yield from walk(file, size)
            except OSError as error:
                raise SourceError(f"{path}: {error.strerror}") from error

    def _check_schema(self, path: str, message: Message) -> dict[str, str]:
        if message.kind != SCHEMA:
            raise Damaged("it does not begin with a schema")
        data = self.context.storage.read_range(path, message.offset, message.length)
        with _reading(path):
            schema = pa.ipc.read_schema(pa.py_buffer(data))
            _check_names(schema)
        return check_schema(path, schema, self.context.fields)

    def _preamble(self, path: str, dictionaries: int) -> list[tuple[int, int]]:
        """Byte ranges of the schema and of those of the first `dictionaries` that hold behind them."""
        schema: tuple[int, int] | None = None
        held: dict[int, list[tuple[int, int]]] = {}
        try:
            for message in self._messages(path):
                if schema is None:
                    schema = (message.offset, message.length)
                elif message.kind == DICTIONARY:
                    parts = held.setdefault(message.dictionary, [])
                    if not message.is_delta:
                        parts.clear()
                    parts.append((message.offset, message.length))
                    dictionaries -= 1
                if dictionaries == 0:
                    break
        except Damaged as error:
            raise SourceError(f"{path}: is not readable as Arrow IPC: {error}") from error
        if schema is None or dictionaries:
            raise SourceError(f"{path}: is not what was indexed: schema or dictionaries are gone")
        return [schema, *sorted(part for parts in held.values() for part in parts)]


def _extent(message: Message, first_row: int, dictionaries: int) -> Extent:
    num_bytes = message.body_length * (_COMPRESSION if message.compressed else 1)
    return Extent(
        first_row, message.num_rows, message.offset, message.length, max(1, num_bytes), dictionaries
    )


def _check_rows(message: Message) -> None:
    """A flipped bit in the number of rows must not become an epoch of 10^15 positions."""
    possible = message.num_rows <= _MOST_ROWS and (
        message.compressed or message.num_rows <= 8 * message.body_length
    )
    if not possible:
        raise Damaged(
            f"claims {message.num_rows} rows in {message.body_length} bytes at byte {message.offset}"
        )


def _check_names(fields: Iterable[pa.Field]) -> None:
    """Raises UnicodeDecodeError, a ValueError, for a name that is none; those of inner fields too."""
    for field in fields:
        field.name.encode()
        _check_names(field.type.field(number) for number in range(field.type.num_fields))


def _check_buffers(column: pa.ChunkedArray) -> None:
    """Raises ArrowInvalid for offsets and indices that lead outside. UTF-8 is left to the rows."""
    raw = _as_binary(column.type)
    for chunk in column.chunks:
        (chunk if raw == column.type else chunk.view(raw)).validate(full=True)


def _as_binary(found: pa.DataType) -> pa.DataType:
    """The same layout with bytes for strings: what is checked in full without a look at their characters."""
    if pa.types.is_string(found):
        return pa.binary()
    if pa.types.is_large_string(found):
        return pa.large_binary()
    if pa.types.is_list(found):
        return pa.list_(_as_binary_field(found.value_field))
    if pa.types.is_large_list(found):
        return pa.large_list(_as_binary_field(found.value_field))
    if pa.types.is_struct(found):
        return pa.struct([_as_binary_field(field) for field in found])
    return found


def _as_binary_field(field: pa.Field) -> pa.Field:
    return field.with_type(_as_binary(field.type))


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Arrow's errors as SourceError. Arrow raises ValueError, OSError and its own for damaged files."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError) as error:
        text = str(error).strip().splitlines()
        raise SourceError(f"{path}: is not readable as Arrow IPC: {text[0] if text else error!r}") from error
