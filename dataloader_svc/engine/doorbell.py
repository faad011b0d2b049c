"""A wait that another thread ends, and any signal.

A lock can't be waited for here. The kernel hands a signal of the process to whichever thread it likes (to
one that is just making a thread, say), and Python's handler runs in the main thread alone: where that waits
for a lock it isn't woken, and hears the signal at the next one. A signal that comes between Python's last
look and the wait itself is lost in the same way. So the wait is for a byte, which Python's own half of every
handler writes at once in whatever thread it runs: before the wait or during it, the byte is there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading


class Doorbell:
    """Where one thread waits, and others ring."""

    def __init__(self) -> None:
        self._inside, self._outside = socket.socketpair()
        self._outside.setblocking(False)

    def ring(self) -> None:
        """End the wait, or the next one. For any thread, and for signal handlers."""
        with contextlib.suppress(OSError):  # closed, or so full of rings that one more makes no difference
            self._outside.send(b"\0")

    def wait(self, timeout_s: float | None = None) -> None:
        """Until it rings or, in the main thread, a signal comes, whose handler has run when this returns.

        Returns also at the end of the time: ask for what was waited for, and wait again.
        """
        self._inside.settimeout(timeout_s)
        if threading.current_thread() is not threading.main_thread():
            self._receive()
            return
        before, rung = -1, b""
        try:
            before = signal.set_wakeup_fd(self._outside.fileno(), warn_on_full_buffer=False)
            rung = self._receive()
        finally:
            signal.set_wakeup_fd(before)
            signals = rung.replace(b"\0", b"")
            if before >= 0 and signals:  # an event loop of this thread is to hear of them too
                os.write(before, signals)

    def _receive(self) -> bytes:
        try:
            return self._inside.recv(4096)
        except TimeoutError:
            return b""

    def close(self) -> None:
        """When nobody waits any more. Rings are heard by nobody then."""
        self._inside.close()
        self._outside.close()
