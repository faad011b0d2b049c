"""A pool of processes for work that may never return, or take its process with it: native code on a
stranger's bytes.

A video decoder can spin for ever with the interpreter's lock held, and no thread of the same process could
then do anything about it. So it runs elsewhere, and is killed from here:

    pool = WorkerPool(Limits(workers=2, timeout_s=30, memory=2**30))
    answer = pool.call("package.module:function", {"any": "JSON"}, payload)    # from any thread; blocks
    pool.close()

`function(arguments, payload) -> Answer(value, arrays)` runs in a worker, which imports it by that name: any
installed module may have one, and nothing is to be registered. Media go through `worker_reader.WorkerReader`,
which has the interface of every other `MediaReader`.

What `call` raises: BadSample, namely the operation's own; `decode_timeout` where it wasn't done in time and
its worker was killed; `decoder_crashed` where its worker died, and a second, fresh one too (so that one which
the system killed for memory, or a person, costs no sample). PeerError where no worker can be started.
What was refused so is refused again at once, for as long as the pool lives: a step that is asked for anew
doesn't wait for the same clip again, and gets the same answer.

Workers are started when first needed, or by `start`, as fresh interpreters (no fork: the loader has threads).
One that has grown beyond half its memory, or has done `max_tasks`, is replaced. All end with `close`, and
whatever the loader dies of (`worker_main.die_with`). A call waits for a free worker for as long as it takes:
each of those at work has its deadline.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from dataloader_svc.clock import Clock, SystemClock
from dataloader_svc.errors import BadSample, PeerError, Reason
from dataloader_svc.media.worker_process import WorkerDied, WorkerProcess, WorkerTimeout
from dataloader_svc.media.worker_wire import Answer

log = logging.getLogger(__name__)

_MOST_REFUSED = 10_000  # 100 bytes each


@dataclass(frozen=True, slots=True)
class Limits:
    """workers: processes at most. timeout_s: of one operation. memory: bytes of one worker; the system
    refuses it more. max_tasks: operations of one worker, against what leaks without showing: 10,000 make its
    start, under a second, 0.1 ms of each.
    """

    workers: int
    timeout_s: float
    memory: int
    max_tasks: int = 10_000


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """running: processes now, and their bytes in memory together. The rest is counted since the start.

    timeouts and crashes count samples; replaced: workers that were large or old
    """

    running: int
    num_bytes: int
    started: int
    timeouts: int
    crashes: int
    replaced: int


class _Slot:
    """Room for one worker; belongs to the call that took it, or stands idle."""

    def __init__(self) -> None:
        self.worker: WorkerProcess | None = None

    @property
    def warmth(self) -> int:
        """How soon work in it would begin."""
        return 0 if self.worker is None else 1 if self.worker.tasks == 0 else 2


class _Refused(BadSample):
    """By what became of the worker, not by the operation."""


class WorkerPool:
    """See the module. `preload`: modules that a worker imports before it takes work.

    One lock, held for bookkeeping only.
    """

    def __init__(self, limits: Limits, *, preload: Sequence[str] = (), clock: Clock | None = None) -> None:
        self.limits = limits
        self._preload = tuple(preload)
        self._clock = clock or SystemClock()
        self._change = threading.Condition()
        self._slots = [_Slot() for _ in range(limits.workers)]
        self._idle = list(self._slots)
        self._closed = False
        self._refused: dict[bytes, BadSample] = {}
        self._started = self._timeouts = self._crashes = self._replaced = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start all workers that there may be, and wait for one of them. Raises PeerError where it can't."""
        slots = [self._take() for _ in self._slots]
        try:
            for slot in slots:
                self._begin(slot)
            self._ready(slots[0])
        finally:
            for slot in slots:
                self._give_back(slot)

    def call(self, operation: str, arguments: Mapping[str, Any], payload: bytes = b"") -> Answer:
        """Run an operation in a worker and wait for it. Raises BadSample and PeerError: see the module."""
        if self._refused:  # hashing has its price, 1 ms a MB, and few pools have met any
            self._refuse_again(_digest(operation, arguments, payload))
        slot = self._take()
        try:
            return self._ask(slot, operation, arguments, payload)
        except _Refused as bad:
            self._remember(_digest(operation, arguments, payload), bad)
            raise BadSample(bad.reason, bad.detail) from None
        finally:
            self._give_back(slot)

    def status(self) -> PoolStatus:
        """Now."""
        with self._change:
            running = [slot.worker for slot in self._slots if slot.worker is not None]
            counts = (self._started, self._timeouts, self._crashes, self._replaced)
        return PoolStatus(len(running), sum(worker.memory() for worker in running), *counts)

    def close(self) -> None:
        """Kill all workers and wait until they are gone. Calls in other threads raise PeerError."""
        with self._change:
            self._closed = True
            self._change.notify_all()
            running = [slot.worker for slot in self._slots if slot.worker is not None]
        for worker in running:
            worker.kill()  # whoever waits for its answer reads the end of the stream
        with self._change:
            self._change.wait_for(lambda: len(self._idle) == len(self._slots))
        for slot in self._slots:
            self._end(slot)

    # ---- slots: taken, given back, and what becomes of their workers

    def _take(self) -> _Slot:
        with self._change:
            self._change.wait_for(lambda: self._closed or self._idle)
            self._check_open()
            slot = max(self._idle, key=lambda slot: slot.warmth)
            self._idle.remove(slot)
            return slot

    def _give_back(self, slot: _Slot) -> None:
        worker, limits = slot.worker, self.limits
        if worker is not None and (worker.tasks >= limits.max_tasks or worker.memory() > limits.memory // 2):
            log.info(
                "worker %d: replaced after %d tasks, %d bytes", worker.pid, worker.tasks, worker.memory()
            )
            self._end(slot, replaced=1)
            self._restart(slot)
        with self._change:
            self._idle.append(slot)
            self._change.notify_all()

    def _ask(self, slot: _Slot, operation: str, arguments: Mapping[str, Any], payload: bytes) -> Answer:
        deaths: list[str] = []
        while len(deaths) < 2:
            try:
                return self._ready(slot).ask(operation, arguments, payload, self.limits.timeout_s)
            except WorkerDied as death:
                deaths.append(str(death))
                self._end(slot)
                self._check_open()
            except WorkerTimeout:
                self._end(slot, timeouts=1)
                self._restart(slot)
                detail = f"not done after {self.limits.timeout_s:g} s; its process was killed"
                raise _Refused(Reason.DECODE_TIMEOUT, detail) from None
        self._end(slot, crashes=1)
        self._restart(slot)
        raise _Refused(Reason.DECODER_CRASHED, f"its process {deaths[0]}, and a second one {deaths[1]}")

    def _begin(self, slot: _Slot) -> WorkerProcess:
        """The slot's worker, started now where it has none. Raises PeerError."""
        if slot.worker is None:
            self._check_open()
            try:
                worker = WorkerProcess(self._clock, self.limits.memory, self._preload, os.environ)
            except OSError as error:
                raise PeerError(f"a decode worker can't be started: {error}") from error
            with self._change:
                slot.worker = worker
                self._started += 1
        self._check_open()  # `close` may have looked before it was there
        return slot.worker

    def _ready(self, slot: _Slot) -> WorkerProcess:
        """The same, when it can be asked. Raises PeerError."""
        worker = self._begin(slot)
        try:
            worker.ready()
        except PeerError:
            self._end(slot)
            raise
        return worker

    def _restart(self, slot: _Slot) -> None:
        """Begin another at once, so that the next sample need not wait for its imports."""
        try:
            self._begin(slot)
        except PeerError as error:
            log.warning("%s; tried again when there is work", error)

    def _end(self, slot: _Slot, *, timeouts: int = 0, crashes: int = 0, replaced: int = 0) -> None:
        """Kill the slot's worker, if it has one, and count why."""
        with self._change:
            worker, slot.worker = slot.worker, None
            self._timeouts += timeouts
            self._crashes += crashes
            self._replaced += replaced
        if worker is not None:
            worker.close()

    def _remember(self, digest: bytes, bad: BadSample) -> None:
        with self._change:
            self._refused[digest] = bad
            if len(self._refused) > _MOST_REFUSED:
                del self._refused[next(iter(self._refused))]

    def _refuse_again(self, digest: bytes) -> None:
        with self._change:
            bad = self._refused.get(digest)
        if bad is not None:
            raise BadSample(bad.reason, bad.detail)

    def _check_open(self) -> None:
        if self._closed:
            raise PeerError("this process's decode workers have been stopped")


def _digest(operation: str, arguments: Mapping[str, Any], payload: bytes) -> bytes:
    """Of a call."""
    digest = hashlib.blake2b(json.dumps([operation, arguments], sort_keys=True).encode(), digest_size=16)
    digest.update(b"\0")
    digest.update(payload)
    return digest.digest()
