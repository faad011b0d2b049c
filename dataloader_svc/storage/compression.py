"""Compressed files -> what they hold, piece by piece. Which compression it is, the first bytes say.

gzip (RFC 1952, any number of members) and Zstandard (RFC 8878, any number of frames). No piece is larger than
a MiB, whatever the file claims. Knows nothing of where bytes come from or go; `expanded.py` does.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO

import pyarrow as pa

PIECE = 2**20
HEAD = 4
"""Bytes that tell the compression."""

_MAGIC = {b"\x1f\x8b\x08": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_GZIP = 31  # zlib's wbits: the largest window, with gzip's header and check sum


class CutShort(Exception):
    """The file ends before the compressed data does: all that was given out is right."""


class NotExpandable(Exception):
    """Damage: what was given out may be wrong too, since its check sum comes at the end."""


def compression_of(head: bytes) -> str | None:
    """`gzip` or `zstd` by the first bytes of a file; None for any other."""
    if head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5:  # a skippable frame: pzstd begins with one
        return "zstd"
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


def expand(file: BinaryIO, compression: str) -> Iterator[bytes]:
    """What the file holds, in pieces of at most a MiB. Raises CutShort or NotExpandable."""
    return _EXPANDERS[compression](file)


def _gzip(file: BinaryIO) -> Iterator[bytes]:
    engine = zlib.decompressobj(_GZIP)
    begun = False  # whether this member has begun
    try:
        while chunk := file.read(PIECE):
            while chunk:
                begun = True
                yield engine.decompress(chunk, PIECE)
                chunk = engine.unconsumed_tail
                if engine.eof:
                    chunk = engine.unused_data.lstrip(b"\0")  # tapes and some tools pad with zeros
                    engine, begun = zlib.decompressobj(_GZIP), False
        yield engine.flush() if begun else b""
    except zlib.error as error:
        raise NotExpandable(str(error)) from error
    if begun and not engine.eof:
        raise CutShort


def _zstd(file: BinaryIO) -> Iterator[bytes]:
    try:
        with pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd") as stream:
            while piece := stream.read(PIECE):
                yield piece
    except (pa.ArrowException, OSError) as error:
        if "Truncated" in str(error):  # arrow's util/compression code words it so
            raise CutShort from error
        raise NotExpandable(str(error)) from error


_EXPANDERS: Mapping[str, Callable[[BinaryIO], Iterator[bytes]]] = {"gzip": _gzip, "zstd": _zstd}
