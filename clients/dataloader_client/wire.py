"""Frames: named arrays and a little JSON, as a run of raw messages. Both ends use this file.

The first message is a serialized `FrameHeader`; the payload follows in messages of at most 1 MiB, which is
the size that gRPC's Python streams move fastest, and is copied once into one buffer of which the arrays are
views. A receiver on the same host may get the header alone: both map the memory (`shared.py`).
Knows nothing of gRPC, of steps or of what the arrays mean.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataloader_client._pb import common_pb2
from dataloader_client.codecs import Packed, unpack
from dataloader_client.errors import WireError

CHUNK = 1 << 20
ALIGN = 64  # a cache line, and more than any SIMD load needs
MAX_PAYLOAD = 1 << 33  # a header that promises more is rubbish, not a batch
DTYPES = frozenset(
    {"bool", "uint8", "int8", "int16", "int32", "int64", "uint32", "uint64", "float32", "float64"}
)


@dataclass(frozen=True, slots=True)
class Frame:
    """Named arrays (C-contiguous) and JSON-able `meta`.

    written  members of the JSON object that `meta` is sent as, written already by who sends many such frames;
             they stand in front of those of `meta`. Of received frames ""
    shared   memory uint8 (n,) in which all arrays lie and which the receiver maps: they are not sent
    socket   where a receiver on this host can attach for that; "": nowhere
    line     where a receiver on this host can ask for the next one; "": nowhere
    packed   by name, what of the arrays is sent encoded; received ones are arrays again
    """

    arrays: dict[str, NDArray[Any]]
    meta: dict[str, Any] = field(default_factory=dict)
    shared: NDArray[np.uint8] | None = None
    socket: str = ""
    line: str = ""
    packed: Mapping[str, Packed] = field(default_factory=dict)
    written: str = ""

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    @property
    def packed_bytes(self) -> int:
        """Bytes of what is encoded, beside the arrays."""
        return sum(len(each.data) for each in self.packed.values())


def encode(frame: Frame) -> Iterator[bytes]:
    """Messages of a frame: the header, then the payload, unless it is shared, in pieces of `CHUNK` bytes."""
    header, pieces = laid_out(frame)
    yield header
    yield from _chunks(pieces)


def laid_out(frame: Frame) -> tuple[bytes, list[memoryview]]:
    """The header, and the payload as pieces that follow each other; none where it is shared."""
    header = common_pb2.FrameHeader(
        meta_json="{" + ",".join(filter(None, (frame.written, members(frame.meta)))) + "}",
        shared_socket=frame.socket,
        line_socket=frame.line,
    )
    if frame.shared is not None:
        _point_into(header, frame.arrays, frame.shared)
        return header.SerializeToString(), []
    pieces: list[memoryview] = []
    offset = 0
    for name, array in frame.arrays.items():
        if array.dtype.name not in DTYPES:
            raise TypeError(f"array {name!r} has dtype {array.dtype}, which the wire does not carry")
        pad = -offset % ALIGN
        if pad:
            pieces.append(memoryview(bytes(pad)))
        offset += pad
        info = header.tensors.add(name=name, dtype=array.dtype.name, shape=array.shape, offset=offset)
        packed = frame.packed.get(name)
        if packed is None:
            piece = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        else:
            info.codec, info.packed_bytes, piece = packed.codec, len(packed.data), memoryview(packed.data)
        pieces.append(piece)
        offset += len(piece)
    header.payload_bytes = offset
    return header.SerializeToString(), pieces


def members(meta: Mapping[str, Any]) -> str:
    """Of a JSON object: the text between its braces."""
    return json.dumps(meta, separators=(",", ":"))[1:-1]


def _point_into(
    header: common_pb2.FrameHeader, arrays: dict[str, NDArray[Any]], shared: NDArray[np.uint8]
) -> None:
    start = shared.ctypes.data
    for name, array in arrays.items():
        offset = array.ctypes.data - start if array.nbytes else 0
        assert 0 <= offset <= len(shared) - array.nbytes, name
        assert array.flags.c_contiguous, name
        header.tensors.add(name=name, dtype=array.dtype.name, shape=array.shape, offset=offset)
        header.shared_bytes = max(header.shared_bytes, offset + array.nbytes)


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

    map_shared   gives the memory of a payload that is shared, of so many bytes; its errors are passed on.
                 None: this receiver has asked for none
    """

    def __init__(
        self, max_payload: int = MAX_PAYLOAD, map_shared: Callable[[int], NDArray[np.uint8]] | None = None
    ) -> None:
        self._max_payload = max_payload
        self._map_shared = map_shared
        self._header: common_pb2.FrameHeader | None = None
        self._buffer: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._filled = 0

    def feed(self, message: bytes, payload: NDArray[np.uint8] | None = None) -> None:
        """Take the next message of the stream. `payload`: all of it, at an address that is a multiple of
        ALIGN, where it came with the header.
        """
        if self._header is None:
            self._start(message, payload)
            return
        end = self._filled + len(message)
        if end > len(self._buffer):
            raise WireError(f"payload is longer than the {len(self._buffer)} bytes that its header names")
        self._buffer[self._filled : end] = np.frombuffer(message, np.uint8)
        self._filled = end

    def _start(self, message: bytes, payload: NDArray[np.uint8] | None) -> None:
        header = common_pb2.FrameHeader()
        try:
            header.ParseFromString(message)
        except Exception as error:  # protobuf's DecodeError has no stable home across its back ends
            raise WireError(f"first message is no frame header: {error}") from None
        num_bytes = header.payload_bytes + header.shared_bytes
        if num_bytes > self._max_payload:
            raise WireError(f"a frame of {num_bytes} bytes is above the limit of {self._max_payload}")
        if header.shared_bytes:
            if self._map_shared is None or header.payload_bytes:
                raise WireError("a payload in shared memory was not asked for")
            self._buffer = self._map_shared(header.shared_bytes)
            self._filled = len(self._buffer)
            self._header = header
            return
        self._header = header
        if payload is not None:
            if len(payload) != header.payload_bytes:
                raise WireError(f"a payload of {len(payload)} bytes, its header names {header.payload_bytes}")
            self._buffer, self._filled = payload, len(payload)
            return
        # Aligned start: numpy only promises 16 bytes, and the offsets are multiples of ALIGN.
        raw = np.empty(header.payload_bytes + ALIGN, np.uint8)
        skip = -raw.ctypes.data % ALIGN
        self._buffer = raw[skip : skip + header.payload_bytes]

    def finish(self) -> Frame:
        """The frame, its arrays being views of one buffer."""
        if self._header is None:
            raise WireError("stream ended before its header")
        if self._filled != len(self._buffer):
            raise WireError(f"stream ended after {self._filled} of {len(self._buffer)} payload bytes")
        shared = self._buffer if self._header.shared_bytes else None
        align = ALIGN if shared is None else 1
        left = self._max_payload
        arrays = {}
        for info in self._header.tensors:
            arrays[info.name] = _view(self._buffer, info, align, left)
            left -= arrays[info.name].nbytes if info.codec else 0
        try:
            meta = json.loads(self._header.meta_json or "{}")
        except ValueError as error:
            raise WireError(f"meta_json is not JSON: {error}") from None
        if not isinstance(meta, dict):
            raise WireError("meta_json is not an object")
        return Frame(arrays, meta, shared, self._header.shared_socket, self._header.line_socket)


def _view(buffer: NDArray[np.uint8], info: common_pb2.TensorInfo, align: int, most: int) -> NDArray[Any]:
    """`most`: bytes that may be made of one that is packed."""
    if info.dtype not in DTYPES:
        raise WireError(f"tensor {info.name!r} has unknown dtype {info.dtype!r}")
    dtype = np.dtype(info.dtype)
    num_bytes = math.prod(info.shape) * dtype.itemsize
    stored = info.packed_bytes if info.codec else num_bytes
    if info.offset % max(align, dtype.itemsize) or info.offset + stored > len(buffer):
        raise WireError(f"tensor {info.name!r} lies outside the payload")
    if info.codec:
        if num_bytes > most:
            raise WireError(f"tensor {info.name!r} of {num_bytes} bytes is above the limit")
        packed = buffer[info.offset : info.offset + stored].data
        return unpack(packed, info.codec, dtype, tuple(info.shape))
    return buffer[info.offset : info.offset + num_bytes].view(dtype).reshape(tuple(info.shape))


def decode(messages: Iterable[bytes], max_payload: int = MAX_PAYLOAD) -> Frame:
    """The frame of a whole stream of messages."""
    decoder = Decoder(max_payload)
    for message in messages:
        decoder.feed(message)
    return decoder.finish()
