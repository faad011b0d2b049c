"""Messages between a loader and its worker processes: JSON and raw bytes over a socket pair. No pickle.

    magic (4 bytes) | bytes of JSON (uint32) | bytes of payload (uint64), little-endian | JSON | payload

A request is `[operation, arguments]` with a payload of bytes; an answer is `{"value": ..., "arrays": [[dtype,
shape], ...]}` with the arrays one after the other as its payload, or `{"bad": [reason, detail]}`.

Bytes go through the socket rather than a shared mapping: measured, 19 MB of frames cost 8 ms of wall time
here and 2.5 to 6 ms there, beside the 300 ms or more of decoding them, and a socket has nothing to leave
behind, to grow or to agree upon. A worker runs a stranger's bytes through native code, so the loader's end
trusts nothing that it says: lengths are bounded before memory is taken, and only numbers become arrays.
"""

from __future__ import annotations

import functools
import json
import math
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

_HEAD = struct.Struct("<4sIQ")
_MAGIC = b"dlw1"
_MOST_JSON = 64 * 2**20
_NUMBERS = "biuf"  # kinds of dtype

Received = TypeVar("Received", bytes, int)


class Answer(NamedTuple):
    """What an operation returns: something that JSON holds, and arrays of numbers."""

    value: Any = None
    arrays: Sequence[NDArray[Any]] = ()


class Closed(Exception):
    """The other end is gone."""


class Garbled(Exception):
    """What came is no message, or larger than allowed."""


class Channel:
    """One end. `time_left` gives the seconds that the next read or write may take; None: any.

    Raises Closed, Garbled, and TimeoutError where time runs out; after the latter two only `close` is of use.
    """

    def __init__(self, sock: socket.socket, time_left: Callable[[], float] | None = None) -> None:
        self._socket = sock
        self._time_left = time_left

    def close(self) -> None:
        """The other end reads the end of the stream."""
        self._socket.close()

    def send(self, value: object, parts: Sequence[bytes | NDArray[Any]] = ()) -> None:
        """One message; its payload is the parts one after the other."""
        text = json.dumps(value).encode()
        views = [
            memoryview(part)
            if isinstance(part, bytes)
            else np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
            for part in parts
        ]
        size = sum(len(view) for view in views)
        for view in (memoryview(_HEAD.pack(_MAGIC, len(text), size) + text), *views):
            rest = view
            while len(rest):
                rest = rest[self._patiently(functools.partial(self._socket.send, rest)) :]

    def receive_bytes(self, most: int) -> tuple[Any, bytes]:
        """A message and its payload, of `most` bytes at most."""
        value, size = self._receive_head(most)
        return value, self._read(size)

    def receive_array(self, most: int) -> tuple[Any, NDArray[np.uint8]]:
        """The same, received into an array of its own."""
        value, size = self._receive_head(most)
        payload = np.empty(size, np.uint8)
        rest = payload.data
        while len(rest):
            rest = rest[self._some(functools.partial(self._socket.recv_into, rest)) :]
        return value, payload

    def _receive_head(self, most: int) -> tuple[Any, int]:
        magic, length, size = _HEAD.unpack(self._read(_HEAD.size))
        if magic != _MAGIC or length > _MOST_JSON or size > most:
            raise Garbled(f"a message begins with {magic!r} and {length} + {size} bytes; most: {most}")
        try:
            return json.loads(self._read(length)), size
        except ValueError as error:
            raise Garbled(f"no JSON: {error}") from None

    def _read(self, count: int) -> bytes:
        """Exactly `count` bytes."""
        parts: list[bytes] = []
        while count:
            parts.append(self._some(functools.partial(self._socket.recv, count, socket.MSG_WAITALL)))
            count -= len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _some(self, receive: Callable[[], Received]) -> Received:
        received = self._patiently(receive)
        if not received:
            raise Closed
        return received

    def _patiently(self, call: Callable[[], Received]) -> Received:
        """Call until it goes through or time runs out. With none left, what is there already still counts."""
        while True:
            if self._time_left is not None:
                self._socket.settimeout(max(0.0, self._time_left()))
            try:
                return call()
            except (BlockingIOError, TimeoutError):
                assert self._time_left is not None, "a blocking socket"
                if self._time_left() <= 0:
                    raise TimeoutError from None
            except (BrokenPipeError, ConnectionResetError):
                raise Closed from None


def described(arrays: Sequence[NDArray[Any]]) -> list[list[Any]]:
    """`[[dtype, shape], ...]` of an answer."""
    return [[array.dtype.str, list(array.shape)] for array in arrays]


def cut(payload: NDArray[np.uint8], description: object) -> list[NDArray[Any]]:
    """The arrays of an answer, views of `payload`. Raises Garbled where they don't fit."""
    arrays: list[NDArray[Any]] = []
    start = 0
    try:
        for name, shape in description:  # type: ignore[attr-defined]
            dtype = np.dtype(name)
            if dtype.kind not in _NUMBERS or any(not isinstance(n, int) or n < 0 for n in shape):
                raise Garbled(f"no array of numbers: {name!r} {shape!r}")
            size = math.prod(shape) * dtype.itemsize
            if start + size > len(payload):
                raise Garbled(f"{len(payload)} bytes are too few for {description!r}")
            arrays.append(payload[start : start + size].view(dtype).reshape(shape))
            start += size
    except (TypeError, ValueError) as error:
        raise Garbled(f"no description of arrays: {error}") from None
    if start != len(payload):
        raise Garbled(f"{len(payload)} bytes are too many for {description!r}")
    return arrays
