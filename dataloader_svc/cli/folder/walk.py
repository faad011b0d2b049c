"""Which files of a folder belong together, and what reads them: nothing but names and first bytes is read.

In this order: a folder with one of a format's `marks` in it is a data set, whose shards that format lists;
what is left goes by its suffix to a format or to the decoders of media; a file without any suffix by its
first bytes. Hidden files are passed over, as everywhere, and links to folders are not followed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from dataloader_svc.errors import SourceError
from dataloader_svc.media.sniff import HEAD_BYTES, Kind, kind_of_suffix, sniff
from dataloader_svc.sources.base import SOURCES, Fields, FormatContext
from dataloader_svc.storage import Storage
from dataloader_svc.storage.compression import HEAD, CutShort, NotExpandable, compression_of, expand

_BEGINNINGS = (
    (0, b"PAR1", "parquet"),
    (0, b"ARROW1\0\0", "arrow"),
    (0, b"\xff\xff\xff\xff", "arrow"),  # a stream: its continuation mark
    (257, b"ustar", "webdataset"),
    (0, b"{", "jsonl"),
    (0, b"\xef\xbb\xbf{", "jsonl"),
)


@dataclass(frozen=True, slots=True)
class Shard:
    """A file that a format reads. `options`: of the format, such as the split of the data set it is in."""

    path: str
    format: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MediaFiles:
    """Pictures, clips or sounds that lie in a folder as files, of one suffix. `names`: sorted."""

    folder: str
    suffix: str
    kind: Kind
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unusable:
    """A file or data set that should be readable by its name, and isn't."""

    path: str
    format: str
    why: str


@dataclass(frozen=True, slots=True)
class NotRead:
    """A file that is no data as far as anybody can tell."""

    path: str
    why: str


Found = Shard | MediaFiles | Unusable | NotRead


def walk(root: str, storage: Storage) -> Iterator[Found]:
    """All that is below `root`, folder by folder, each once, in an order that depends on names alone."""
    claimed: set[str] = set()
    inside: dict[str, str] = {}  # data set format -> the folder in which we are
    problems: list[OSError] = []
    for folder, folders, names in os.walk(root, onerror=problems.append):
        yield from _unreadable(problems)
        hidden = [name for name in folders if name.startswith(".")]
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for made, mark in _marked([*hidden, *folders, *names]):
            if mark in names:
                claimed.add(f"{folder}/{mark}")
            above = inside.get(made)
            if above is not None and f"{folder}/".startswith(f"{above}/"):
                continue
            for found in _data_set(folder, made, mark, storage):
                if isinstance(found, Shard):
                    inside[made] = folder
                    claimed.add(found.path)
                yield found
        visible = (name for name in sorted(names) if not name.startswith("."))
        yield from _files(folder, [name for name in visible if f"{folder}/{name}" not in claimed])
    yield from _unreadable(problems)


def size_below(root: str) -> int:
    """Bytes of the files that `walk` meets, for a progress bar."""
    total = 0
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                total += size_of(f"{folder}/{name}")
    return total


def size_of(path: str) -> int:
    """Bytes; 0 for what can't be asked."""
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def _unreadable(problems: list[OSError]) -> Iterator[Unusable]:
    while problems:
        error = problems.pop(0)
        yield Unusable(str(error.filename), "folder", (error.strerror or str(error)).lower())


def _marked(names: list[str]) -> Iterator[tuple[str, str]]:
    """(format, its mark) of the data sets that a folder with these entries is."""
    for made in SOURCES.names():
        mark = next((mark for mark in SOURCES.get(made).marks if mark in names), None)
        if mark is not None:
            yield made, mark


def _data_set(folder: str, made: str, mark: str, storage: Storage) -> Iterator[Shard | Unusable]:
    """The shards of all splits, or why they are not known."""
    built = SOURCES.get(made)
    try:
        for options in built(FormatContext(Fields({}), storage, options=built.Options())).splits(folder):
            context = FormatContext(Fields({}), storage, options=built.Options.model_validate(options))
            for match in built(context).list_shards([folder], Path(folder)):
                yield Shard(match.path, made, options)
    except SourceError as error:
        yield Unusable(f"{folder}/{mark}", made, str(error))


def _files(folder: str, names: list[str]) -> Iterator[Found]:
    media: dict[tuple[str, Kind], list[str]] = {}
    for name in names:
        found = _file(f"{folder}/{name}", name)
        if isinstance(found, str):
            media.setdefault((PurePath(name).suffix.lower(), found), []).append(name)
        else:
            yield found
    for (suffix, kind), several in media.items():
        yield MediaFiles(folder, suffix, kind, tuple(several))


def _file(path: str, name: str) -> Shard | Unusable | NotRead | Kind:
    """A shard; of a picture, clip or sound its kind."""
    if not Path(path).is_file() and Path(path).exists():
        return NotRead(path, "is no regular file")
    made = format_of_name(name)
    if made is not None:
        return Shard(path, made)
    kind = kind_of_suffix(PurePath(name).suffix)
    if kind is not None:
        return kind
    if suffix := PurePath(name).suffix:
        return NotRead(path, f"no format has files called *{suffix}")
    try:
        return _by_content(path)
    except OSError as error:
        return Unusable(path, "", (error.strerror or str(error)).lower())


def format_of_name(name: str) -> str | None:
    """The format that has files called so: the longest suffix counts, then who names it first."""
    lower = name.lower()
    found = [
        (-len(suffix), place, made)
        for made in SOURCES.names()
        for place, suffix in enumerate(SOURCES.get(made).suffixes)
        if lower.endswith(suffix)
    ]
    return min(found)[2] if found else None


def _by_content(path: str) -> Shard | NotRead | Kind:
    with Path(path).open("rb") as file:
        head = file.read(HEAD_BYTES)
        compression = compression_of(head[:HEAD]) if len(head) >= HEAD else None
        if compression is not None:
            file.seek(0)
            try:
                head = next(filter(None, expand(file, compression)), b"")
            except (CutShort, NotExpandable) as error:
                return NotRead(
                    path, f"begins as {compression}, and can't be expanded: {str(error) or 'cut short'}"
                )
    for offset, beginning, made in _BEGINNINGS:
        if head[offset:].startswith(beginning):
            return Shard(path, made)
    medium = sniff(head)
    if medium is not None and compression is None:
        return medium.kind
    return NotRead(path, "has no suffix, and begins as nothing that is known" if head else "is empty")
