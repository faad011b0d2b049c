"""The socket over which readers on this host get the memory that their batches lie in.

Listens at an abstract Unix socket: its name is in no folder, so that nothing is left of it, and only who
shares this kernel and network namespace can connect. Processes of other users are turned away. A reader that
has connected is told a number, which it names in its reads; each batch that it is lent comes as a descriptor,
ahead of the answer to the read. What it gives back it says here; the end of the connection, of whatever the
reader has died, gives back all. The other side is `dataloader_client/shared.py`; what may be lent is decided
in `segments.py`. Belongs to one event loop and never blocks it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import struct
from collections import deque
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dataloader_client.shared import NUMBER
from dataloader_svc import faultpoint
from dataloader_svc.constructor.segments import Segment, Segments

log = logging.getLogger(__name__)

MOST_READERS = 4096
"""Connections: more than ranks fit on a host; more are turned away."""

_MOST_EARLY = 1024
_PAUSE_S = 1.0
_PEER = struct.Struct("3i")  # pid, uid, gid of SO_PEERCRED


class _Reader:
    """A connection. `early`: leases that were over before they began, since their reads were given up."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self.leases: dict[int, Segment] = {}
        self.early: deque[int] = deque(maxlen=_MOST_EARLY)


class Lender:
    """`name` is where it listens. `open` makes one; `close` ends it."""

    def __init__(self, segments: Segments, listening: socket.socket, name: str) -> None:
        self.name = name
        self._segments = segments
        self._listening = listening
        self._readers: dict[int, _Reader] = {}
        self._pause: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(listening, self._accept)

    @classmethod
    def open(cls, segments: Segments) -> Self:
        """Listen. OSError where this system has no such sockets."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        name = f"dataloader-svc/{os.getpid()}/{secrets.token_hex(16)}"
        try:
            listening.bind(f"\0{name}")
            listening.listen(128)
        except OSError:
            listening.close()
            raise
        return cls(segments, listening, name)

    def lend(self, attachment: int, lease: int, root: NDArray[np.uint8]) -> bool:
        """Hand the memory of a batch to a reader; False where it has to be sent over gRPC instead."""
        reader = self._readers.get(attachment)
        if reader is None or lease in reader.leases:
            return False
        if lease in reader.early:
            reader.early.remove(lease)
            return False
        key = (attachment, lease)
        segment = self._segments.lease(root, key)
        if segment is None:
            return False
        try:
            descriptor = segment.read_only()
            try:
                socket.send_fds(reader.line, [NUMBER.pack(lease)], [descriptor])
            finally:
                os.close(descriptor)
        except OSError:  # it stands still and its socket is full, it is gone, or there are no descriptors
            self._segments.release(segment, key)
            return False
        reader.leases[lease] = segment
        faultpoint.point("constructor.lent")
        return True

    def _accept(self) -> None:
        try:
            while True:
                self._greet(self._listening.accept()[0])
        except BlockingIOError:
            return
        except OSError as error:  # no descriptors; who waits would be reported again and again
            log.warning("can't take in a reader in shared memory, tries again in %g s: %s", _PAUSE_S, error)
            self._loop.remove_reader(self._listening)
            self._pause = self._loop.call_later(
                _PAUSE_S, self._loop.add_reader, self._listening, self._accept
            )

    def _greet(self, line: socket.socket) -> None:
        line.setblocking(False)
        number = secrets.randbits(63) + 1
        try:
            if len(self._readers) >= MOST_READERS or not _is_ours(line):
                raise ConnectionRefusedError
            line.send(NUMBER.pack(number))
        except OSError:
            line.close()
            return
        self._readers[number] = _Reader(line)
        self._loop.add_reader(line, self._hear, number)

    def _hear(self, number: int) -> None:
        reader = self._readers[number]
        try:
            while True:
                message = reader.line.recv(NUMBER.size)
                if len(message) != NUMBER.size:  # its end, or no client of ours
                    self._end(number)
                    return
                self._over(number, reader, NUMBER.unpack(message)[0])
        except BlockingIOError:
            return
        except OSError:
            self._end(number)

    def _over(self, number: int, reader: _Reader, lease: int) -> None:
        segment = reader.leases.pop(lease, None)
        if segment is not None:
            self._segments.release(segment, (number, lease))
            return
        reader.early.append(lease)

    def _end(self, number: int) -> None:
        reader = self._readers.pop(number)
        self._loop.remove_reader(reader.line)
        reader.line.close()
        for lease, segment in reader.leases.items():
            self._segments.release(segment, (number, lease))

    def close(self) -> None:
        """End all lines. What readers have mapped stays with them."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()
        for number in list(self._readers):
            self._end(number)


def _is_ours(line: socket.socket) -> bool:
    """Whether the process at the other end is this user's, or root's."""
    _, user, _ = _PEER.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return user in (os.getuid(), 0)
