"""Files by path: which ones a pattern names, how large they are, and ranges of their bytes.

Knows nothing of formats. Local files only: a path with another scheme is refused in `local_path`, the one
place where a path becomes a file, so object stores will come in here. Every failure is a SourceError that
names the path. What the bytes mean is told in `sources/`.
"""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import BinaryIO, NamedTuple
from urllib.parse import unquote

from dataloader_svc.errors import SourceError
from dataloader_svc.registry import nearest
from dataloader_svc.storage.kept import KeptParts

KEPT_BYTES = 64 * 2**20
"""Enough for the footers of three files of 50 columns x 500 row groups, or of thousands of plain ones."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MAGIC = re.compile(r"[*?\[{]")
_MAX_BRACES = 1_000_000  # {0..99999999} is a slip of the finger, not a data set


class Match(NamedTuple):
    """A file that a pattern names. `name` is its path below the pattern's fixed folder: a move keeps it."""

    path: str
    name: str


class FileStat(NamedTuple):
    """Size in bytes and time of the last change in ns: enough to tell that a file is not what it was."""

    size: int
    mtime_ns: int


class Storage:
    """Where the files of a job are read. One per process; safe to call from several threads.

    Local files only: a path with another scheme is refused in `local_path`.

    kept   what formats parse once and keep; one memory limit for all sources
    """

    def __init__(self, *, kept_bytes: int = KEPT_BYTES) -> None:
        self.kept: KeptParts[FileStat] = KeptParts(kept_bytes)

    def expand(self, patterns: Sequence[str], base_dir: Path) -> list[str]:
        """Absolute paths of the files that `patterns` name; see `matches`."""
        return [match.path for match in self.matches(patterns, base_dir)]

    def matches(self, patterns: Sequence[str], base_dir: Path) -> list[Match]:
        """Files named by globs (`*`, `?`, `[..]`, `**`), braces (`{0000..0031}`, `{a,b}`) or plain paths.

        Patterns keep their order; inside one, braces keep theirs and the files of a glob are sorted. A file
        that is named twice is listed once. Hidden files are matched only by a pattern that begins with a dot.
        Raises SourceError for a missing file or a pattern without match, naming the folder looked in.
        """
        found: dict[str, Match] = {}
        for pattern in patterns:
            for match in _matches_of(pattern, base_dir):
                found.setdefault(match.path, match)
        return list(found.values())

    def stat(self, path: str) -> FileStat:
        """Size and mtime of a file."""
        try:
            result = Path(self.local_path(path)).stat()
        except OSError as error:
            raise _unreadable(path, error) from error
        return FileStat(result.st_size, result.st_mtime_ns)

    def open(self, path: str) -> BinaryIO:
        """The file, open for reading, without a buffer: callers read in large pieces."""
        try:
            return Path(self.local_path(path)).open("rb", buffering=0)
        except OSError as error:
            raise _unreadable(path, error) from error

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset` on; SourceError if the file ends before."""
        with self.open(path) as file:
            try:
                parts = list(_pread(file.fileno(), offset, length))
            except OSError as error:
                raise _unreadable(path, error) from error
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if len(data) != length:
            raise SourceError(
                f"{path}: wanted {length} bytes at {offset}, the file ended after {len(data)}; "
                "has it changed since it was indexed?"
            )
        return data

    def read_all(self, path: str) -> bytes:
        """The whole file."""
        try:
            return Path(self.local_path(path)).read_bytes()
        except OSError as error:
            raise _unreadable(path, error) from error

    def join(self, folder: str, path: str) -> str:
        """`path` as named by a row: below `folder`, unless it is absolute or has a scheme itself."""
        return str(Path(folder) / _local_path(path))

    def local_path(self, path: str) -> str:
        """The path on this machine: `file://` is taken off, any other scheme is a SourceError."""
        return _local_path(path)


def _local_path(path: str) -> str:
    scheme = _SCHEME.match(path)
    if scheme is None:
        return path
    if scheme[1].lower() != "file":
        raise SourceError(
            f"{path}: {scheme[1]}:// is not read yet; copy the data to a local or mounted folder"
        )
    return unquote(path[scheme.end() :].removeprefix("localhost"))


def _matches_of(pattern: str, base_dir: Path) -> list[Match]:
    where = base_dir.absolute() / Path(_local_path(pattern)).expanduser()
    if where.is_file():
        return [Match(os.path.normpath(where), where.name)]
    if where.is_dir():
        raise SourceError(
            f"path {pattern!r} is a folder; name its files, for example {pattern.rstrip('/')}/*"
        )
    folder, rest = _fixed_folder(where)
    if not folder.is_dir():
        raise SourceError(f"path {pattern!r}: folder {folder} does not exist{_nearest_in(folder)}")
    found: list[Match] = []
    for name in _braces(rest, pattern):
        names = _glob(folder, name)
        if not names:
            raise SourceError(
                f"path {pattern!r}: nothing called {name!r} in {folder}{_nearest_in(folder / name)}"
            )
        found += [Match(os.path.normpath(folder / name), name) for name in names]
    return found


def _glob(folder: Path, name: str) -> list[str]:
    """Files below `folder` that `name` means, sorted; a file of just that name comes before any pattern."""
    if (folder / name).is_file():
        return [name]
    # pathlib's own glob would match hidden files such as macOS's ._x.tar
    names = glob.glob(name, root_dir=folder, recursive=True)  # noqa: PTH207
    return sorted(name for name in names if (folder / name).is_file())


def _fixed_folder(where: Path) -> tuple[Path, str]:
    """The part of a pattern that has no wildcard, and the rest (at least the last component)."""
    head, *tail = where.parts
    fixed = list(itertools.takewhile(lambda part: not _MAGIC.search(part), tail[:-1]))
    return Path(head, *fixed), str(PurePath(*tail[len(fixed) :]))


def _braces(text: str, pattern: str) -> list[str]:
    """`a{0..2}b` -> a0b, a1b, a2b. Zeros in front fix the width; braces that are no list stay as they are."""
    done = [""]
    for number, part in enumerate(_BRACES.split(text)):
        choices = [part] if number % 2 == 0 else _choices(part, pattern)
        if len(done) * len(choices) > _MAX_BRACES:
            raise SourceError(f"path {pattern!r}: braces stand for more than {_MAX_BRACES} files")
        done = [head + choice for head in done for choice in choices]
    if len(done) > 1 and any(len(_choices(body, pattern)) > 1 for body in _BRACES.findall(done[0])):
        raise SourceError(f"path {pattern!r}: braces inside braces are not expanded; give a list of patterns")
    return done


def _choices(body: str, pattern: str) -> list[str]:
    numbers = _RANGE.fullmatch(body)
    if numbers is None:
        return body.split(",") if "," in body else [f"{{{body}}}"]
    first, last = int(numbers[1]), int(numbers[2])
    if abs(last - first) >= _MAX_BRACES:
        raise SourceError(f"path {pattern!r}: braces stand for more than {_MAX_BRACES} files")
    padded = any(text.startswith("0") and len(text) > 1 for text in numbers.groups())
    width = max(len(numbers[1]), len(numbers[2])) if padded else 0
    step = 1 if last >= first else -1
    return [f"{number:0{width}d}" for number in range(first, last + step, step)]


def _nearest_in(where: Path) -> str:
    """`; did you mean 'b.tar'?` from what lies beside `where`."""
    folder = where.parent
    if not folder.is_dir():
        return ""
    names = [entry.name for entry in itertools.islice(folder.iterdir(), 10_000)]
    if not names:
        return "; the folder is empty"
    return nearest(where.name, sorted(names))


def _pread(descriptor: int, offset: int, length: int) -> Iterator[bytes]:
    while length > 0:
        data = os.pread(descriptor, length, offset)
        if not data:
            return
        yield data
        offset += len(data)
        length -= len(data)


def _unreadable(path: str, error: OSError) -> SourceError:
    return SourceError(f"{path}: {(error.strerror or str(error)).lower()}")
