"""Plain files with a list of them: a table whose rows name media files, as CSV, TSV, JSON lines or parquet.

The paths lie below `media_root`, or else beside the table; `reader.py` reads them. JSON lines and parquet go
to their own formats. CSV is told here: RFC 4180 with a header, cells in quotes may hold delimiters and line
ends.

The index and the reading share one parser, so that a stray quote can't make them count differently. An
extent is a byte range of whole records. A cell longer than 131,072 characters (the limit of Python's csv) is
refused, which also bounds what a quote swallows that nobody closed.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from pydantic import Field

from dataloader_svc.config.schema import Model
from dataloader_svc.errors import BadSample, Reason, SourceError
from dataloader_svc.sources.base import (
    SOURCES,
    Extent,
    FormatContext,
    NoOptions,
    Rows,
    ShardIndex,
    SourceFormat,
)
from dataloader_svc.sources.fields import describe_missing, is_text, row_values
from dataloader_svc.sources.preference import PAIR_ROLES
from dataloader_svc.transforms.unicode import is_unicode

_CHUNK = 2**20
_LONGEST_LINE = 16 * 2**20
_JSON_ROLES = ("messages", "interleaved", "texts", "images", "input_ids", "loss_mask", *PAIR_ROLES)
_OTHERS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}


class ManifestOptions(Model):
    """`options:` of a manifest."""

    delimiter: str | None = Field(
        default=None,
        min_length=1,
        max_length=1,
        description="Between the cells of CSV. Default: a tab in .tsv files, a comma in others.",
    )


@dataclass(frozen=True, slots=True)
class _Record:
    """Cells of one record, or why it has none. `line`: its first line, from 1; `stop`: byte behind it."""

    cells: list[str]
    line: int
    stop: int
    error: str | None = None


@SOURCES.register("manifest")
class Manifest(SourceFormat):
    """Plain media files, named with their texts by a table: CSV or TSV with a header, JSON lines, parquet.

    `offset`, `length`: byte range of CSV records. `extra`: line number of the first, from 1.
    """

    suffixes = (".csv", ".tsv", ".jsonl", ".parquet")
    Options = ManifestOptions

    def __init__(self, context: FormatContext) -> None:
        super().__init__(context)
        inner = FormatContext(context.fields, context.storage, context.extent_bytes, NoOptions())
        self._others = {suffix: SOURCES.get(name)(inner) for suffix, name in _OTHERS.items()}
        self.index_version = sum(each.index_version for each in self._others.values())

    def index_shard(self, path: str) -> ShardIndex:
        """Parse the table once."""
        if (other := self._other(path)) is not None:
            return other.index_shard(path)
        with self.context.storage.open(path) as file:
            lines = _Lines(file, path)
            records = _records(lines, self._delimiter(path))
            header = _header(path, records)
            extents = list(_extents(lines.offset, lines.line, records, self.context.extent_bytes))
        missing = {
            role: "column " + describe_missing(names, header)
            for role, names in self.context.fields.names.items()
            if not set(names) & set(header)
        }
        return ShardIndex(tuple(extents), () if extents else (f"{path}: has no rows",), missing)

    def read(self, path: str, extent: Extent) -> Rows:
        """Parse the records of a byte range."""
        if (other := self._other(path)) is not None:
            return other.read(path, extent)
        storage, fields = self.context.storage, self.context.fields
        with storage.open(path) as file:
            header = _header(path, _records(_Lines(file, path), self._delimiter(path)))
        data = io.BytesIO(storage.read_range(path, extent.offset, extent.length))
        columns: dict[str, list[Any]] = {role: [] for role in fields}
        raw: dict[str, list[Any]] = {name: [] for name in fields.raw}
        bad: dict[int, BadSample] = {}
        row = 0
        for record in _records(_Lines(data, path, extent.extra), self._delimiter(path)):
            cells: Mapping[str, object] = {}
            try:
                cells = self._values(header, record)
                values = row_values(fields, cells)
            except BadSample as error:
                bad[row] = BadSample(error.reason, f"line {record.line}: {error.detail}")
                values = dict.fromkeys(fields)
            for role, value in values.items():
                columns[role].append(value)
            for name, column in raw.items():
                column.append(cells.get(name))
            row += 1
        if row != extent.num_rows:
            raise SourceError(
                f"{path}: {extent.num_rows} rows when indexed, {row} now, at byte {extent.offset}"
            )
        return Rows(row, dict(columns), bad, dict(raw))

    def columns(self, path: str, extent: Extent) -> tuple[str, ...]:
        """Names in the header."""
        if (other := self._other(path)) is not None:
            return other.columns(path, extent)
        with self.context.storage.open(path) as file:
            return tuple(_header(path, _records(_Lines(file, path), self._delimiter(path))))

    def _other(self, path: str) -> SourceFormat | None:
        return self._others.get(PurePosixPath(path).suffix.lower())

    def _delimiter(self, path: str) -> str:
        assert isinstance(self.context.options, ManifestOptions)
        return self.context.options.delimiter or ("\t" if path.lower().endswith(".tsv") else ",")

    def _values(self, header: Sequence[str], record: _Record) -> Mapping[str, object]:
        """Cell by column name; those of roles that are lists are JSON."""
        values: dict[str, object] = dict(zip(header, _checked(header, record), strict=True))
        fields = self.context.fields
        roles = [role for role in _JSON_ROLES if not is_text(fields, role)]
        for name in (name for role in roles for name in fields.names.get(role, ())):
            try:
                values[name] = json.loads(str(values[name]))
            except (ValueError, RecursionError) as error:
                raise BadSample(Reason.BAD_RECORD, f"column {name!r} is not JSON: {error}") from error
            except KeyError:
                continue
        return values


def _checked(header: Sequence[str], record: _Record) -> list[str]:
    """The cells, as many as the header has, in UTF-8."""
    if record.error is not None:
        raise BadSample(Reason.BAD_RECORD, f"not CSV: {record.error}")
    if len(record.cells) < len(header):
        gone = ", ".join(map(repr, header[len(record.cells) :]))
        detail = f"{len(record.cells)} cells for {len(header)} columns: no {gone}"
        raise BadSample(Reason.MISSING_FIELD, detail)
    if len(record.cells) > len(header):
        detail = f"{len(record.cells)} cells for {len(header)} columns; a delimiter outside quotes?"
        raise BadSample(Reason.BAD_RECORD, detail)
    for name, cell in zip(header, record.cells, strict=True):
        if not is_unicode(cell):
            raise BadSample(Reason.BAD_RECORD, f"column {name!r} is not UTF-8")
    return record.cells


def _header(path: str, records: Iterator[_Record]) -> list[str]:
    """Names of the columns."""
    first = next(records, None)
    if first is None:
        raise SourceError(f"{path}: is empty; a CSV file must begin with the names of its columns")
    if first.error is not None or not all(map(is_unicode, first.cells)):
        raise SourceError(f"{path}: the header is not readable as CSV: {first.error or 'it is not UTF-8'}")
    twice = sorted({name for name in first.cells if first.cells.count(name) > 1})
    if twice:
        raise SourceError(f"{path}: has {first.cells.count(twice[0])} columns called {twice[0]!r}")
    return first.cells


def _extents(offset: int, line: int, records: Iterator[_Record], limit: int) -> Iterator[Extent]:
    """Runs of records of about `limit` bytes; the first begins at `offset`."""
    first_row = num_rows = 0
    stop = offset
    for record in records:
        num_rows, stop = num_rows + 1, record.stop
        line = record.line if num_rows == 1 else line
        if stop - offset >= limit:
            yield Extent(first_row, num_rows, offset, stop - offset, stop - offset, line)
            first_row, num_rows, offset = first_row + num_rows, 0, stop
    if num_rows:
        yield Extent(first_row, num_rows, offset, stop - offset, stop - offset, line)


def _records(lines: _Lines, delimiter: str) -> Iterator[_Record]:
    """The records that are not blank lines. One that can't be parsed ends with its line."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        line = lines.line
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield _Record([], line, lines.offset, str(error))
            reader = csv.reader(lines, delimiter=delimiter, strict=True)
            continue
        if cells and lines.last.endswith(delimiter):  # no line end: what followed was cut off
            yield _Record([], line, lines.offset, "the file ends behind a delimiter")
        elif cells:
            yield _Record(cells, line, lines.offset)


class _Lines:
    """Lines of a file with their ends, for the csv module. Bytes that are no UTF-8 come as surrogates.

    offset, line   where the next one begins: byte, and number from `line` on
    last           the one before
    """

    def __init__(self, file: BinaryIO, path: str, line: int = 1) -> None:
        self._file = file
        self._path = path
        self._buffer = b""
        self._place = 0
        self.offset = 0
        self.line = line
        self.last = ""
        self._fill()
        if self._buffer.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise SourceError(f"{path}: is UTF-16; CSV must be UTF-8 (iconv -f UTF-16 -t UTF-8)")
        if line == 1 and self._buffer.startswith(codecs.BOM_UTF8):
            self._place = self.offset = len(codecs.BOM_UTF8)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        end = self._buffer.find(b"\n", self._place)
        while end < 0:
            seen = len(self._buffer) - self._place
            if seen > _LONGEST_LINE:
                raise SourceError(f"{self._path}: line {self.line} has no end in {_LONGEST_LINE} bytes")
            if not self._fill():
                break
            end = self._buffer.find(b"\n", seen)
        line = self._buffer[self._place : end + 1] if end >= 0 else self._buffer[self._place :]
        if not line:
            raise StopIteration
        self._place += len(line)
        self.offset += len(line)
        self.line += 1
        self.last = line.decode("utf-8", "surrogateescape")
        return self.last

    def _fill(self) -> bool:
        """Read on, behind what is not yet taken; False at the end."""
        try:
            more = self._file.read(_CHUNK)
        except OSError as error:
            raise SourceError(f"{self._path}: {error.strerror}") from error
        self._buffer, self._place = self._buffer[self._place :] + more, 0
        return bool(more)
