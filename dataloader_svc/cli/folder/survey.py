"""Reads all that `walk.py` finds, in worker processes, and counts what is fine and what isn't, file by file.

Memory is bounded by what is under way: an extent for each reading process and the next one, a medium for each
decoding one. Of bad rows the first few of each file and reason are kept, or by choice all.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress

from dataloader_svc.cli.folder import media, rows
from dataloader_svc.cli.folder.walk import MediaFiles, NotRead, Shard, Unusable, size_below, size_of, walk
from dataloader_svc.config.schema import Loader, StorageSettings
from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.media.sniff import Kind
from dataloader_svc.media.workers import Limits, WorkerPool
from dataloader_svc.sources.base import Extent
from dataloader_svc.storage import Storage

READ_SECONDS = 3600.0
"""For one extent, or for indexing one file: a compressed one is expanded meanwhile."""

READ_MEMORY = 4 * 2**30
"""Bytes of a process that reads extents."""

NO_ROW = -1
"""In place of a row, of a file that is a medium itself."""

_OPEN = f"{rows.__name__}:{rows.open_shard.__name__}"
_CHECK = f"{rows.__name__}:{rows.check_extent.__name__}"
_EXAMINE = f"{media.__name__}:{media.examine.__name__}"

Item = TypeVar("Item")
Result = TypeVar("Result")


class BadPlace(NamedTuple):
    """A row, or a file that is a medium, that a job would not take. `row`: NO_ROW for such a file."""

    file: str
    row: int
    field: str
    reason: str
    detail: str


@dataclass(slots=True)
class FileReport:
    """Of one shard, of the media files of a folder with one suffix, or of a data set that is unusable.

    file      below the folder that is checked
    rows      of them all; of media files, how many there are
    bad       reason -> rows
    media     that were decoded, inside of rows or as files
    error     why there is no row at all
    remote    media at addresses of the web, which nobody fetched
    """

    file: str
    format: str
    rows: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    media: int = 0
    places: list[BadPlace] = field(default_factory=list)
    error: str | None = None
    notes: list[str] = field(default_factory=list)
    remote: int = 0

    @property
    def fine(self) -> int:
        """Rows that a job would take."""
        return self.rows - self.bad.total()

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong with it."""
        return self.error is None and not self.bad

    def add(self, place: BadPlace, most: int | None) -> None:
        """Count a bad row, and keep where it is unless `most` of its reason are kept."""
        self.bad[place.reason] += 1
        if most is None or self.bad[place.reason] <= most:
            self.places.append(place)


@dataclass(frozen=True, slots=True)
class FolderReport:
    """files: in the order of their names. not_read: path below the folder, and why."""

    files: tuple[FileReport, ...]
    not_read: tuple[NotRead, ...]


class Survey:
    """See the module. `most`: places of bad rows to keep, by file and reason; None: all."""

    def __init__(self, root: str, progress: Progress, most: int | None) -> None:
        self._root = root
        self._progress = progress
        self._most = most
        self._decoders = os.cpu_count() or 1
        self._readers = max(1, self._decoders // 2)
        loader = Loader()
        self._reading = WorkerPool(Limits(self._readers, READ_SECONDS, READ_MEMORY), preload=[rows.__name__])
        limits = Limits(self._decoders, loader.decode_timeout, loader.worker_memory)
        self._decoding = WorkerPool(limits, preload=[media.__name__])
        self._open = ExitStack()

    def __enter__(self) -> Self:
        scratch = self._open.enter_context(tempfile.TemporaryDirectory(prefix="dataloader-svc-check-"))
        self._where = {"scratch": scratch, "scratch_bytes": StorageSettings().scratch_bytes}
        # Threads wait for processes: two kinds, since one that reads hands its media to those that decode.
        self._extents = self._open.enter_context(ThreadPoolExecutor(self._readers))
        self._media = self._open.enter_context(ThreadPoolExecutor(self._decoders))
        # Left first: whoever waits for an answer gets an error at once, and the threads end.
        self._open.callback(self._reading.close)
        self._open.callback(self._decoding.close)
        return self

    def __exit__(self, *_: object) -> None:
        for pool in (self._extents, self._media):
            pool.shutdown(wait=False, cancel_futures=True)
        self._open.close()

    def run(self) -> FolderReport:
        """All of it, with a bar."""
        files: list[FileReport] = []
        not_read: list[NotRead] = []
        self._bar = self._progress.add_task("checking", total=size_below(self._root) or 1)
        for found in walk(self._root, Storage()):
            if isinstance(found, NotRead):
                not_read.append(NotRead(self._below(found.path), found.why))
                self._progress.advance(self._bar, size_of(found.path))
            elif isinstance(found, Unusable):
                files.append(
                    FileReport(self._below(found.path), found.format, error=self._without_root(found.why))
                )
            elif isinstance(found, Shard):
                files.append(self._shard(found))
            else:
                files.append(self._media_files(found))
        self._progress.remove_task(self._bar)
        return FolderReport(tuple(files), tuple(not_read))

    def _shard(self, shard: Shard) -> FileReport:
        report = FileReport(self._below(shard.path), shard.format)
        about = {"format": shard.format, "options": shard.options, "path": shard.path, **self._where}
        size, done = size_of(shard.path), 0
        try:
            said, (extents, *_) = _answer(self._reading, _OPEN, about)
        except BadSample as bad:
            report.error = self._without_root(
                bad.detail if bad.reason == Reason.UNREADABLE_SHARD else str(bad)
            )
            extents = np.empty((0, len(Extent._fields)), np.int64)
        else:
            report.notes += map(self._without_root, said["warnings"])
            about |= {"profile": said["profile"]}
        total = int(extents[:, 1].sum())

        def read(extent: list[int]) -> _ReadExtent:
            return _read_extent(self._reading, about, extent)

        for found in in_order(self._extents, read, extents.tolist(), self._readers + 1):
            for place in self._bad_rows(report, found):
                report.add(place, self._most)
            report.rows += found.extent.num_rows
            done += found.extent.num_rows
            self._progress.update(self._bar, description=report.file[-40:])
            self._progress.advance(self._bar, size * found.extent.num_rows / total)
        if not done:
            self._progress.advance(self._bar, size)
        return report

    def _bad_rows(self, report: FileReport, found: _ReadExtent) -> list[BadPlace]:
        """Bad rows of an extent, ascending, each with the first thing that is wrong with it."""
        first = found.extent.first_row
        bad = dict(found.bad)
        report.remote += found.remote
        for medium, problem in self._decode(found.media, report):
            if problem is not None:
                bad.setdefault(medium.row, (medium.field, problem.reason, problem.detail))
        return [
            BadPlace(report.file, first + row, name, reason, self._without_root(detail))
            for row, (name, reason, detail) in sorted(bad.items())
        ]

    def _media_files(self, found: MediaFiles) -> FileReport:
        single = found.names[0] if len(found.names) == 1 else f"*{found.suffix}"
        report = FileReport(self._below(f"{found.folder}/{single}"), found.kind)
        media = (_Medium(0, name, found.kind, f"{found.folder}/{name}") for name in found.names)
        for medium, problem in self._decode(media, report):
            report.rows += 1
            if problem is not None:
                name = self._below(f"{found.folder}/{medium.field}")
                detail = self._without_root(problem.detail)
                report.add(BadPlace(name, NO_ROW, "", problem.reason, detail), self._most)
            self._progress.update(self._bar, description=report.file[-40:])
            self._progress.advance(self._bar, size_of(f"{found.folder}/{medium.field}"))
        return report

    def _decode(
        self, media: Iterable[_Medium], report: FileReport
    ) -> Iterator[tuple[_Medium, BadSample | None]]:
        """Each with what is wrong with it, in order."""

        def examine(medium: _Medium) -> tuple[_Medium, BadSample | None]:
            about = {"kind": medium.kind}
            try:
                if isinstance(medium.data, str):
                    self._decoding.call(_EXAMINE, {**about, "path": medium.data})
                else:
                    self._decoding.call(_EXAMINE, about, medium.data)
            except BadSample as bad:
                return medium, bad
            return medium, None

        for found in in_order(self._media, examine, media, 2 * self._decoders):
            report.media += 1
            yield found

    def _below(self, path: str) -> str:
        return path.removeprefix(f"{self._root}/")

    def _without_root(self, text: str) -> str:
        """A message, with paths as in the table."""
        return text.replace(f"{self._root}/", "")


class _Medium(NamedTuple):
    """`row` of its extent; `field`, of a file its name; `data`: encoded, or a path."""

    row: int
    field: str
    kind: Kind
    data: bytes | str


class _ReadExtent(NamedTuple):
    """`bad`: row of the extent -> field, reason, what was found."""

    extent: Extent
    bad: Mapping[int, tuple[str, str, str]]
    media: Sequence[_Medium]
    remote: int


def _read_extent(pool: WorkerPool, about: Mapping[str, Any], values: list[int]) -> _ReadExtent:
    """By a worker; where it can't be read, all of its rows are bad."""
    extent = Extent(*values)
    try:
        said, (data, *_) = _answer(pool, _CHECK, {**about, "extent": values})
    except BadSample as bad:
        what = ("", bad.reason.value, bad.detail)
        return _ReadExtent(extent, dict.fromkeys(range(extent.num_rows), what), (), 0)
    media, at = [], 0
    for row, name, kind, medium in said["media"]:
        if isinstance(medium, int):
            media.append(_Medium(row, name, kind, data[at : at + medium].tobytes()))
            at += medium
        else:
            media.append(_Medium(row, name, kind, medium))
    return _ReadExtent(extent, {row: tuple(what) for row, *what in said["bad"]}, media, said["remote"])


def _answer(pool: WorkerPool, operation: str, about: Mapping[str, Any]) -> tuple[Any, Sequence[NDArray[Any]]]:
    """Raises BadSample, UNREADABLE_SHARD where the format says so."""
    answer = pool.call(operation, about)
    if "error" in answer.value:
        raise BadSample(Reason.UNREADABLE_SHARD, answer.value["error"])
    return answer.value, answer.arrays


def in_order(
    pool: Executor, call: Callable[[Item], Result], items: Iterable[Item], ahead: int
) -> Iterator[Result]:
    """`map` in threads that takes only `ahead` items before their results are wanted."""
    waiting: deque[Future[Result]] = deque()
    for item in items:
        waiting.append(pool.submit(call, item))
        if len(waiting) >= ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
