"""`LocalService`: a `dataloader-svc serve` that belongs to this process, for notebooks and scripts.

The service is a process of its own, `python -m dataloader_svc serve`, never imported: this package stays
as light as it is. It lives as long as the object or this process, whichever ends first: it watches this
process itself (`serve --embedded-in`), so that not even SIGKILL leaves an orphan. Its state store is a file
in its own temporary folder, and its token is told to nobody else. Knows nothing of loaders (`loader.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, Any, Self

from dataloader_client.errors import LocalServiceError, MeshMismatchError
from dataloader_client.mesh import launched_ranks

STOP_S = 20.0
"""What `serve` is given to stop its roles and remove its files; it takes one or two seconds."""

_LAST_LINES, _LAST_BYTES = 20, 16_384


class LocalService:
    """The service of the configuration `config`, started here. `address` and `token` are for a loader.

    store            URL of a state store to keep, such as "sqlite:////data/job.db"; default: a temporary one.
                     A `state_dict` resumes on an empty store, so none is needed for that
    start_timeout_s  in which it must have opened all sources and be ready

    `close`, the end of a `with`, the loss of the last reference and the end of this process stop it, whatever
    that dies of. Ctrl-C and a notebook's interrupt do not reach it: the next cell goes on with it.
    Raises LocalServiceError with the service's own words where it does not start; MeshMismatchError in a rank
    of a larger job, which wants one service for all its ranks.
    """

    def __init__(
        self,
        config: str | os.PathLike[str],
        *,
        store: str | None = None,
        start_timeout_s: float = 300.0,
    ) -> None:
        ranks = launched_ranks()
        if ranks > 1:
            raise MeshMismatchError(
                f"this is one of {ranks} ranks, and each would start a service of its own: start one for "
                "all, with `dataloader-svc serve`, or with LocalService in the process that launches the "
                "ranks, and give them its address"
            )
        self._process = _start(os.fspath(config), store)
        self._finalizer = weakref.finalize(self, self._process.close)
        try:
            ready = self._process.wait_ready(start_timeout_s)
        except BaseException:  # Ctrl-C too: nothing may go on starting that nobody waits for
            self.close()
            raise
        self.address: str = ready["address"]
        self.job: str = ready["job"]
        self.token: str = ready["token"]
        threading.Thread(target=self._process.watch, name="dataloader-local-service", daemon=True).start()

    @property
    def pid(self) -> int:
        """Of `serve`; the roles are below it."""
        return self._process.popen.pid

    def check(self) -> None:
        """LocalServiceError where it has ended, with the last lines that it wrote."""
        if not self._finalizer.alive:
            raise LocalServiceError("this embedded service was closed: start another")
        self._process.check()

    def on_end(self, act: Callable[[], None]) -> None:
        """Call `act` in another thread, or now, when the service ends without having been asked to."""
        self._process.on_end(act)

    def close(self) -> None:
        """Stop it and wait for its end. Idempotent."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(slots=True)
class _Process:
    """What must be ended with a LocalService; does not know it, so that that can be dropped."""

    popen: subprocess.Popen[bytes]
    said: IO[bytes]  # its stderr: a file without a name, so nothing is left of it whatever happens
    owner: int
    closing: bool = False
    ended: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)
    acts: list[Callable[[], None]] = field(default_factory=list)

    def wait_ready(self, timeout_s: float) -> dict[str, Any]:
        """What `serve --json` prints when it is ready."""
        assert self.popen.stdout is not None
        until = time.monotonic() + timeout_s
        line = b""
        while not line.endswith(b"\n"):
            readable, _, _ = select.select([self.popen.stdout], [], [], max(until - time.monotonic(), 0))
            if not readable:
                raise LocalServiceError(
                    f"the embedded service is not ready after {timeout_s:g} s: give it longer "
                    f"(start_timeout_s), or see how far it comes with `dataloader-svc serve`{self._words()}"
                )
            part = os.read(self.popen.stdout.fileno(), 65_536)
            if not part:
                self.popen.wait(STOP_S)
                raise LocalServiceError(f"the embedded service did not start{self._words()}")
            line += part
        values: dict[str, Any] = json.loads(line)
        return values

    def watch(self) -> None:
        """Wait for the end; whoever asked is told where it came unbidden."""
        self.popen.wait()
        with self.lock:
            self.ended = True
            acts, self.acts = self.acts, []
        if not self.closing:
            for act in acts:
                act()

    def on_end(self, act: Callable[[], None]) -> None:
        with self.lock:
            if not self.ended:
                self.acts.append(act)
                return
        act()

    def check(self) -> None:
        if self.popen.poll() is not None:
            raise LocalServiceError(
                f"the embedded service has ended: make another, with state=loader.state_dict(){self._words()}"
            )

    def _words(self) -> str:
        """How it ended, and the end of what it wrote, as the end of a message."""
        code = self.popen.poll()
        how = "" if code is None else f" (killed by signal {-code})" if code < 0 else f" (exit code {code})"
        # Not `seek` and `read`: the service writes at the same offset.
        size = os.fstat(self.said.fileno()).st_size
        end = os.pread(self.said.fileno(), _LAST_BYTES, max(size - _LAST_BYTES, 0))
        lines = end.decode(errors="replace").splitlines()[-_LAST_LINES:]
        return "\n  ".join([f"{how}; its last words:" if lines else how, *lines])

    def close(self) -> None:
        if os.getpid() != self.owner:  # a forked child's copy of what is its parent's
            return
        self.closing = True
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(STOP_S)
            self.popen.kill()  # then its roles end by themselves
        self.popen.wait()
        assert self.popen.stdout is not None
        self.popen.stdout.close()
        self.said.close()


def _start(config: str, store: str | None) -> _Process:
    if not sys.executable:
        raise LocalServiceError("this Python does not know its own executable: start `dataloader-svc serve`")
    command = [sys.executable, "-m", "dataloader_svc", "serve", config, "--json"]
    command += ["--address", "127.0.0.1:0", "--embedded-in", str(os.getpid())]
    if store is not None:
        command += ["--store", store]
    said = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the service
    try:
        popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            bufsize=0,
            start_new_session=True,  # neither Ctrl-C nor a kernel's interrupt is meant for it
        )
    except OSError as error:
        said.close()
        raise LocalServiceError(f"can't start {sys.executable}: {error.strerror}") from None
    return _Process(popen, said, os.getpid())
