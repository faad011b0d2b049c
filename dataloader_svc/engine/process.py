"""One life of one child process: started, heard, signalled, and swept up with all that it started.

Knows Linux and nothing of roles or restarts (`local.py`). The exit is awaited through a pidfd in the loop's
selector, with no thread and no polling. When it is readable the process is dead but not yet reaped, so its
number can't have been given to another: only then is its group killed, and after that it is reaped.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dataloader_svc.engine.child import CONTROL_FD

Listener = Callable[[Mapping[str, Any]], None]


class ChildProcess:
    """A running child in a session of its own. `exited` gives its exit code, -signal where one killed it."""

    def __init__(
        self, argv: Sequence[str], *, environment: Mapping[str, str], output: int, listener: Listener
    ) -> None:
        """Start `argv` with its output to the file descriptor `output`. OSError: it can't be started."""
        self._loop = asyncio.get_running_loop()
        self.listener = listener  # another's, once the child goes on under another name
        self._received = b""
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**environment, CONTROL_FD: str(theirs.fileno())},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError:
            self._control.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except OSError:
            self._process.kill()
            self._process.wait()
            self._control.close()
            raise
        self.exited: asyncio.Future[int] = self._loop.create_future()
        self._loop.add_reader(self._control, self._on_control)
        self._loop.add_reader(self._pidfd, self._on_exit)

    def terminate(self) -> None:
        """SIGTERM to the child alone: what it started is its own to stop."""
        if not self.exited.done():
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the child and all that it started in its group."""
        if not self.exited.done():
            os.killpg(self.pid, signal.SIGKILL)

    def send(self, message: Mapping[str, Any]) -> None:
        """Tell the child. Lost where it is dead: its exit tells that."""
        with contextlib.suppress(OSError):
            self._control.send(json.dumps(message).encode() + b"\n")

    def _on_control(self) -> bool:
        """Pass complete messages on; tell whether there may be more. Other lines are passed over."""
        try:
            data = self._control.recv(65_536)
        except BlockingIOError:
            return False
        except ConnectionError:
            data = b""
        if not data:
            self._loop.remove_reader(self._control)
            return False
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict):
                    self.listener(message)
        return True

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        while self._on_control():  # its last words, where the selector reported the exit first
            pass
        self._loop.remove_reader(self._control)
        self._control.close()
        os.close(self._pidfd)
        self.exited.set_result(self._process.wait())
