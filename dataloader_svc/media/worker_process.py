"""One worker process, from the loader's side: started fresh, asked, killed, swept up.

Belongs to one thread at a time, but for `kill`. Which thread, and what becomes of a sample whose worker is
gone, is `workers.py`; what the process does is `worker_main.py`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from dataloader_svc.clock import Clock
from dataloader_svc.errors import BadSample, PeerError, Reason
from dataloader_svc.media.worker_wire import Answer, Channel, Closed, Garbled, cut

START_TIMEOUT_S = 120.0  # imports take under a second; on a machine that starts a thousand processes, more
_ASLEEP_S = 1.0

# One core a worker: pools of threads inside every one of them would only oversubscribe the cores. Two arenas,
# because an allocator that has one a thread keeps what each has freed.
_ENVIRONMENT = {
    **dict.fromkeys(
        (
            "OMP_NUM_THREADS",
            "OPENBLAS_NUM_THREADS",
            "MKL_NUM_THREADS",
            "NUMEXPR_NUM_THREADS",
            "RAYON_NUM_THREADS",
            "OPENCV_FOR_THREADS_NUM",
        ),
        "1",
    ),
    "MALLOC_ARENA_MAX": "2",
}


class WorkerDied(Exception):
    """The process ended, or spoke nonsense and was ended; the text says of what."""


class WorkerTimeout(Exception):
    """It isn't done in time. It still runs: `kill` it."""


class Deadline:
    """Counts from its making. A process that was itself stopped for a while starts counting again."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self._end = clock.monotonic() + seconds

    def left(self) -> float:
        """Seconds, below zero where it has passed."""
        left = self._end - self._clock.monotonic()
        if left < -_ASLEEP_S:
            # A wait ends at the deadline, not a second after it: we were stopped, and the worker may have
            # been too. Nothing is known of how long it really took.
            self._end += self._seconds - left
            left = self._seconds
        return left


class WorkerProcess:
    """Running from the start. `ready` must be called once before the first `ask`.

    tasks   answered so far
    """

    def __init__(
        self, clock: Clock, memory: int, preload: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        """Start it. OSError: it can't be started."""
        self.tasks = 0
        self._clock = clock
        self._memory = memory
        self._deadline = Deadline(clock, START_TIMEOUT_S)
        ours, theirs = socket.socketpair()
        end_of_life, self._lifeline = os.pipe()
        words = [str(number) for number in (end_of_life, theirs.fileno(), memory)]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dataloader_svc.media.worker_main", *words, *preload],
                stdin=subprocess.DEVNULL,
                env={**environment, **_ENVIRONMENT},
                pass_fds=(end_of_life, theirs.fileno()),
            )
        except OSError:
            ours.close()
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(end_of_life)
        self.pid = self._process.pid
        self._channel = Channel(ours, lambda: self._deadline.left())
        self._is_ready = False

    def ready(self) -> None:
        """Wait until it has imported what it needs. Raises PeerError where it can't: no sample's fault."""
        if self._is_ready:
            return
        try:
            self._channel.receive_bytes(0)
        except (Closed, Garbled, TimeoutError) as problem:
            self.kill()
            raise PeerError(
                f"a decode worker {self._ended(problem)} before it was ready; its own words are in this "
                "process's log"
            ) from None
        self._is_ready = True

    def ask(self, operation: str, arguments: Mapping[str, Any], payload: bytes, timeout_s: float) -> Answer:
        """Run an operation. Raises BadSample, WorkerDied, WorkerTimeout; after these two it is of no use."""
        self._deadline = Deadline(self._clock, timeout_s)
        try:
            self._channel.send([operation, dict(arguments)], [payload])
            said, data = self._channel.receive_array(self._memory)
            self.tasks += 1
            return _read_answer(said, cut(data, said["arrays"]) if "arrays" in said else [])
        except TimeoutError:
            raise WorkerTimeout from None
        except (Closed, Garbled, TypeError, ValueError, KeyError) as problem:
            self.kill()
            raise WorkerDied(self._ended(problem)) from None

    def kill(self) -> None:
        """End it, whatever it is at, and wait until it is gone. From any thread, any number of times."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """`kill`, and let go of the pipes."""
        self.kill()
        self._channel.close()
        os.close(self._lifeline)

    def memory(self) -> int:
        """Bytes in memory (RSS), shared libraries included; 0 where it is gone."""
        try:
            return int(psutil.Process(self.pid).memory_info().rss)
        except psutil.Error:
            return 0

    def _ended(self, problem: Exception) -> str:
        code = self._process.returncode
        if isinstance(problem, TimeoutError):
            return f"said nothing for {START_TIMEOUT_S:g} s"
        if not isinstance(problem, Closed):
            return f"said nonsense ({problem})"
        if code is not None and code < 0:
            return f"ended by {signal.Signals(-code).name}"
        return f"ended with code {code}"


def _read_answer(said: Any, arrays: Sequence[Any]) -> Answer:
    if "bad" in said:
        reason, detail = said["bad"]
        raise BadSample(Reason(reason), str(detail))
    return Answer(said["value"], arrays)
