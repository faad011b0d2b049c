"""Memory that batches are built in, so that readers on this host can map them: segments, reused warm.

A segment is anonymous memory with a descriptor (memfd): it has no name that could be left behind, is not
part of /dev/shm and so not bounded by its size, and goes when the last process that has it open or mapped
does, whatever that died of. Pages are allocated before they are written (fallocate), so that memory that
isn't there is an error here and never a bus error; its size is sealed, so that it isn't one there.

One segment holds what one dp rank gets of one step, all its cp slices: the ranks that share a batch share
it. It is *built* while any array over it lives in this process, *lent* while a reader has a lease of it, and
*free* when neither is so: then the next step is built in it, in pages that are there already (fresh ones cost
four times as much). How it gets to readers: `lending.py`. Safe from several threads.
"""

from __future__ import annotations

import fcntl
import logging
import math
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataloader_client.wire import ALIGN

log = logging.getLogger(__name__)

PAGE = mmap.PAGESIZE


class Segment:
    """A piece of shared memory. `capacity` bytes can be addressed, `resident` of them are allocated.

    owner, shares   the dp rank that it is built for, and how many such ranks divide what may be lent
    """

    def __init__(self, capacity: int) -> None:
        """OSError where the system gives none."""
        self.descriptor = os.memfd_create("dataloader-batch", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, capacity)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)
            self.memory = mmap.mmap(self.descriptor, capacity)
        except BaseException:
            os.close(self.descriptor)
            raise
        self.capacity, self.resident = capacity, 0
        self.owner, self.shares = 0, 1
        self.built = False
        self.leases: set[Hashable] = set()

    def reserve(self, end: int) -> None:
        """Allocate the pages of the first `end` bytes. OSError: there is no memory for them."""
        end = -(-end // PAGE) * PAGE
        if end > self.resident:
            os.posix_fallocate(self.descriptor, self.resident, end - self.resident)
            self.resident = end

    def trim(self, num_bytes: int) -> None:
        """Give back the pages above `num_bytes`."""
        end = -(-num_bytes // PAGE) * PAGE
        if end < self.resident:
            self.memory.madvise(mmap.MADV_REMOVE, end, self.resident - end)
            self.resident = end

    def read_only(self) -> int:
        """A new descriptor that nobody can write through."""
        return os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Of a free one. Its memory goes with the last array over it, which may be going just now."""
        os.close(self.descriptor)
        self.descriptor = -1
        del self.memory


class Arena:
    """Where the arrays of one batch are made, one behind the other. Used by one thread.

    `root` is the memory, uint8 (capacity,): the segment counts as built as long as a view of it lives.
    `whole`: all that was asked for had room. Else some arrays lie elsewhere and the batch can't be lent.
    """

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.root: NDArray[np.uint8] = np.frombuffer(segment.memory, np.uint8)
        self.whole = True
        self._used = 0

    def empty(self, shape: int | Sequence[int], dtype: Any) -> NDArray[Any]:
        """As numpy.empty, aligned to ALIGN bytes."""
        dtype = np.dtype(dtype)
        num_bytes = math.prod((shape,) if isinstance(shape, int) else shape) * dtype.itemsize
        start = -(-self._used // ALIGN) * ALIGN
        try:
            if start + num_bytes > self.segment.capacity:
                raise OSError(f"it is full: {self.segment.capacity} bytes")
            self.segment.reserve(start + num_bytes)
        except OSError as error:
            if self.whole:
                log.warning("a batch can't be built in shared memory and goes over gRPC: %s", error)
            self.whole = False
            return np.empty(shape, dtype)
        self._used = start + num_bytes
        array: NDArray[Any] = self.root[start : self._used].view(dtype).reshape(shape)
        return array

    def place(self, array: NDArray[Any]) -> NDArray[Any]:
        """The array, if it was made here, else a copy that is."""
        if array.base is self.root and array.flags.c_contiguous:
            return array
        copy = self.empty(array.shape, array.dtype)
        np.copyto(copy, array)
        return copy


class Segments:
    """All segments of a constructor. At most `limit_bytes` are lent; what is lent and no longer built, and
    what is free, is no more than that together: the rest is the window's to count (`core.py`).
    """

    def __init__(self, limit_bytes: int) -> None:
        """OSError: this system has no such memory."""
        probe = Segment(PAGE)
        try:
            probe.reserve(PAGE)
            os.close(probe.read_only())
        finally:
            probe.close()
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._all: dict[int, Segment] = {}  # by address of its memory
        self._free: list[Segment] = []  # the one freed last is the last
        self._done: deque[Segment] = deque()  # no longer built: told from wherever the last view died
        self._closed = False
        self.lent_total = 0

    def arena(self, owner: int, shares: int, bound_bytes: int) -> Arena | None:
        """Room for a batch of at most so many bytes; None where the system gives none, or after `close`."""
        with self._lock:
            self._settle()
            if self._closed:
                return None
            segment = self._taken(bound_bytes)
            if segment is None:
                try:
                    segment = Segment(1 << max(bound_bytes - 1, PAGE).bit_length())
                except OSError as error:
                    log.warning("no shared memory for a batch, which goes over gRPC: %s", error)
                    return None
            segment.owner, segment.shares, segment.built = owner, shares, True
            arena = Arena(segment)
            self._all[arena.root.ctypes.data] = segment
        weakref.finalize(arena.root, self._done.append, segment).atexit = False
        return arena

    def _taken(self, bound_bytes: int) -> Segment | None:
        """A free segment that is large enough, with as many warm pages as are of use, and no more."""
        bound = -(-bound_bytes // PAGE) * PAGE
        fitting = [segment for segment in self._free if segment.capacity >= bound_bytes]
        if not fitting:
            return None
        segment = max(fitting, key=lambda s: (min(s.resident, bound), -s.resident))
        self._free.remove(segment)
        segment.trim(bound)
        return segment

    def lease(self, root: NDArray[np.uint8], lease: Hashable) -> Segment | None:
        """Lend the segment of a batch; None where as much is lent as may be: of it in all, or to the ranks
        that share this batch, so that one that never gives back takes no other's share.
        """
        with self._lock:
            self._settle()
            segment = self._all.get(root.ctypes.data)
            if self._closed or segment is None:
                return None
            if not segment.leases:
                lent = [other for other in self._all.values() if other.leases]
                in_all = sum(other.resident for other in lent) + segment.resident
                of_owner = sum(o.resident for o in lent if o.owner == segment.owner) + segment.resident
                if in_all > self.limit_bytes or of_owner > self.limit_bytes // segment.shares:
                    return None
            segment.leases.add(lease)
            self.lent_total += 1
            return segment

    def release(self, segment: Segment, lease: Hashable) -> None:
        """The reader has it no longer."""
        with self._lock:
            segment.leases.discard(lease)
            self._freed(segment)
            self._settle()

    def _settle(self, keep_bytes: int | None = None) -> None:
        """Take in what died, and close what is free beyond `keep_bytes`; by default the limit."""
        while self._done:
            segment = self._done.popleft()
            segment.built = False
            self._freed(segment)
        idle = sum(s.resident for s in self._all.values() if not s.built)
        most = self.limit_bytes if keep_bytes is None else keep_bytes
        while self._free and (idle > most or self._closed):
            segment = self._free.pop(0)
            idle -= segment.resident
            self._all = {address: other for address, other in self._all.items() if other is not segment}
            segment.close()

    def _freed(self, segment: Segment) -> None:
        gone = segment.descriptor < 0  # closed with the service, while a reader had it
        if not (gone or segment.built or segment.leases or segment in self._free):
            self._free.append(segment)

    def cool(self) -> None:
        """Give the memory of what is free back: nobody is there for whom it is kept warm."""
        with self._lock:
            self._settle(keep_bytes=0)

    @property
    def lent(self) -> tuple[int, int]:
        """Bytes that are lent, and leases."""
        with self._lock:
            self._settle()
            segments = [segment for segment in self._all.values() if segment.leases]
            return sum(segment.resident for segment in segments), sum(len(s.leases) for s in segments)

    @property
    def resident_bytes(self) -> int:
        """Of all segments: built, lent and free."""
        with self._lock:
            self._settle()
            return sum(segment.resident for segment in self._all.values())

    def close(self) -> None:
        """Lend no more; what is free goes now, the rest when its last array does."""
        with self._lock:
            self._closed = True
            for segment in self._all.values():
                segment.leases.clear()
                self._freed(segment)
            self._settle()
