"""Lossless codecs for arrays on a slow link: those whose package is installed. Both ends use this file.

`zstd` needs the package zstandard, `lz4` the package lz4; a client without them is sent plain bytes. When it
pays to encode is decided by the service (`constructor/encoding.py`).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dataloader_client.errors import WireError

PACKAGES = {"zstd": "zstandard", "lz4": "lz4.block"}
"""Name on the wire -> module."""

ZSTD_LEVEL = 1
"""The fastest that is not negative: links on which a higher one pays are slower than any between machines."""


@dataclass(frozen=True, slots=True)
class Codec:
    """compress: bytes of an array. decompress: the `num_bytes` that they stand for, else it raises."""

    name: str
    compress: Callable[[memoryview], bytes]
    decompress: Callable[[memoryview, int], bytes]


@dataclass(frozen=True, slots=True)
class Packed:
    """What an array is sent as."""

    codec: str
    data: bytes


@cache
def installed() -> Mapping[str, Codec]:
    """By name, in order of preference."""
    makers = {"zstd": _zstd, "lz4": _lz4}
    found = {}
    for name, make in makers.items():
        try:
            found[name] = make()
        except ImportError:
            continue
    return found


def unpack(
    packed: memoryview, codec: str, dtype: np.dtype[np.generic], shape: tuple[int, ...]
) -> NDArray[np.generic]:
    """The array that `packed` stands for. WireError where it does not, whatever it claims to be."""
    known = installed().get(codec)
    if known is None:
        raise WireError(f"an array is encoded by {codec!r}, which this client has not asked for")
    num_bytes = math.prod(shape) * dtype.itemsize
    try:
        data = known.decompress(packed, num_bytes)
    except Exception as error:  # of three libraries
        raise WireError(f"an array encoded by {codec} is damaged: {error}") from None
    if len(data) != num_bytes:
        raise WireError(f"an array encoded by {codec} has {len(data)} bytes, not {num_bytes}")
    return np.frombuffer(bytearray(data), dtype).reshape(shape)  # a trainer may write to its batch


def _zstd() -> Codec:
    library = importlib.import_module(PACKAGES["zstd"])

    def compress(data: memoryview) -> bytes:
        made: bytes = library.ZstdCompressor(level=ZSTD_LEVEL).compress(data)
        return made

    def decompress(data: memoryview, num_bytes: int) -> bytes:
        parameters = library.get_frame_parameters(data[:32])
        if parameters.content_size != num_bytes:  # checked first: it is what would be allocated
            raise ValueError(f"{parameters.content_size} bytes announced, {num_bytes} expected")
        made: bytes = library.ZstdDecompressor().decompress(data)
        return made

    return Codec("zstd", compress, decompress)


def _lz4() -> Codec:
    library = importlib.import_module(PACKAGES["lz4"])

    def compress(data: memoryview) -> bytes:
        made: bytes = library.compress(data, store_size=False)
        return made

    def decompress(data: memoryview, num_bytes: int) -> bytes:
        made: bytes = library.decompress(data, uncompressed_size=num_bytes)
        return made

    return Codec("lz4", compress, decompress)
