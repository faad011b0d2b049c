"""A line: a Unix socket by which processes of one host call each other, at a tenth of the CPU of gRPC.

Both ends use this file: what the messages are, and how memory goes with them. A message is a datagram of a
SOCK_SEQPACKET socket: `HEAD`, then a body. What is large, a frame's payload or a body above MOST_INLINE, lies
in memory that is sent along by its descriptor (memfd): so it is copied once, into that memory. A call begins
with CALL, which holds a `LineCall`; DATA are its messages both ways. The mark `last`, or END, says that no
more come from that side; FAIL ends the call with a `LineStatus`; CANCEL says that the caller waits no longer.
PING asks for a PONG. The calls are those of `methods.py`, and mean the same.

Knows neither gRPC nor asyncio: the ends are `direct.py`, blocking, and `rpc/line.py` of the service.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dataloader_client.errors import WireError
from dataloader_client.wire import ALIGN

CALL, DATA, END, FAIL, CANCEL, PING, PONG = range(1, 8)

HEAD = struct.Struct("<BBHIQQ")
"""Kind, 1 where it is the last message of its side, 0, number of the call, bytes of the memory that comes
along, and where in it the body begins; at its end, where the body follows the head.
"""

MOST_INLINE = 1 << 16
"""Bytes of a body that stands in the datagram; two of them fit into a socket's buffer by Linux's default."""

_MOST_PIECES = 512
"""Written by one call: half of what POSIX systems take."""

_PEER = struct.Struct("3i")  # pid, uid, gid of SO_PEERCRED
_SIZED = fcntl.F_SEAL_SHRINK if hasattr(fcntl, "F_SEAL_SHRINK") else 0


def keeps_size(descriptor: int) -> bool:
    """Whether memory is sealed so that it can't shrink while it is mapped: that would be a bus error."""
    return bool(fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SIZED)


class LineLost(Exception):
    """The other end is gone, or said what makes no sense; whatever was asked may have happened or not."""


class Memory:
    """Anonymous memory of `num_bytes`, by its descriptor; closed with the object at the latest."""

    def __init__(self, descriptor: int, num_bytes: int) -> None:
        self.descriptor, self.num_bytes = descriptor, num_bytes

    @classmethod
    def of(cls, pieces: Sequence[memoryview | bytes]) -> Self:
        """The pieces one behind the other. OSError: the system gives none."""
        descriptor = os.memfd_create("dataloader-message", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        memory = cls(descriptor, sum(map(len, pieces)))
        waiting = [memoryview(piece) for piece in pieces if len(piece)]
        while waiting:
            written = os.writev(descriptor, waiting[:_MOST_PIECES])
            while waiting and written >= len(waiting[0]):
                written -= len(waiting.pop(0))
            if written:
                waiting[0] = waiting[0][written:]
        fcntl.fcntl(
            descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        )
        return memory

    def check(self) -> None:
        """WireError where it is not as large as was said, or could become smaller."""
        if os.fstat(self.descriptor).st_size != self.num_bytes:
            raise WireError(f"memory that came over a line has not the {self.num_bytes} bytes that were said")
        if not keeps_size(self.descriptor):
            raise WireError("memory that came over a line is not sealed in its size")

    def mapped(self, num_bytes: int) -> NDArray[np.uint8]:
        """Its first bytes, uint8 (num_bytes,), read only, mapped for as long as a view of them lives."""
        if not num_bytes:
            return np.empty(0, np.uint8)
        # All pages at once. Were it writable, the system would copy each of them here for writes to come.
        flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_POPULATE", 0)
        return np.frombuffer(mmap.mmap(self.descriptor, num_bytes, flags, mmap.PROT_READ), np.uint8)

    def copied(self, num_bytes: int) -> NDArray[np.uint8]:
        """A copy of its first bytes, uint8 (num_bytes,), at an address that is a multiple of ALIGN."""
        raw = np.empty(num_bytes + ALIGN, np.uint8)
        skip = -raw.ctypes.data % ALIGN
        found = raw[skip : skip + num_bytes]
        self._read_into(found.data, 0)
        return found

    def read(self, start: int, num_bytes: int) -> bytes:
        """A copy of a part."""
        found = bytearray(num_bytes)
        self._read_into(memoryview(found), start)
        return bytes(found)

    def _read_into(self, room: memoryview, start: int) -> None:
        done = 0
        while done < len(room) and (count := os.preadv(self.descriptor, [room[done:]], start + done)):
            done += count

    def close(self) -> None:
        """Idempotent; what is mapped stays."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __del__(self) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Message:
    """Of a line. `memory` goes, or came, with it: `payload_bytes` of a frame, then a large body."""

    kind: int
    call: int = 0
    body: bytes = b""
    last: bool = False
    memory: Memory | None = None
    payload_bytes: int = 0

    @classmethod
    def of(
        cls,
        kind: int,
        call: int = 0,
        body: bytes = b"",
        *,
        last: bool = False,
        payload: Sequence[memoryview | bytes] = (),
    ) -> Self:
        """To be sent. OSError: there is no memory for a payload."""
        size = sum(map(len, payload))
        large = len(body) > MOST_INLINE
        if not size and not large:
            return cls(kind, call, body, last)
        return cls(kind, call, body, last, Memory.of([*payload, body] if large else payload), size)

    def send(self, line: socket.socket) -> None:
        """By one datagram. BlockingIOError: the socket is full; OSError: the other end is gone."""
        memory, inline = self.memory, self.body
        if memory is None:
            line.send(HEAD.pack(self.kind, self.last, 0, self.call, 0, 0) + inline)
            return
        if memory.num_bytes > self.payload_bytes:
            inline = b""
        head = HEAD.pack(self.kind, self.last, 0, self.call, memory.num_bytes, self.payload_bytes)
        socket.send_fds(line, [head, inline], [memory.descriptor])

    def payload(self) -> NDArray[np.uint8] | None:
        """The memory before the body, mapped; None where none came."""
        if self.memory is None or not self.payload_bytes:
            return None
        return self.memory.mapped(self.payload_bytes)


class Receiver:
    """Takes messages from a socket; at most `most` bytes of memory come with one. Of one thread at a time."""

    def __init__(self, line: socket.socket, most: int) -> None:
        self._line, self._most = line, most
        self._buffer = bytearray(HEAD.size + MOST_INLINE)
        self._view = memoryview(self._buffer)
        self._room = socket.CMSG_SPACE(4)

    def receive(self) -> Message:
        """The next. BlockingIOError: none is there. LineLost: the line has ended. WireError: it can't be."""
        try:
            size, ancillary, _, _ = self._line.recvmsg_into(
                [self._buffer], self._room, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            raise
        except OSError as error:
            raise LineLost(str(error)) from None
        memories = [
            Memory(number, 0)
            for level, kind, data in ancillary
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
            for (number,) in struct.iter_unpack("i", data[: len(data) // 4 * 4])
        ]
        if not size:
            raise LineLost("the other end has closed the line")
        if size < HEAD.size:
            raise WireError(f"a message of {size} bytes on a line")
        kind, last, _, call, num_bytes, begin = HEAD.unpack_from(self._buffer)
        body = bytes(self._view[HEAD.size : size])
        if not num_bytes:
            return Message(kind, call, body, bool(last))
        if len(memories) != 1 or begin > num_bytes:
            raise WireError("a message on a line without the memory that it speaks of")
        if num_bytes > self._most:
            raise WireError(f"{num_bytes} bytes came over a line, above the limit of {self._most}")
        memory = memories[0]
        memory.num_bytes = num_bytes
        memory.check()
        if begin < num_bytes:
            body = memory.read(begin, num_bytes - begin)
        return Message(kind, call, body, bool(last), memory, begin)


def name_beside(address: str) -> str:
    """The abstract Unix socket of a server that listens at HOST:PORT: as far as the port means it, so does
    the name, since both belong to a network namespace.
    """
    return f"dataloader-svc/line/{address}"


def connect(name: str) -> socket.socket | None:
    """A connection to the abstract Unix socket `name`, of a process of this user or root; None where there is
    none: another host, another network namespace, another user, another kind of system.
    """
    if not hasattr(socket, "AF_UNIX") or not _SIZED:
        return None
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    with contextlib.suppress(OSError):
        line.setblocking(False)
        line.connect(f"\0{name}")
        if is_ours(line):
            return line
    line.close()
    return None


def is_ours(line: socket.socket) -> bool:
    """Whether the process at the other end is this user's, or root's."""
    _, user, _ = _PEER.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return user in (os.getuid(), 0)
