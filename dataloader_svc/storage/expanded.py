"""Plain copies of compressed files on the local disk: made once, bounded, shared by processes, safe to kill.

Neither gzip nor Zstandard can be entered in the middle, and rows are read in an order of their own. So a
compressed file is expanded once, and its copy is read in ranges like any file; those used longest ago go
first. A source larger than the limit still reads right, but expands a file again for most reads.

A copy is named after its file, the version of that, and the boot of this machine: what a crash of the machine
may have torn is never read. It is written under another name and renamed, under a lock (flock) that a dead
process gives back. Who reads one holds it open: that it goes meanwhile is no matter.

Not being able to write is `Unreachable`: that a disk is full says nothing of the data.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from dataloader_svc.errors import SourceError, Unreachable
from dataloader_svc.storage.compression import CutShort, NotExpandable, expand
from dataloader_svc.storage.filestat import FileStat

MOST_FOLD = 500
"""How many times its size a file may grow: text grows 3 to 20 times, a bomb of gzip 1,000, of zstd more."""

_FREE_OF_FOLD = 64 * 2**20  # bytes that may come of any file
_LOCKS = 64
_TEMPORARY = ".making-"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Expanded(NamedTuple):
    """What a file holds, open for reading and not buffered. `cut`: its compressed data ends too early."""

    file: BinaryIO
    size: int
    cut: bool = False


class ExpandedFiles:
    """At most `limit` bytes of copies in `folder`, and those being made. Safe to call from several threads.

    folder   None: one of our own, which goes when this object does
    """

    def __init__(self, folder: Path | None, limit: int) -> None:
        self.limit = limit
        self._folder = folder
        self._lock = threading.Lock()

    @property
    def folder(self) -> Path:
        """Where copies are. Our own is made on demand."""
        with self._lock:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="dataloader-svc-"))
                weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            return self._folder

    def open(self, path: str, stat: FileStat, compression: str, source: Callable[[], BinaryIO]) -> Expanded:
        """What `path`, of this version, holds. `source` opens it, where there is no copy yet.

        Raises SourceError for damage and for more bytes than `limit` or `MOST_FOLD` allow, Unreachable where
        the copy can't be written.
        """
        key = hashlib.blake2b(f"{path}\0{stat}\0{_boot()}".encode(), digest_size=16).hexdigest()
        try:
            if (found := self._find(key)) is not None:
                return found
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._locked(_lock_of(key)):
                if (found := self._find(key)) is not None:  # another made it while we waited
                    return found
                with source() as raw:
                    return self._make(path, key, stat.size, expand(raw, compression))
        except OSError as error:
            raise Unreachable(
                f"{path}: can't be expanded in {self.folder}: {(error.strerror or str(error)).lower()}; "
                "make room or change storage.scratch"
            ) from error

    def _find(self, key: str) -> Expanded | None:
        for name in (f"{key}.whole", f"{key}.cut"):
            with contextlib.suppress(FileNotFoundError):
                return _opened(self.folder / name)
        return None

    def _make(self, path: str, key: str, size: int, pieces: Iterator[bytes]) -> Expanded:
        """Make the copy; we hold the lock of its key, so nobody else writes to that name."""
        temporary = self.folder / f"{_TEMPORARY}{key}"
        try:
            with temporary.open("wb") as file:
                written, cut = self._write(path, size, pieces, file)
            with self._locked("lock-room"):
                self._make_room(written)
                done = self.folder / f"{key}.{'cut' if cut else 'whole'}"
                temporary.rename(done)
                return _opened(done)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise

    def _write(self, path: str, size: int, pieces: Iterator[bytes], file: BinaryIO) -> tuple[int, bool]:
        """Bytes written, and whether they end too early."""
        most = min(self.limit, max(_FREE_OF_FOLD, size * MOST_FOLD))
        written = 0
        try:
            for piece in pieces:
                written += len(piece)
                if written > most:
                    why = "storage.scratch_bytes" if most == self.limit else f"{MOST_FOLD} times its size"
                    raise SourceError(f"{path}: expands to more than {most} bytes ({why})")
                file.write(piece)
        except CutShort:
            return written, True
        except NotExpandable as error:
            raise SourceError(f"{path}: is damaged: {error}; after {written} expanded bytes") from error
        return written, False

    def _make_room(self, size: int) -> None:
        """Remove those used longest ago until `size` fits; and what a dead process left half made."""
        entries: list[tuple[int, int, str]] = []
        for entry in os.scandir(self.folder):
            if entry.name.endswith((".whole", ".cut")):
                stat = entry.stat()
                entries.append((stat.st_mtime_ns, stat.st_size, entry.path))
            elif entry.name.startswith(_TEMPORARY):
                with (
                    contextlib.suppress(BlockingIOError),
                    self._locked(_lock_of(entry.name.removeprefix(_TEMPORARY)), fcntl.LOCK_NB),
                ):  # nobody holds it: whoever wrote this is dead
                    Path(entry.path).unlink(missing_ok=True)
        used = sum(entry[1] for entry in entries)
        for _, each, path in sorted(entries):
            if used + size <= self.limit:
                break
            Path(path).unlink()
            used -= each

    @contextlib.contextmanager
    def _locked(self, name: str, how: int = 0) -> Iterator[None]:
        descriptor = os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | how)
            yield
        finally:
            os.close(descriptor)


def _lock_of(key: str) -> str:
    return f"lock-{int(key, 16) % _LOCKS:02d}"


def _opened(path: Path) -> Expanded:
    file = path.open("rb", buffering=0)
    now = time.time_ns()  # the kernel's own stamp is too coarse to order by
    with contextlib.suppress(OSError):  # evicted meanwhile, which is no matter; or a folder that is read only
        os.utime(path, ns=(now, now))
    return Expanded(file, os.fstat(file.fileno()).st_size, path.suffix == ".cut")


def _boot() -> str:
    try:
        return _BOOT.read_text()
    except OSError:  # another system than Linux: a copy is trusted after a reboot too
        return ""
