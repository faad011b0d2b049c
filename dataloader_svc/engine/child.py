"""Inside a role process: how it tells the engine that it is ready, hears that it should stop, and never
outlives the engine.

The engine gives a child one end of a socket, by number in the environment (`DATALOADER_CONTROL_FD`). The
child writes lines of JSON, `{"ready": address}` or `{"failed": text}`; the engine writes to a shadow alone,
`{"promote": index, "log": path}`. The end of the stream is the engine's death, whatever it died of: the
kernel closes its end. (Linux can also signal a
child when its parent dies, but that means the *thread* that started it, and a start or exec at the wrong
moment misses it.) A child that is itself stopped by SIGSTOP notices when it is continued.

The engine asks to stop by SIGTERM. A terminal's Ctrl-C doesn't reach a child: it has a session of its own.
Without that variable the role runs on its own, for a person at a shell: it prints its address, and Ctrl-C
stops it. What a role is and does is unknown here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from dataloader_svc.errors import DataloaderError

CONTROL_FD = "DATALOADER_CONTROL_FD"
ORPHAN_GRACE_S = 2.0  # for an orphan to remove its shared memory and finish a write; nobody waits for more
MAX_TEXT = 16_384  # characters of an error sent to the engine; fits the socket's buffer, so it never blocks


class ChildContext:
    """A role's line to its engine. Made once, first thing in `main`, by `run_child`."""

    def __init__(self, control: socket.socket | None = None) -> None:
        self.stop_requested = asyncio.Event()
        self.promoted = asyncio.Event()
        self.index: int | None = None
        """Of a shadow that was promoted: whose place it takes."""
        self.orphaned = False
        self._control = control
        self._loop: asyncio.AbstractEventLoop | None = None

    def attend(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hear requests to stop by signal, and to take another's place, in `loop`."""
        self._loop = loop
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop_requested.set)

    @classmethod
    def from_environment(cls) -> ChildContext:
        """Take the socket that the environment names, so that no process started from here inherits it."""
        number = os.environ.pop(CONTROL_FD, None)
        if number is None:
            return cls()
        control = socket.socket(fileno=int(number))
        control.set_inheritable(False)
        return cls(control)

    def ready(self, address: str) -> None:
        """Tell the engine that this role serves at `address` (host:port), or could, as a shadow."""
        if self._control is None:
            print(f"ready at {address}", flush=True)  # for the person who started it
        self._send({"ready": address})

    def failed(self, error: DataloaderError) -> None:
        """Tell the engine why this role is about to end itself, in the error's own words."""
        text = "\n".join([str(error), *getattr(error, "__notes__", ())])
        self._send({"failed": text[:MAX_TEXT]})

    def on_parent_death(self, act: Callable[[], None], *, grace_s: float = ORPHAN_GRACE_S) -> None:
        """Call `act` in a thread when the engine is gone, and kill this process group `grace_s` later.

        The group is the role and all that it started. Once a life; nothing where no engine started us.
        """
        if self._control is None:
            return
        threading.Thread(
            target=self._watch, args=(self._control, act, grace_s), name="parent-watch", daemon=True
        ).start()

    def _watch(self, control: socket.socket, act: Callable[[], None], grace_s: float) -> None:
        with contextlib.suppress(OSError), control.makefile("rb") as lines:
            for line in lines:
                self._heard(json.loads(line))
        self.orphaned = True
        killer = threading.Timer(grace_s, kill_own_group)
        killer.daemon = True
        killer.start()
        act()

    def _heard(self, message: dict[str, Any]) -> None:
        """In the watching thread. What is written from now on is the log of the role that died."""
        log = os.open(message["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(log, stream.fileno())
        os.close(log)
        self.index = int(message["promote"])
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.promoted.set)

    def _send(self, message: dict[str, str]) -> None:
        if self._control is not None:
            # The engine may be dead: then the watch ends this process, and there is nobody to tell.
            with contextlib.suppress(OSError):
                self._control.sendall(json.dumps(message).encode() + b"\n")


def run_child(body: Callable[[ChildContext], Awaitable[None]]) -> int:
    """Run a role's `body` to its end and return the process's exit code: the whole `main` of a role.

    `body` calls `context.ready(address)` when it serves, and returns some time after
    `context.stop_requested` is set (by SIGTERM, Ctrl-C, or the engine's death). A DataloaderError that it
    raises is told to the engine and becomes its exit code; anything else is a bug and leaves a traceback in
    the log. It must not block the loop while it stops: after the engine's grace it is killed.
    """
    context = ChildContext.from_environment()
    context.on_parent_death(lambda: os.kill(os.getpid(), signal.SIGTERM))
    try:
        asyncio.run(_until_done(body, context))
    except DataloaderError as error:
        context.failed(error)
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    finally:
        if context.orphaned:
            kill_own_group()  # nobody else would end what this process has started
    return 0


async def _until_done(body: Callable[[ChildContext], Awaitable[None]], context: ChildContext) -> None:
    context.attend(asyncio.get_running_loop())
    await body(context)


def kill_own_group() -> None:
    """SIGKILL to this process and, where it leads its group as under an engine, to all that it started."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
