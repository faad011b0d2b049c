"""Batches that a constructor on this host has built in shared memory: mapped, never copied.

A constructor listens at an abstract Unix socket, whose name stands in its answers. Who can connect to it runs
under the same kernel and in the same network namespace, and can be handed descriptors; who can't reads over
gRPC as before, so that nothing has to be configured or guessed.

A read names the `Attachment` and a lease, a number of this side's choice. The answer then holds no payload:
the descriptor of the memory has come over the socket. It is mapped privately, so that a trainer may write to
its batch and no other rank sees it, and stays mapped as long as any array or tensor over it lives, whatever
becomes of the loader or the service. Only then is the lease given back, and the memory built in again.

Knows neither gRPC nor frames (`transport.py`, `wire.py`). The other side is `constructor/lending.py`.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import select
import socket
import struct
import threading
import weakref
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dataloader_client.line import keeps_size

NUMBER = struct.Struct("<Q")
"""Every message of the socket is one: from the constructor the attachment's number, then each lease with its
descriptor; from the client each lease that is over."""

_PATIENCE_S = 5.0
"""For a constructor that listens to say its number, and for a descriptor: it is sent before the answer."""


class SharedMemoryLost(Exception):
    """The line to the constructor is gone, or what came over it can't be used; gRPC does it."""


class Attachment:
    """A client's line to one constructor. Safe from several threads; `attach` makes one.

    It lives as long as who made it or a mapping does: its end is what tells the constructor that this process
    has died, and frees all that it held. A forked child inherits both and gives nothing back.
    """

    def __init__(self, line: socket.socket, name: str, number: int) -> None:
        self.name, self.number = name, number
        self._line = line
        self._lock = threading.Lock()  # of the four below; never taken where a mapping ends
        self._next = 1
        self._open: set[int] = set()  # leases of reads under way
        self._mapped: set[int] = set()  # those of them that are being mapped: nobody abandons them any more
        self._arrived: dict[int, int] = {}  # descriptors by lease
        self._unsent: deque[int] = deque()  # leases that are over and could not be told yet
        self._pid = os.getpid()
        weakref.finalize(self, line.close)

    def begin(self) -> int:
        """The lease of a read that is about to be sent; ended by `map` or `abandon`, once."""
        self._tell()
        with self._lock:
            lease, self._next = self._next, self._next + 1
            self._open.add(lease)
            return lease

    def abandon(self, lease: int) -> None:
        """The read was answered otherwise, or not at all. Idempotent; nothing where it was mapped."""
        with self._lock:
            if lease not in self._open:
                return
            self._open.remove(lease)
            descriptor = self._arrived.pop(lease, None)
        if descriptor is not None:
            os.close(descriptor)
        self._give_back(lease)

    def map(self, lease: int, num_bytes: int) -> NDArray[np.uint8]:
        """The memory that was lent, uint8 (num_bytes,), given back when the last view of it dies.

        Raises SharedMemoryLost; the lease is over then.
        """
        with self._lock:
            if lease not in self._open:
                raise SharedMemoryLost("the read was given up")
            self._open.remove(lease)
            self._mapped.add(lease)
        try:
            descriptor = self._receive(lease)
            try:
                mapping = _mapping(descriptor, num_bytes)
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            self._give_back(lease)
            raise SharedMemoryLost(f"what the constructor lent can't be mapped: {error}") from None
        finally:
            with self._lock:
                self._mapped.remove(lease)
        # On the mapping and not on an array over it: NumPy passes views on to whatever owns the memory.
        weakref.finalize(mapping, self._give_back, lease).atexit = False
        return np.frombuffer(mapping, np.uint8)

    def _receive(self, lease: int) -> int:
        """The descriptor of a lease; those of others that come before are kept for their reads."""
        waiting = select.poll()
        waiting.register(self._line, select.POLLIN)
        with self._lock:
            while lease not in self._arrived:
                if not waiting.poll(_PATIENCE_S * 1000):
                    raise OSError(f"no descriptor of lease {lease} has come in {_PATIENCE_S:g} s")
                self._take_in()
            return self._arrived.pop(lease)

    def _take_in(self) -> None:
        message, ancillary, _, _ = self._line.recvmsg(
            NUMBER.size, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC
        )
        came = [
            number
            for level, kind, data in ancillary
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
            for (number,) in struct.iter_unpack("i", data[: len(data) // 4 * 4])
        ]
        if not message:
            raise OSError("the constructor has closed the line")
        lease = NUMBER.unpack(message)[0] if len(message) == NUMBER.size else 0
        for descriptor in came:
            if lease in self._open | self._mapped and lease not in self._arrived:
                self._arrived[lease] = descriptor
            else:
                os.close(descriptor)  # its read was given up

    def _give_back(self, lease: int) -> None:
        """Say that a lease is over. Called where the last view dies: takes no lock, waits for nothing."""
        if os.getpid() == self._pid:  # in a forked child it is the parent's
            self._unsent.append(lease)
            self._tell()

    def _tell(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                lease = self._unsent.popleft()
                try:
                    self._line.send(NUMBER.pack(lease))
                except BlockingIOError:  # the constructor stands still; the next read tells it
                    self._unsent.append(lease)
                    return
                except OSError:  # it is gone, and its books with it
                    return


@dataclass(frozen=True, slots=True)
class Lease:
    """Of one try of one read: what it may be lent."""

    attachment: Attachment
    number: int

    def map(self, num_bytes: int) -> NDArray[np.uint8]:
        """See `Attachment.map`."""
        return self.attachment.map(self.number, num_bytes)

    def abandon(self) -> None:
        """See `Attachment.abandon`."""
        self.attachment.abandon(self.number)


class Sharing:
    """To which constructor a client is attached, if to any: the one whose socket it heard of last.

    Each socket is tried once: where it can't be had or was lost, its constructor sends over gRPC for ever.
    """

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._lock = threading.Lock()  # of both below: two threads may read
        self._socket = ""
        self._attachment: Attachment | None = None

    def begin(self) -> Lease | None:
        """A lease for a try that is about to be made; None while attached to nobody."""
        with self._lock:
            attachment = self._attachment
        return None if attachment is None else Lease(attachment, attachment.begin())

    def heard(self, socket: str) -> None:
        """An answer named this socket, or none (""). Attaches where that is news."""
        with self._lock:
            if self._wanted and socket != self._socket:
                self._socket, self._attachment = socket, attach(socket) if socket else None

    def lose(self, attachment: Attachment) -> None:
        """Read over gRPC from now on; what is mapped stays."""
        with self._lock:
            if self._attachment is attachment:
                self._attachment = None


def attach(name: str) -> Attachment | None:
    """A line to the constructor that listens at the abstract Unix socket `name`; None where it can't be had:
    another host, another network namespace, another user, another kind of system.
    """
    if not hasattr(socket, "AF_UNIX") or not hasattr(fcntl, "F_GET_SEALS"):
        return None
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        line.settimeout(_PATIENCE_S)
        line.connect(f"\0{name}")
        greeting = line.recv(NUMBER.size)
        if len(greeting) != NUMBER.size:
            raise OSError("no number")
        line.setblocking(False)
    except OSError:
        line.close()
        return None
    return Attachment(line, name, NUMBER.unpack(greeting)[0])


def _mapping(descriptor: int, num_bytes: int) -> mmap.mmap:
    """A private mapping of all of it. Refuses what could shrink under it."""
    if not keeps_size(descriptor):
        raise ValueError("its size is not sealed")
    found = os.fstat(descriptor).st_size
    if not 0 < num_bytes <= found:
        raise ValueError(f"{num_bytes} bytes were promised and it has {found}")
    return mmap.mmap(descriptor, num_bytes, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
