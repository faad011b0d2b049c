"""JSON lines: one object a line, UTF-8. Extents are byte ranges that end at a line end.

The index looks for line ends only, in MiB pieces, and parses nothing. Blank lines (space, tab, CR) are no
rows. A byte order mark and CR are taken off. Whatever else is wrong with a line makes one bad row, named by
its line number: two objects, NUL padding, a cut end, bytes that are not UTF-8, a row that is no object.
NaN and Infinity are taken as Python's json takes them. gzip and zstd files are read as what they hold,
whatever their name. UTF-16 files are refused whole.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.errors import BadSample, Reason, SourceError
from dataloader_svc.sources.base import SOURCES, Extent, FormatContext, Rows, ShardIndex, SourceFormat
from dataloader_svc.sources.fields import raw_value, row_values
from dataloader_svc.sources.values import kind_of

_CHUNK = 2**20
_MOST_COLUMNS = 1000  # a row may have a key for each of a million words
_NEWLINE = 10
_BLANK = b" \t\r"
_CONTENT = np.ones(256, np.bool_)  # by byte: does it make a line a row? (NUL does: it is damage, not space)
_CONTENT[list(_BLANK + b"\n")] = False
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@SOURCES.register("jsonl")
class JsonLines(SourceFormat):
    """JSON lines, one object a line, UTF-8; gzip and zstd too.

    `offset`, `length`: byte range, of the expanded file. `extra`: line number of its first line, from 1.
    """

    suffixes = (".jsonl", ".ndjson", ".jsonl.gz", ".jsonl.zst")

    def __init__(self, context: FormatContext) -> None:
        super().__init__(context)
        self._fields = context.fields
        self._extent_bytes = context.extent_bytes

    def index_shard(self, path: str) -> ShardIndex:
        """Scan for line ends: one pass over the file at about the speed of the disk."""
        opened = self.context.storage.open_expanded(path)
        with opened.file as file:
            try:
                start = _check_encoding(path, file.read(4))
                file.seek(start)
                cutter = _Cutter(start, self._extent_bytes)
                while chunk := file.read(_CHUNK):
                    cutter.feed(chunk)
            except OSError as error:
                raise SourceError(f"{path}: {error.strerror}") from error
        extents = cutter.finish()
        warnings = [f"{path}: its compressed data is cut short; what follows is lost"] if opened.cut else []
        if not extents:
            warnings.append(f"{path}: has no rows")
        return ShardIndex(tuple(extents), tuple(warnings))

    def read(self, path: str, extent: Extent) -> Rows:
        """Parse the lines of a byte range."""
        data = self.context.storage.read_expanded(path, extent.offset, extent.length)
        columns: dict[str, list[Any]] = {role: [] for role in self._fields}
        raw: dict[str, list[Any]] = {name: [] for name in self._fields.raw}
        bad: dict[int, BadSample] = {}
        row = 0
        for number, line in enumerate(data.split(b"\n"), extent.extra):
            content = line.strip(_BLANK)
            if not content:
                continue
            found: dict[str, object] = {}
            try:
                found = _parse(content)
                values = row_values(self._fields, found)
            except BadSample as error:
                bad[row] = BadSample(error.reason, f"line {number}: {error.detail}")
                values = dict.fromkeys(self._fields)
            for role, value in values.items():
                columns[role].append(value)
            for name, column in raw.items():
                column.append(raw_value(found, name))
            row += 1
        if row != extent.num_rows:
            raise SourceError(
                f"{path}: {extent.num_rows} rows when indexed, {row} now, at byte {extent.offset}"
            )
        return Rows(row, dict(columns), bad, dict(raw))

    def columns(self, path: str, extent: Extent) -> tuple[str, ...]:
        """Keys of the rows that can be parsed; the first 1000."""
        data = self.context.storage.read_expanded(path, extent.offset, extent.length)
        found: dict[str, None] = {}
        for line in data.split(b"\n"):
            with contextlib.suppress(BadSample):
                if content := line.strip(_BLANK):
                    found.update(dict.fromkeys(_parse(content)))
        return tuple(found)[:_MOST_COLUMNS]


def _parse(line: bytes) -> dict[str, object]:
    """The object of one line. Raises BadSample."""
    try:
        value = json.loads(line.decode())
        if _SURROGATE.search(line):
            json.dumps(value, ensure_ascii=False).encode()  # half a pair can't be encoded, nor tokenized
    except UnicodeDecodeError as error:
        raise BadSample(Reason.BAD_RECORD, f"not UTF-8 at byte {error.start} of the line") from error
    except UnicodeEncodeError as error:
        raise BadSample(Reason.BAD_RECORD, "an escape such as \\ud800 is half a character") from error
    except json.JSONDecodeError as error:
        raise BadSample(Reason.BAD_RECORD, f"not JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits; 100,000 brackets
        raise BadSample(Reason.BAD_RECORD, f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadSample(Reason.WRONG_TYPE, f"a row must be an object, is {kind_of(value)}")
    return value


def _check_encoding(path: str, head: bytes) -> int:
    """Where the rows begin: behind a byte order mark. Raises SourceError for what is no UTF-8 text."""
    if head.startswith(codecs.BOM_UTF8):
        return len(codecs.BOM_UTF8)
    if head in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE):
        raise SourceError(f"{path}: is UTF-32; JSON lines must be UTF-8 (iconv -f UTF-32 -t UTF-8)")
    if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, b"{\0", b"\0{"):
        raise SourceError(f"{path}: is UTF-16; JSON lines must be UTF-8 (iconv -f UTF-16 -t UTF-8)")
    for magic, name, remedy in (
        (b"\x1f\x8b", "gzip twice", "gunzip it once"),
        (b"BZh", "bzip2", "bunzip2"),
        (b"\xfd7zX", "xz", "unxz"),
        (b"PAR1", "parquet", "format: parquet"),
    ):
        if head.startswith(magic):
            raise SourceError(f"{path}: is {name}, not JSON lines ({remedy})")
    return 0


class _Cutter:
    """Line ends in, extents out. Holds counters only: a line may be longer than memory."""

    def __init__(self, start: int, extent_bytes: int) -> None:
        self._limit = extent_bytes
        self._position = start  # of the next chunk
        self._open_has_content = False  # of the line that the last chunk left unfinished
        self._extent_start = self._line_start = start
        self._extent_line = self._line = 1
        self._extent_row = self._row = 0
        self._extents: list[Extent] = []

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the file."""
        buffer = np.frombuffer(chunk, np.uint8)
        ends = np.flatnonzero(buffer == _NEWLINE) + 1
        if len(ends) == 0:
            self._open_has_content = self._open_has_content or _has_content(buffer)
        else:
            is_row = _rows(buffer, ends)
            is_row[0] |= self._open_has_content
            self._open_has_content = _has_content(buffer[ends[-1] :])
            self._lines(ends + self._position, is_row)
        self._position += len(chunk)

    def finish(self) -> list[Extent]:
        """The extents, with what follows the last line end."""
        if self._open_has_content:
            self._lines(np.array([self._position]), np.array([True]))
        if self._row > self._extent_row:
            self._close()
        return self._extents

    def _lines(self, ends: NDArray[np.int64], is_row: NDArray[np.bool_]) -> None:
        """Lines that end before `ends`; those with `is_row` are rows."""
        done = 0
        rows_before = np.concatenate([[0], np.cumsum(is_row)])
        while done < len(ends):
            full = int(
                np.searchsorted(ends, self._extent_start + self._limit)
            )  # the line that fills the extent
            stop = min(full + 1, len(ends))
            self._row += int(rows_before[stop] - rows_before[done])
            self._line += stop - done
            self._line_start = int(ends[stop - 1])
            if full < len(ends):
                self._close()
            done = stop

    def _close(self) -> None:
        num_rows = self._row - self._extent_row
        length = self._line_start - self._extent_start
        if num_rows:  # a run of blank lines is no extent
            self._extents.append(
                Extent(self._extent_row, num_rows, self._extent_start, length, length, self._extent_line)
            )
        self._extent_start, self._extent_line, self._extent_row = self._line_start, self._line, self._row


def _rows(buffer: NDArray[np.uint8], ends: NDArray[np.int64]) -> NDArray[np.bool_]:
    """For each line that ends in the buffer, whether it holds more than white space."""
    starts = np.concatenate([[0], ends[:-1]])
    if _CONTENT[buffer[starts]].all():  # the plain case: no line begins with white space
        return np.ones(len(ends), np.bool_)
    return np.logical_or.reduceat(_CONTENT[buffer[: ends[-1]]], starts)


def _has_content(buffer: NDArray[np.uint8]) -> bool:
    return len(buffer) > 0 and (bool(_CONTENT[buffer[0]]) or bool(_CONTENT[buffer].any()))
