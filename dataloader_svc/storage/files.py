"""Files by path: which ones a pattern names, how large they are, and ranges of their bytes.

The one door to data: local paths are read here, `s3://` and the like in `remote.py`. Knows nothing of
formats. Every failure is a SourceError that names the path. What the bytes mean is told in `sources/`.
"""

from __future__ import annotations

import glob
import itertools
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import BinaryIO, NamedTuple, cast
from urllib.parse import unquote

from dataloader_svc.config.schema import Config, StorageSettings
from dataloader_svc.errors import SourceError
from dataloader_svc.registry import nearest
from dataloader_svc.storage.cache import BlockCache
from dataloader_svc.storage.compression import HEAD, compression_of
from dataloader_svc.storage.expanded import Expanded, ExpandedFiles
from dataloader_svc.storage.filestat import FileStat
from dataloader_svc.storage.kept import KeptParts
from dataloader_svc.storage.patterns import MAGIC, after_scheme, expand_braces, name_matches, scheme_of
from dataloader_svc.storage.remote import RemoteFiles

KEPT_BYTES = 64 * 2**20
"""Enough for the footers of three files of 50 columns x 500 row groups, or of thousands of plain ones."""


_ASK_ONE_BY_ONE = 8  # names; for more, a listing of their folder is cheaper
_WILD = re.compile(r"[*?\[]")
_MAGIC_URL = re.compile(r"\{")  # a `?` begins the query of a web address


class Match(NamedTuple):
    """A file that a pattern names. `name` is its path below the pattern's fixed folder: a move keeps it."""

    path: str
    name: str


class Storage:
    """Where the files of a job are read. One per process; safe to call from several threads.

    kept      what formats parse once and keep; one memory limit for all sources
    remote    for paths with a scheme; default: with default settings, and nothing kept on the disk
    scratch   for copies of compressed files; default: a folder that goes when this object does
    """

    def __init__(
        self,
        *,
        kept_bytes: int = KEPT_BYTES,
        remote: RemoteFiles | None = None,
        scratch: ExpandedFiles | None = None,
    ) -> None:
        self.kept: KeptParts[FileStat] = KeptParts(kept_bytes)
        settings = StorageSettings()
        self._remote = remote or RemoteFiles(settings)
        self._scratch = scratch or ExpandedFiles(None, settings.scratch_bytes)
        self._remote_compression: dict[str, str | None] = {}  # by path: asked for once

    @classmethod
    def of(cls, config: Config, base_dir: Path) -> Storage:
        """As the `storage:` section of a job says; a relative cache folder starts from `base_dir`."""
        settings = config.storage
        cache = None
        if settings.cache_bytes:
            cache = BlockCache(base_dir / Path(settings.cache).expanduser(), settings.cache_bytes)
        scratch = ExpandedFiles(base_dir / Path(settings.scratch).expanduser(), settings.scratch_bytes)
        return cls(remote=RemoteFiles(settings, cache), scratch=scratch)

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
            of = _matches_of(pattern, base_dir) if self.is_local(pattern) else self._remote_matches(pattern)
            for match in of:
                found.setdefault(match.path, match)
        return list(found.values())

    def stat(self, path: str) -> FileStat:
        """Size and mtime of a file as it is now; one request if it is remote."""
        if not self.is_local(path):
            return self._remote.stat(path)
        try:
            result = Path(self.local_path(path)).stat()
        except OSError as error:
            raise _unreadable(path, error) from error
        return FileStat(result.st_size, result.st_mtime_ns)

    def open(self, path: str) -> BinaryIO:
        """The file, open for reading, without a buffer: callers read in large pieces.

        A remote one has no file descriptor; it reads ranges, ahead of what is asked for.
        """
        if not self.is_local(path):
            return cast("BinaryIO", self._remote.open(path))
        try:
            return Path(self.local_path(path)).open("rb", buffering=0)
        except OSError as error:
            raise _unreadable(path, error) from error

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset` on; SourceError if the file ends before."""
        if self.is_local(path):
            data = self._read_local(path, offset, length)
        else:
            data = self._remote.read(path, offset, offset + length)
        return _exactly(path, data, offset, length)

    def read_all(self, path: str) -> bytes:
        """The whole file."""
        if not self.is_local(path):
            return self._remote.read_all(path)
        try:
            return Path(self.local_path(path)).read_bytes()
        except OSError as error:
            raise _unreadable(path, error) from error

    def open_expanded(self, path: str) -> Expanded:
        """As `open`, with the size; of a file that begins as gzip or zstd do, what it holds.

        That is read from a copy on the local disk; making it costs one reading of the whole file.
        """
        compression = self._compression_of(path)
        stat = self.stat(path)
        if compression is None:
            return Expanded(self.open(path), stat.size)
        return self._scratch.open(path, stat, compression, lambda: self.open(path))

    def read_expanded(self, path: str, offset: int, length: int) -> bytes:
        """As `read_range`, of what `open_expanded` opens."""
        if self._compression_of(path) is None:
            return self.read_range(path, offset, length)
        with self.open_expanded(path).file as file:
            try:
                data = b"".join(_pread(file.fileno(), offset, length))
            except OSError as error:
                raise _unreadable(path, error) from error
        return _exactly(path, data, offset, length)

    def is_compressed(self, path: str) -> bool:
        """Whether it is read from a plain copy; by its first bytes."""
        return self._compression_of(path) is not None

    @property
    def scratch_bytes(self) -> int:
        """Most bytes of plain copies that are kept."""
        return self._scratch.limit

    def join(self, folder: str, path: str) -> str:
        """`path` as named by a row: below `folder`, unless it is absolute or has a scheme itself."""
        if not self.is_local(path):
            return path
        if self.is_local(folder) or path.startswith("/") or scheme_of(path):
            return str(Path(folder) / _local_path(path))
        joined = posixpath.normpath(f"{after_scheme(folder)}/{path}")  # a key has no "..": we resolve it
        if joined.partition("/")[0] != after_scheme(folder).partition("/")[0]:
            raise SourceError(f"{path}: leads out of {folder}")
        return f"{scheme_of(folder)}://{joined}"

    def is_local(self, path: str) -> bool:
        """Whether the path is one of this machine's file system (without a scheme, or `file://`)."""
        return scheme_of(path) in (None, "file")

    def local_path(self, path: str) -> str:
        """The path on this machine: `file://` is taken off, any other scheme is a SourceError."""
        return _local_path(path)

    def _compression_of(self, path: str) -> str | None:
        if path in self._remote_compression:
            return self._remote_compression[path]
        with self.open(path) as file:
            try:
                found = compression_of(file.read(HEAD))
            except OSError as error:
                raise _unreadable(path, error) from error
        if not self.is_local(path):
            self._remote_compression[path] = found
        return found

    def _read_local(self, path: str, offset: int, length: int) -> bytes:
        with self.open(path) as file:
            try:
                parts = list(_pread(file.fileno(), offset, length))
            except OSError as error:
                raise _unreadable(path, error) from error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _remote_matches(self, pattern: str) -> list[Match]:
        """As `_matches_of`, in a store. Names without a wildcard are asked for; else the folder is listed."""
        magic = _MAGIC_URL if scheme_of(pattern) in ("http", "https") else MAGIC
        head, *tail = after_scheme(pattern).split("/")
        fixed = list(itertools.takewhile(lambda part: not magic.search(part), tail[:-1]))
        folder = f"{scheme_of(pattern)}://{'/'.join([head, *fixed])}"
        names = expand_braces("/".join(tail[len(fixed) :]), pattern)
        listing: list[str] | None = None
        wild = any(_WILD.search(name) for name in names)
        if "*" in pattern and magic is not MAGIC:
            raise SourceError(
                f"path {pattern!r}: a web server can't be listed; name the files, {{0000..0031}} is expanded"
            )
        if magic is MAGIC and (wild or len(names) > _ASK_ONE_BY_ONE):
            recursive = any("/" in name or "**" in name for name in names)
            listing = sorted(self._remote.files_below(folder, recursive=recursive))
        found: list[Match] = []
        for name in names:
            here = self._remote_names(folder, name, listing)
            if not here:
                raise SourceError(self._nothing_called(pattern, folder, name, listing))
            found += [Match(f"{folder}/{each}", each) for each in here]
        return found

    def _remote_names(self, folder: str, name: str, listing: list[str] | None) -> list[str]:
        if listing is None:
            return [name] if self._remote.is_file(f"{folder}/{name}") else []
        return [name] if name in listing else [each for each in listing if name_matches(each, name)]

    def _nothing_called(self, pattern: str, folder: str, name: str, listing: list[str] | None) -> str:
        if scheme_of(folder) in ("http", "https"):
            return f"path {pattern!r}: the server has no {name!r} in {folder}"
        beside = self._remote.files_below(folder, recursive=True) if listing is None else listing
        if any(each.startswith(f"{name}/") for each in beside):
            return f"path {pattern!r} is a folder; name its files, for example {pattern.rstrip('/')}/*"
        hint = nearest(name, beside) if beside else "; there is nothing below it"
        return f"path {pattern!r}: nothing called {name!r} in {folder}{hint}"


def _local_path(path: str) -> str:
    scheme = scheme_of(path)
    if scheme is None:
        return path
    if scheme != "file":
        raise SourceError(f"{path}: is not on this machine")
    return unquote(after_scheme(path).removeprefix("localhost"))


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
    for name in expand_braces(rest, pattern):
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
    fixed = list(itertools.takewhile(lambda part: not MAGIC.search(part), tail[:-1]))
    return Path(head, *fixed), str(PurePath(*tail[len(fixed) :]))


def _nearest_in(where: Path) -> str:
    """`; did you mean 'b.tar'?` from what lies beside `where`."""
    folder = where.parent
    if not folder.is_dir():
        return ""
    names = [entry.name for entry in itertools.islice(folder.iterdir(), 10_000)]
    if not names:
        return "; the folder is empty"
    return nearest(where.name, sorted(names))


def _exactly(path: str, data: bytes, offset: int, length: int) -> bytes:
    if len(data) != length:
        raise SourceError(
            f"{path}: wanted {length} bytes at {offset}, the file ended after {len(data)}; "
            "has it changed since it was indexed?"
        )
    return data


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
