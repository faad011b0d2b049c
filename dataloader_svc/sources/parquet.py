"""Parquet: extents are row groups, and only the mapped columns are read.

Columns are resolved by name in each shard. A column of a type that can't serve makes the shard unusable; one
that a shard lacks makes its rows bad, unless every shard lacks it, which is a mistake in the mapping.
Dictionary columns become plain strings. Strings are checked to be UTF-8, value by value where one is not.

Footers: an open file costs 0.84 KB a column chunk and up to 45 ms to parse (measured: 50 columns x 500
groups, 21 MB), so the index keeps row-group numbers and sizes, and parsed footers are kept in the storage,
where all sources of a process share one limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dataloader_svc.errors import SourceError
from dataloader_svc.sources.arrow_columns import check_schema, columns_in_use, rows_of
from dataloader_svc.sources.arrow_types import columns_beside_numbers
from dataloader_svc.sources.base import SOURCES, Extent, FormatContext, Rows, ShardIndex, SourceFormat
from dataloader_svc.sources.parquet_footer import check_column_chunks

_CHUNK_COST = 840  # bytes of a parsed footer a column chunk, measured


@SOURCES.register("parquet")
class Parquet(SourceFormat):
    """Parquet, of which only the mapped columns are read, a row group at once.

    `offset`: number of the row group. `num_bytes`: uncompressed size of the mapped columns.
    """

    suffixes = (".parquet",)

    def __init__(self, context: FormatContext) -> None:
        super().__init__(context)
        self._fields = context.fields

    def index_shard(self, path: str) -> ShardIndex:
        """Read the footer."""
        with _reading(path), self._open(path) as file:
            schema, metadata = file.schema_arrow, file.metadata
            missing = check_schema(path, schema, self._fields)
            check_column_chunks(metadata, columns_in_use(schema, self._fields))
            extents = list(self._row_groups(schema, metadata))
        return ShardIndex(tuple(extents), () if extents else (f"{path}: has no rows",), missing)

    def read(self, path: str, extent: Extent) -> Rows:
        """Read the mapped columns of a row group."""
        storage = self.context.storage
        stat = storage.stat(path)
        kept = storage.kept.get(path, stat)
        with _reading(path), self._open(path, kept) as file:
            if extent.offset >= file.num_row_groups:
                raise SourceError(f"{path}: has no row group {extent.offset} (any more)")
            storage.kept.keep(path, stat, file.metadata, _footer_cost(file.metadata))
            present = columns_in_use(file.schema_arrow, self._fields)
            table = file.read_row_group(extent.offset, columns=present, use_threads=False)
        num_rows = table.num_rows if present else extent.num_rows
        if num_rows != extent.num_rows:
            raise SourceError(
                f"{path}: row group {extent.offset} had {extent.num_rows} rows, has {num_rows} now"
            )
        return rows_of(table, num_rows, self._fields)

    def columns(self, path: str, extent: Extent) -> tuple[str, ...]:  # noqa: ARG002
        """Those of the file's schema that are not numbers alone."""
        with _reading(path), self._open(path) as file:
            return columns_beside_numbers(file.schema_arrow)

    @contextmanager
    def _open(self, path: str, metadata: object = None) -> Iterator[Any]:
        """A ParquetFile. Arrow opens what is local by itself; for the rest our file reads ranges."""
        storage = self.context.storage
        if storage.is_local(path):
            with pq.ParquetFile(storage.local_path(path), metadata=metadata) as file:
                yield file
        else:
            with storage.open(path) as raw, pq.ParquetFile(pa.PythonFile(raw), metadata=metadata) as file:
                yield file

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


def _footer_cost(metadata: Any) -> int:
    return int(_CHUNK_COST * metadata.num_columns * metadata.num_row_groups + 1024)


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Arrow's errors as SourceError. Arrow raises ValueError, OSError and its own for damaged files."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError) as error:
        text = str(error).strip().splitlines()
        raise SourceError(f"{path}: is not readable as parquet: {text[0] if text else error!r}") from error
