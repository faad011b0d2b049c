"""The engine that starts each role as a process of this machine, and starts it again when it dies.

Each child has a session of its own, so that Ctrl-C reaches the supervisor alone, which stops the roles in
order; if the supervisor is killed, the children end themselves (`child.py`). When and whether to restart is
decided in `restart.py`; a single life is `process.py`. What a role prints goes to `logs/<name>.log` straight,
not through the supervisor, which can so neither delay nor lose it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dataloader_svc.clock import Clock, SystemClock
from dataloader_svc.engine.base import (
    FINAL_EXIT_CODES,
    LAST_GRACE_S,
    REPLACE_GRACE_S,
    STOP_GRACE_S,
    STOP_ORDER,
    Roles,
    RoleSpec,
    RoleState,
    RoleStatus,
)
from dataloader_svc.engine.environment import role_environment
from dataloader_svc.engine.logfile import LogFile, log_path
from dataloader_svc.engine.process import ChildProcess
from dataloader_svc.engine.restart import RestartHistory, RestartPolicy
from dataloader_svc.errors import EngineError

log = logging.getLogger(__name__)

KILL_S = 2.0
"""For a process to be gone after SIGKILL, which takes milliseconds where the kernel can do it."""

Argv = Callable[[RoleSpec], Sequence[str]]
_ENDED = (RoleState.STOPPED, RoleState.FAILED)


def role_argv(spec_path: Path) -> Argv:
    """The command line of the real roles; `spec_path` is the job description that all of them read."""

    def argv(spec: RoleSpec) -> list[str]:
        return [
            *(sys.executable, "-m", "dataloader_svc.engine.role"),
            *("--role", spec.role, "--index", str(spec.index), "--spec", str(spec_path)),
            *(("--shadow",) if spec.shadow else ()),
            *(("--split", spec.split) if spec.split else ()),
            *spec.args,
        ]

    return argv


class LocalEngine:
    """See `base.Engine`. `async with LocalEngine(...) as engine` closes it at the end."""

    def __init__(
        self,
        run_dir: Path,
        argv: Argv,
        *,
        environment: Mapping[str, str] | None = None,
        policy: RestartPolicy | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`environment` is added to `role_environment`. Logs go to `run_dir/logs`, which is made."""
        self._run_dir = run_dir
        self._argv = argv
        self._environment = {**role_environment(os.environ), **(environment or {})}
        self._policy = policy or RestartPolicy()
        self._clock = clock or SystemClock()
        self._roles: dict[str, _Role] = {}
        self._waiters: list[tuple[Callable[[Roles], bool], asyncio.Future[dict[str, RoleStatus]]]] = []
        self._closed = False

    async def start(self, spec: RoleSpec) -> str:
        if self._closed:
            raise EngineError(f"{spec.name}: the engine was closed")
        former = self._roles.get(spec.name)
        if former is not None and former.status.state not in _ENDED:
            raise ValueError(f"{spec.name} is {former.status.state} already")
        role = _Role(
            spec,
            lambda listener, output: ChildProcess(
                self._argv(spec), environment=self._environment, output=output, listener=listener
            ),
            LogFile(log_path(self._run_dir, spec.name)),
            RestartHistory(self._policy),
            self._clock,
            self._on_change,
            lambda: None if spec.shadow else self._shadow_of(spec.role),
        )
        self._roles[spec.name] = role
        role.begin()
        # A caller that is cancelled leaves the role running: `close` stops it.
        return await asyncio.shield(role.first_ready)

    async def stop(self, name: str, *, grace_s: float = STOP_GRACE_S) -> None:
        await self._roles[name].stop(grace_s)

    async def replace(self, name: str, address: str, *, grace_s: float = REPLACE_GRACE_S) -> bool:
        return await self._roles[name].end_life(address, grace_s)

    def roles(self) -> dict[str, RoleStatus]:
        return {name: role.status for name, role in self._roles.items()}

    def logs(self, name: str, lines: int = 20) -> list[str]:
        return self._roles[name].log.tail(lines)

    async def wait_for(self, condition: Callable[[Roles], bool]) -> dict[str, RoleStatus]:
        future: asyncio.Future[dict[str, RoleStatus]] = asyncio.get_running_loop().create_future()
        waiter = (condition, future)
        self._waiters.append(waiter)
        try:
            self._on_change()
            return await future
        finally:
            self._waiters.remove(waiter)

    async def close(self, *, grace_s: float = STOP_GRACE_S) -> None:
        self._closed = True
        until = self._clock.monotonic() + grace_s
        for kind in STOP_ORDER:
            left_s = max(until - self._clock.monotonic(), min(grace_s, LAST_GRACE_S))
            await asyncio.gather(
                *(role.stop(left_s) for role in self._roles.values() if role.spec.role == kind)
            )
        self._on_change()

    def kill(self) -> None:
        """SIGKILL to all that runs, without a wait. From any thread, for when this engine's loop hangs."""
        self._closed = True
        for role in self._roles.values():
            role.kill()

    def _shadow_of(self, kind: str) -> ChildProcess | None:
        """The process of a shadow that is warm, which is its no more."""
        for role in self._roles.values():
            if role.spec.shadow and role.spec.role == kind and (process := role.give()) is not None:
                return process
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _on_change(self) -> None:
        """Wake those whose condition holds now. Called at every change, so that no state goes unseen."""
        roles = self.roles()
        error = next((role.error for role in self._roles.values() if role.error is not None), None)
        if error is None and self._closed and all(status.state in _ENDED for status in roles.values()):
            error = EngineError("the engine was closed")
        for condition, future in self._waiters:
            if future.done():
                continue
            try:
                holds = condition(roles)
            except Exception as raised:  # the waiter's own mistake, and not the supervision's end
                future.set_exception(raised)
                continue
            if holds:
                future.set_result(roles)
            elif error is not None:
                future.set_exception(error)


class _Role:
    """One role over all of its lives: a task that starts it, waits for its end, and decides what then."""

    def __init__(
        self,
        spec: RoleSpec,
        spawn: Callable[[Callable[[Mapping[str, Any]], None], int], ChildProcess],
        log: LogFile,
        history: RestartHistory,
        clock: Clock,
        on_change: Callable[[], None],
        shadow: Callable[[], ChildProcess | None],
    ) -> None:
        self.spec = spec
        self.status = RoleStatus(spec.name, RoleState.STARTING)
        self.error: EngineError | None = None
        self.first_ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.log = log
        self._spawn = spawn
        self._history = history
        self._clock = clock
        self._on_change = on_change
        self._shadow = shadow
        self._process: ChildProcess | None = None
        self._given = asyncio.Event()
        self._stop = asyncio.Event()
        self._was_ready = False
        self._last_words: str | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start the first life."""
        self._task = asyncio.create_task(self._run(), name=self.spec.name)
        self._task.add_done_callback(self._on_end)
        # Nobody may be waiting for it any more when it fails; then the error is read from `error`.
        self.first_ready.add_done_callback(lambda future: future.cancelled() or future.exception())

    async def stop(self, grace_s: float) -> None:
        self._stop.set()
        if self.status.state is not RoleState.STOPPED:
            self.error = None
            self._set(state=RoleState.STOPPING)
        process = self._process
        if process is not None:
            process.terminate()
            await asyncio.wait([process.exited], timeout=grace_s)
            process.kill()
        assert self._task is not None
        # Not `await self._task`: who cancels the caller would cancel it.
        await asyncio.wait([self._task], timeout=KILL_S)
        if not self._task.done():
            log.error(
                "%s: process %s has not ended %g s after SIGKILL: it hangs in the kernel, on a file system "
                "or device that does not answer; going on without it",
                *(self.spec.name, self.status.pid, KILL_S),
            )
        self.error = None
        self._set(state=RoleState.STOPPED, pid=None, address=None)

    def kill(self) -> None:
        self._stop.set()
        process = self._process
        if process is not None:
            process.kill()

    async def end_life(self, address: str, grace_s: float) -> bool:
        """Of the process that serves there, if it does; what follows is what follows any death."""
        process = self._process
        if process is None or self.status.state is not RoleState.READY or self.status.address != address:
            return False
        process.terminate()
        await asyncio.wait([process.exited], timeout=grace_s)
        process.kill()
        return True

    def give(self) -> ChildProcess | None:
        """Of a shadow: its process, which goes on as another role; None where it isn't warm."""
        process = self._process
        if process is None or self.status.state is not RoleState.READY or process.exited.done():
            return None
        self._process = None
        self._given.set()
        return process

    async def _run(self) -> None:
        process: ChildProcess | None = None
        while not self._stop.is_set():
            began = self._clock.monotonic()
            code = await self._live(process)
            if self._given.is_set():
                self._given.clear()
                self._set(state=RoleState.STARTING, pid=None, address=None, restarts=self.status.restarts + 1)
                continue
            if self._stop.is_set():
                self._set(state=RoleState.STOPPING, pid=None, address=None, last_exit=code)
                break
            if code in FINAL_EXIT_CODES:
                self._fail(code, "which a restart does not mend")
                return
            delay_s = self._history.died(was_ready=self._was_ready, lived_s=self._clock.monotonic() - began)
            if delay_s is None:
                self._fail(code, "again and again without becoming ready")
                return
            process = self._shadow()
            if process is not None:
                self.log.note(
                    f"{self.spec.name}: {describe_exit(code)}; process {process.pid} takes its place"
                )
                self._set(state=RoleState.STARTING, last_exit=code, restarts=self.status.restarts + 1)
                continue
            self.log.note(f"{self.spec.name}: {describe_exit(code)}; starts again in {delay_s:.1f} s")
            self._set(state=RoleState.WAITING, pid=None, address=None, last_exit=code)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), delay_s)
            if not self._stop.is_set():
                self._set(state=RoleState.STARTING, restarts=self.status.restarts + 1)
        self._never_ready(EngineError(f"{self.spec.name} was stopped before it was ready"))

    async def _live(self, process: ChildProcess | None) -> int:
        """One life, in a process that ran as a shadow or in a new one: its exit code; 0 where it was given.

        A process that can't be started has died with code 1.
        """
        self._was_ready = False
        self._last_words = None
        if process is not None:
            self._process = process
            process.listener = self._on_message
            process.send({"promote": self.spec.index, "log": str(self.log.path)})
        else:
            try:
                with self.log.life(self.spec.name) as output:
                    self._process = process = self._spawn(self._on_message, output)
            except OSError as error:
                self._last_words = f"can't be started: {error}"
                self.log.note(self._last_words)
                return 1
        self._set(pid=process.pid)
        given = asyncio.create_task(self._given.wait())
        ends: set[asyncio.Future[Any]] = {process.exited, given}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            return 0 if self._given.is_set() else process.exited.result()
        finally:
            given.cancel()
            if not self._given.is_set():
                process.kill()  # still alive only where this task was cancelled: nobody would supervise it
            self._process = None

    def _on_message(self, message: Mapping[str, Any]) -> None:
        if "failed" in message:
            self._last_words = str(message["failed"])
        if "ready" in message and not self._was_ready:
            self._was_ready = True
            address = str(message["ready"])
            if not self.first_ready.done():
                self.first_ready.set_result(address)
            state = RoleState.STOPPING if self._stop.is_set() else RoleState.READY
            self._set(state=state, address=address)

    def _fail(self, code: int, what: str) -> None:
        text = f"{self.spec.name}: {self._last_words}"
        if self._last_words is None:
            lines = self.log.tail(20, this_life=True) or ["(it wrote nothing)"]
            text = f"{self.spec.name}: {describe_exit(code)}, {what}; its log {self.log.path} ends:"
            text = "\n  ".join([text, *lines])
        # Above 1, a role chose its code to say whose fault it is; 1 and signals are crashes.
        chosen = code in FINAL_EXIT_CODES or (code > 1 and self._last_words is not None)
        self.error = EngineError(text, code if chosen else EngineError.exit_code)
        self._set(state=RoleState.FAILED, pid=None, address=None, last_exit=code)
        self._never_ready(self.error)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """The supervision itself ended: as it should, or by a mistake of ours that must not go unseen."""
        mistake = None if task.cancelled() else task.exception()
        if mistake is not None:
            self.error = EngineError(f"{self.spec.name}: its supervision broke: {mistake!r}")
            self.error.__cause__ = mistake
            self._set(state=RoleState.FAILED, pid=None, address=None)
            self._never_ready(self.error)

    def _never_ready(self, error: EngineError) -> None:
        if not self.first_ready.done():
            self.first_ready.set_exception(error)

    def _set(self, **changes: Any) -> None:
        self.status = replace(self.status, **changes)
        self._on_change()


def describe_exit(code: int) -> str:
    """`exit code 1`, or `killed by SIGKILL`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"killed by signal {-code}"
