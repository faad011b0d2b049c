"""Steps read ahead of the trainer by one thread, in order.

`depth` steps are asked for before they are needed, so that the service builds and sends them while the
trainer computes; each is taken in as soon as it comes. No more than `depth` are held, nor than `most_bytes`
of them, whatever the trainer does: that is the client's memory. Knows nothing of microbatches or states
(`loader.py`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from dataloader_client._pb import constructor_service_pb2
from dataloader_client.failures import Closed
from dataloader_client.mesh import Coords
from dataloader_client.transport import PendingRead, Transport, coords_message
from dataloader_client.wire import Frame

SIGNAL_WAIT_S = 1.0  # at most from Ctrl-C to KeyboardInterrupt


class Prefetch:
    """Frames of steps from the first on: `take` them in order; `stop` when done. Starts its thread at once.

    start(step, stop) sends a read; the transport finishes it. follow(step) is the step to be read where
    `step` would be next: a later one where that is skipped.

    most_bytes   of steps that wait for the trainer or are on their way; the size of one that isn't there is
                 taken for that of the largest so far. One step is read ahead in any case. None: no such limit
    """

    def __init__(
        self,
        transport: Transport,
        start: Callable[[int, threading.Event], PendingRead],
        first_step: int,
        depth: int,
        *,
        most_bytes: int | None = None,
        follow: Callable[[int], int] = int,
    ) -> None:
        self._transport = transport
        self._start = start
        self._follow = follow
        self._step = follow(first_step)
        self._depth = depth
        self._most_bytes = most_bytes
        self._largest = 0  # bytes of a step
        self._stop = threading.Event()
        self._change = threading.Condition()
        self._pending: deque[PendingRead] = deque()
        self._ready: deque[Frame] = deque()
        self._error: BaseException | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="dataloader-prefetch", daemon=True)
        self._thread.start()

    def take(self) -> Frame:
        """The next frame; blocks. The frame that says that the data has ended comes once, as the last.

        Raises what reading it raised; then, this object is used up.
        """
        with self._change:
            # In turns: Python hears of a signal that came just before a wait at the end of it.
            while not self._change.wait_for(lambda: self._ready or self._error is not None, SIGNAL_WAIT_S):
                pass
            if self._ready:
                frame = self._ready.popleft()
                self._change.notify_all()
                return frame
            assert self._error is not None
            raise self._error

    def stop(self) -> None:
        """End the thread and all reads. Idempotent; may be called from any thread."""
        with self._change:
            self._stop.set()
            for pending in self._pending:
                pending.cancel()
            self._change.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._ready.clear()  # what is mapped goes back now, not when a cycle is collected

    def _run(self) -> None:
        try:
            while self._fill():
                # Not kept in a variable here, where the traceback of a later error would hold it.
                self._took(self._transport.finish_read(self._pending[0]))
        except BaseException as error:
            with self._change:
                self._error = error
                self._change.notify_all()
        finally:
            with self._change:
                for pending in self._pending:
                    pending.cancel()

    def _took(self, frame: Frame) -> None:
        with self._change:
            self._pending.popleft()
            self._ready.append(frame)
            self._largest = max(self._largest, frame.num_bytes)
            self._ended = bool(frame.meta.get("end"))
            self._change.notify_all()

    def _fill(self) -> bool:
        """Wait for room and ask for as many steps as there is room for; False when there is nothing to do."""
        with self._change:
            self._change.wait_for(lambda: self._stop.is_set() or self._ended or self._room() or self._pending)
            if self._stop.is_set():
                raise Closed
            if self._ended:
                return False
            while self._room():
                self._pending.append(self._start(self._step, self._stop))
                self._step = self._follow(self._step + 1)
            return True

    def _room(self) -> bool:
        ahead = len(self._pending) + len(self._ready)
        if not ahead or ahead >= self._depth or self._most_bytes is None:
            return ahead < self._depth
        if not self._largest:  # of the first, nothing is known
            return False
        here = sum(frame.num_bytes for frame in self._ready)
        return here + (len(self._pending) + 1) * self._largest <= self._most_bytes


def start_read(
    transport: Transport, session: int, coords: Coords, step: int, stop: threading.Event | None = None
) -> PendingRead:
    """Ask for a step of this rank; `stop` ends the wait for it."""
    request = constructor_service_pb2.ReadRequest(session=session, step=step, coords=coords_message(coords))
    return transport.start_read(request, stop)
