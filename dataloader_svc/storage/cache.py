"""Blocks of remote files on the local disk: bounded, shared by the processes of a machine, safe to kill.

A block is a file named by the version of the remote file (URL, size, ETag or time) and its number, so what
is here is never out of date: another version has other names. Each holds a checksum; one that is torn,
damaged or foreign is a miss and is removed. Written beside its place and renamed, so a process that is killed
while it writes leaves a temporary file, which a later eviction takes away.

The bound holds over all processes: a block is put in place under a lock (flock) with the bytes in use
counted in the lock's file; those used longest ago go first (mtime; a hit renews it). The count is raised
before the block appears: whoever dies in between leaves it too high, which the next eviction puts right.

Not being able to write (disk full, read-only folder) is no error: the data was read, and is only not kept.
That is said once. Knows nothing of where blocks come from; `remote.py` does.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

log = logging.getLogger(__name__)

_MAGIC = b"dataloader-svc block 1\n"
_DIGEST_BYTES = 16
_OVERHEAD = len(_MAGIC) + _DIGEST_BYTES
_EVICT_TO = 0.9  # of the limit, so that not every block that comes makes a scan
_STALE_S = 600.0  # a temporary file of this age has lost its writer
_TEMPORARY = ".block-"
_COUNT_BYTES = 20


class _Entry(NamedTuple):
    used_ns: int
    size: int
    path: str


class BlockCache:
    """At most `limit` bytes of blocks in `folder`. Safe to call from several threads and processes."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self._warned = False

    def get(self, name: str) -> bytes | None:
        """The block put under this name, whole and unchanged, or None."""
        path = self._path(name)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        body = data[_OVERHEAD:]
        if data[:_OVERHEAD] != _head(body):
            self._remove(path)
            return None
        with contextlib.suppress(OSError):  # evicted meanwhile, or a folder that can only be read
            os.utime(path)
        return body

    def put(self, name: str, body: bytes) -> None:
        """Keep a block, dropping others where room is needed. Where it can't be written it is not kept."""
        size = len(body) + _OVERHEAD
        path = self._path(name)
        if size > self.limit or path.exists():
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=_TEMPORARY)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(_head(body))
                    file.write(body)
                with self._locked() as ledger:
                    self._make_room(ledger, size)
                    Path(temporary).replace(path)
            except BaseException:
                with contextlib.suppress(OSError):
                    Path(temporary).unlink()
                raise
        except OSError as error:
            if not self._warned:
                self._warned = True
                log.warning(
                    "%s: %s: remote files are read without keeping them; make room or change storage.cache",
                    self.folder,
                    (error.strerror or str(error)).lower(),
                )

    def _path(self, name: str) -> Path:
        return self.folder / name[:2] / name

    def _remove(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            path.unlink()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """The open file that holds the count, locked. An flock goes with its process, however that ends."""
        ledger = os.open(self.folder / "used", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(ledger, fcntl.LOCK_EX)
            yield ledger
        finally:
            os.close(ledger)

    def _make_room(self, ledger: int, size: int) -> None:
        """Count `size` bytes more, after an eviction if they would not fit or the count is unknown."""
        text = os.pread(ledger, _COUNT_BYTES, 0).strip()
        used = int(text) if text.isdigit() else None
        if used is None or used + size > self.limit:
            used = self._evict(size)
        os.pwrite(ledger, b"%*d" % (_COUNT_BYTES, used + size), 0)

    def _evict(self, size: int) -> int:
        """Remove those used longest ago until `size` fits; the bytes then in use, counted anew."""
        entries = sorted(self._entries())
        used = sum(entry.size for entry in entries)
        if used + size <= self.limit:
            return used
        for entry in entries:
            if used + size <= self.limit * _EVICT_TO:
                break
            with contextlib.suppress(FileNotFoundError):
                Path(entry.path).unlink()
            used -= entry.size
        return used

    def _entries(self) -> Iterator[_Entry]:
        """Every block in the folder; temporary files without a writer are removed on the way."""
        for folder in os.scandir(self.folder):
            if not folder.is_dir():
                continue
            for file in os.scandir(folder.path):
                with contextlib.suppress(FileNotFoundError):  # another process put its own in place
                    stat = file.stat()
                    if not file.name.startswith(_TEMPORARY):
                        yield _Entry(stat.st_mtime_ns, stat.st_size, file.path)
                    elif time.time() - stat.st_mtime > _STALE_S:
                        Path(file.path).unlink()


def _head(body: bytes) -> bytes:
    return _MAGIC + hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()
