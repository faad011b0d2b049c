"""What a loader's work took it, for the planner to compare loaders by.

Work is measured where it is done, in the threads that read and decode, so that time in queues, of which a
loader has the more the more it is asked, is no part of it. Knows nothing of peers (`planner/stragglers.py`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dataloader_client._pb import loader_service_pb2
from dataloader_svc import faultpoint
from dataloader_svc.clock import Clock

PIECE_S = 0.01
"""Works of a kind are put together until they took this long: a text block may take a millisecond."""

KEPT = 256


@dataclass(slots=True)
class _Work:
    kind: str
    units: int
    began: float
    share_began: float
    seconds: float = 0.0
    share_s: float = 0.0


@dataclass(slots=True)
class Meter:
    """Thread-safe. Seconds are of `clock.monotonic`, and so go on while the process is stopped.

    A work's share of the time is each instant of it divided by the number of works under way then.
    """

    clock: Clock
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _under_way: dict[int, _Work] = field(default_factory=dict)
    _small: dict[str, _Work] = field(default_factory=dict)
    _done: deque[_Work] = field(default_factory=lambda: deque(maxlen=KEPT))
    _num_done: int = 0
    _number: int = 0
    _now: float = 0.0
    _shared: float = 0.0  # seconds each divided by the works that were under way

    @contextmanager
    def work(self, kind: str, units: int) -> Iterator[None]:
        """Measure what is done inside; of a work that fails nothing is kept."""
        with self._lock:
            self._advance()
            self._number += 1
            number = self._number
            self._under_way[number] = _Work(kind, units, self._now, self._shared)
        done = False
        try:
            faultpoint.point("loader.working")
            yield
            done = True
        finally:
            with self._lock:
                self._advance()
                self._end(self._under_way.pop(number), keep=done)

    def tell(self, status: loader_service_pb2.LoaderStatus) -> None:
        """Put what is known into the columns of a message: pieces done last, then works under way."""
        with self._lock:
            self._advance()
            current = [
                _Work(one.kind, one.units, 0.0, 0.0, self._now - one.began, self._shared - one.share_began)
                for one in self._under_way.values()
            ]
            works = [*self._done, *current]
            status.works_done, status.works_under_way = self._num_done, len(current)
        status.work.extend(work.kind for work in works)
        status.work_units.extend(work.units for work in works)
        status.work_s.extend(work.seconds for work in works)
        status.work_share_s.extend(work.share_s for work in works)

    def _advance(self) -> None:
        now = self.clock.monotonic()
        if self._under_way:
            self._shared += (now - self._now) / len(self._under_way)
        self._now = now

    def _end(self, work: _Work, *, keep: bool) -> None:
        if not keep:
            return
        piece = self._small.setdefault(work.kind, _Work(work.kind, 0, 0.0, 0.0))
        piece.units += work.units
        piece.seconds += self._now - work.began
        piece.share_s += self._shared - work.share_began
        if piece.seconds >= PIECE_S:
            self._done.append(self._small.pop(work.kind))
            self._num_done += 1
