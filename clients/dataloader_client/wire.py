"""Frames: named arrays and a little JSON, as a run of raw messages. Both ends use this file.

The first message is a serialized `FrameHeader`; the payload follows in messages of at most 1 MiB, which is
the size that gRPC's Python streams move fastest, and is copied once into one buffer of which the arrays are
views. Knows nothing of gRPC, of steps or of what the arrays mean.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataloader_client._pb import common_pb2
from dataloader_client.errors import WireError

CHUNK = 1 << 20
ALIGN = 64  # a cache line, and more than any SIMD load needs
MAX_PAYLOAD = 1 << 33  # a header that promises more is rubbish, not a batch
DTYPES = frozenset(
    {"bool", "uint8", "int8", "int16", "int32", "int64", "uint32", "uint64", "float32", "float64"}
)


@dataclass(frozen=True, slots=True)
class Frame:
    """Named arrays (C-contiguous) and JSON-able `meta`."""

    arrays: dict[str, NDArray[Any]]
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays.values())


def encode(frame: Frame) -> Iterator[bytes]:
    """Messages of a frame: the header, then the payload in pieces of `CHUNK` bytes."""
    header = common_pb2.FrameHeader(meta_json=json.dumps(frame.meta, separators=(",", ":")))
    pieces: list[memoryview] = []
    offset = 0
    for name, array in frame.arrays.items():
        if array.dtype.name not in DTYPES:
            raise TypeError(f"array {name!r} has dtype {array.dtype}, which the wire does not carry")
        pad = -offset % ALIGN
        if pad:
            pieces.append(memoryview(bytes(pad)))
        offset += pad
        header.tensors.add(name=name, dtype=array.dtype.name, shape=array.shape, offset=offset)
        pieces.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        offset += array.nbytes
    header.payload_bytes = offset
    yield header.SerializeToString()
    yield from _chunks(pieces)


def _chunks(pieces: list[memoryview]) -> Iterator[bytes]:
    held: list[memoryview] = []
    room = CHUNK
    for piece in pieces:
        rest = piece
        while len(rest):
            held.append(rest[:room])
            rest = rest[room:]
            room -= len(held[-1])
            if room == 0:
                yield b"".join(held)
                held, room = [], CHUNK
    if held:
        yield b"".join(held)


class Decoder:
    """Puts the messages of one frame together: `feed` each, then `finish`.

    Raises WireError for a header or a size that can't be; nothing is allocated that the header does not
    justify, and never more than `max_payload` bytes.
    """

    def __init__(self, max_payload: int = MAX_PAYLOAD) -> None:
        self._max_payload = max_payload
        self._header: common_pb2.FrameHeader | None = None
        self._buffer: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._filled = 0

    def feed(self, message: bytes) -> None:
        """Take the next message of the stream."""
        if self._header is None:
            self._start(message)
            return
        end = self._filled + len(message)
        if end > len(self._buffer):
            raise WireError(f"payload is longer than the {len(self._buffer)} bytes that its header names")
        self._buffer[self._filled : end] = np.frombuffer(message, np.uint8)
        self._filled = end

    def _start(self, message: bytes) -> None:
        header = common_pb2.FrameHeader()
        try:
            header.ParseFromString(message)
        except Exception as error:  # protobuf's DecodeError has no stable home across its back ends
            raise WireError(f"first message is no frame header: {error}") from None
        if header.payload_bytes > self._max_payload:
            raise WireError(
                f"a frame of {header.payload_bytes} bytes is above the limit of {self._max_payload}"
            )
        # Aligned start: numpy only promises 16 bytes, and the offsets are multiples of ALIGN.
        raw = np.empty(header.payload_bytes + ALIGN, np.uint8)
        skip = -raw.ctypes.data % ALIGN
        self._buffer = raw[skip : skip + header.payload_bytes]
        self._header = header

    def finish(self) -> Frame:
        """The frame, its arrays being views of one buffer."""
        if self._header is None:
            raise WireError("stream ended before its header")
        if self._filled != len(self._buffer):
            raise WireError(f"stream ended after {self._filled} of {len(self._buffer)} payload bytes")
        arrays = {info.name: _view(self._buffer, info) for info in self._header.tensors}
        try:
            meta = json.loads(self._header.meta_json or "{}")
        except ValueError as error:
            raise WireError(f"meta_json is not JSON: {error}") from None
        if not isinstance(meta, dict):
            raise WireError("meta_json is not an object")
        return Frame(arrays, meta)


def _view(buffer: NDArray[np.uint8], info: common_pb2.TensorInfo) -> NDArray[Any]:
    if info.dtype not in DTYPES:
        raise WireError(f"tensor {info.name!r} has unknown dtype {info.dtype!r}")
    dtype = np.dtype(info.dtype)
    num_bytes = math.prod(info.shape) * dtype.itemsize
    if info.offset % ALIGN or info.offset + num_bytes > len(buffer):
        raise WireError(f"tensor {info.name!r} lies outside the payload")
    return buffer[info.offset : info.offset + num_bytes].view(dtype).reshape(tuple(info.shape))


def decode(messages: Iterable[bytes], max_payload: int = MAX_PAYLOAD) -> Frame:
    """The frame of a whole stream of messages."""
    decoder = Decoder(max_payload)
    for message in messages:
        decoder.feed(message)
    return decoder.finish()
