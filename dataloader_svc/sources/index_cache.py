"""The index of a shard as a file: so that a start reads kilobytes instead of scanning the data.

One small file a shard, named by path and format options; it holds the size and mtime of the shard that it
describes, so a changed shard replaces its own file and nothing else. Written whole beside its place and
renamed, with a checksum: two processes may write the same one, and a torn or foreign file is told from a
good one. Knows nothing of formats; `index.py` decides what to do with a miss.

Layout: magic, blake2b-16 of the rest, length of the header (uint32 LE), header (JSON), extents (int64 LE,
one row of six numbers each, as in `base.Extent`). No pickle.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dataloader_svc.sources.base import Extent, ShardIndex
from dataloader_svc.storage import FileStat

_MAGIC = b"dataloader-svc index 1\n"
_DIGEST_BYTES = 16
_COLUMNS = len(Extent._fields)


class CorruptIndex(Exception):
    """The file is no index, or not all of it."""


@dataclass(frozen=True, slots=True)
class IndexCache:
    """Indexes of one source's shards. `options` is all, besides the file, that an index depends on."""

    folder: Path
    options: str

    def load(self, path: str, stat: FileStat) -> ShardIndex | None:
        """The cached index of a shard as it is now; None where there is none. Raises CorruptIndex."""
        try:
            data = self._file(path).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CorruptIndex(f"{self._file(path)}: {error.strerror}") from error
        header, index = _decode(data, self._file(path))
        return index if header == self._header(path, stat) else None

    def save(self, path: str, stat: FileStat, index: ShardIndex) -> None:
        """Put an index in place, whole or not at all. Raises OSError where the folder can't be written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=self.folder, prefix=".index-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(_encode(self._header(path, stat), index))
            Path(temporary).replace(self._file(path))
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise

    def _file(self, path: str) -> Path:
        name = hashlib.blake2b(f"{path}\n{self.options}".encode(errors="surrogateescape"), digest_size=16)
        return self.folder / f"{name.hexdigest()}.index"

    def _header(self, path: str, stat: FileStat) -> list[object]:
        return [path, self.options, stat.size, stat.mtime_ns]


def _encode(header: list[object], index: ShardIndex) -> bytes:
    meta = json.dumps({"shard": header, "warnings": index.warnings, "missing": dict(index.missing)}).encode()
    extents = np.array(index.extents, "<i8").reshape(-1, _COLUMNS)
    body = struct.pack("<I", len(meta)) + meta + extents.tobytes()
    return _MAGIC + hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() + body


def _decode(data: bytes, where: Path) -> tuple[list[object], ShardIndex]:
    start = len(_MAGIC) + _DIGEST_BYTES
    body = data[start:]
    if not data.startswith(_MAGIC):
        raise CorruptIndex(f"{where}: is no index of this version")
    if hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != data[len(_MAGIC) : start]:
        raise CorruptIndex(f"{where}: the checksum differs")
    (length,) = struct.unpack_from("<I", body)
    meta = json.loads(body[4 : 4 + length])
    extents = np.frombuffer(body, "<i8", offset=4 + length).reshape(-1, _COLUMNS).tolist()
    index = ShardIndex(
        extents=tuple(Extent(*numbers) for numbers in extents),
        warnings=tuple(meta["warnings"]),
        missing=meta["missing"],
    )
    return meta["shard"], index
