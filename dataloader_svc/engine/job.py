"""A running job: its processes started, watched and stopped, behind a plain synchronous object.

`serve` holds one for as long as it runs; `bench`, `preview` and `audit` for a moment. The engine's event loop
has a thread of its own. One job is served once: `serving.py` sees to it.

What waits here waits at a `Doorbell`, so that a signal is heard at any moment, and for no longer than it may
when the job ends: processes, tasks and threads that don't end are named, and left or killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Coroutine
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from dataloader_svc import faultpoint
from dataloader_svc.clock import SystemClock
from dataloader_svc.config.evaluation import SPLIT
from dataloader_svc.engine.access import check_access
from dataloader_svc.engine.base import RoleSpec, RoleState, RoleStatus
from dataloader_svc.engine.doorbell import Doorbell
from dataloader_svc.engine.ending import END_S, cancel, whereabouts, within
from dataloader_svc.engine.local import LocalEngine, describe_exit, role_argv
from dataloader_svc.engine.replacing import replace_slow
from dataloader_svc.engine.serving import RENEW_S, Serving, current_holder
from dataloader_svc.engine.spec import JobSpec
from dataloader_svc.engine.takeover import Offer, asked, done, successor_serves, take_back, take_over
from dataloader_svc.errors import ConfigError, NotLeader, StoreError
from dataloader_svc.store.base import LEAVE_S, Store
from dataloader_svc.store.open import open_store

log = logging.getLogger(__name__)

_PORT_TRIES, _PORT_PAUSE_S = 20, 0.25
"""For the port of a service before; children of one that was killed end within ORPHAN_GRACE_S."""

CLOSE_S = 30.0
"""For all of the ending. The engine gives roles that hang 14 s; the rest is for one thing more that hangs."""


class Job:
    """The processes of a job. `with Job(spec) as job: job.address`.

    Entering starts them and returns when all are ready; leaving stops them, whatever happened. Raises what
    keeps a role from starting: ConfigError (port in use), StoreError, EngineError with the role's last words.
    """

    def __init__(self, spec: JobSpec, *, take_over: bool = False) -> None:
        """`take_over`: from a service that runs, at its address; without one, at that of `spec`."""
        check_access(spec)
        self.spec = spec if take_over else replace(spec, address=free_address(spec.address))
        self._take_over = take_over
        self.address = self.spec.address
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine", daemon=True)
        self._engine: LocalEngine | None = None
        self._calls: set[asyncio.Task[None]] = set()  # what `_call` and `_start` began
        self._bell = Doorbell()
        self._interrupted = False
        self._clock = SystemClock()
        self._watch: asyncio.Task[None] | None = None
        self._store: Store | None = None
        self._serving: Serving | None = None
        self._stopping = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._call(self._start())
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def token(self) -> str | None:
        """That trainers of a job with `security.token` show."""
        token = self.spec.config.security.token
        return None if token is None else token.get_secret_value()

    def roles(self) -> dict[str, RoleStatus]:
        """The processes as they are now, by name (`loader-0`)."""
        return self._engine.roles() if self._engine is not None else {}

    def logs(self, name: str) -> list[str]:
        """Last lines of a process's log."""
        return self._engine.logs(name) if self._engine is not None else []

    def wait(self) -> None:
        """Until the job fails for good; raises why. KeyboardInterrupt: `interrupt` was called."""
        self._call(self._failed())

    def interrupt(self) -> None:
        """End `__enter__` or `wait` with KeyboardInterrupt: the one that waits now, or else the next.

        For a signal handler, which by raising itself could raise where exceptions are passed over, or halfway
        into the starting of a process.
        """
        self._interrupted = True
        self._bell.ring()

    def stop(self) -> None:
        """Stop every process and wait for it, CLOSE_S at most; fine when repeated."""
        if self._stopping.is_set() or not self._thread.is_alive():
            return
        self._stopping.set()
        closing = self._begin(self._close())
        until = self._clock.monotonic() + CLOSE_S
        while not closing and (left_s := until - self._clock.monotonic()) > 0:
            self._bell.wait(left_s)
        if not closing:
            log.error("the job has not ended in %g s; it is at\n%s", CLOSE_S, whereabouts(self._thread))
            if self._engine is not None:
                self._engine.kill()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(END_S)
        if not self._thread.is_alive():
            self._loop.close()
            self._bell.close()
        if closing:
            closing[0].result()

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` on the engine's loop until it ends; KeyboardInterrupt: or `interrupt` is called."""
        ended = self._begin(work)
        while not ended:
            if self._interrupted:
                raise KeyboardInterrupt
            self._bell.wait()
        ended[0].result()

    def _begin(self, work: Coroutine[Any, Any, None]) -> list[asyncio.Task[None]]:
        """Run `work` on the engine's loop. Its task is put into the list when it has ended, and it rings."""
        ended: list[asyncio.Task[None]] = []

        def begin() -> None:
            task = self._loop.create_task(work)
            self._calls.add(task)
            task.add_done_callback(end)

        def end(task: asyncio.Task[None]) -> None:
            ended.append(task)
            self._bell.ring()

        self._loop.call_soon_threadsafe(begin)
        return ended

    async def _start(self) -> None:
        spec = self.spec
        self._store = await asyncio.to_thread(open_store, spec.store, spec.base_dir)
        if not self._take_over:
            self._serving = await Serving.begin(self._store, spec.config.job, spec.address)
            await self._start_roles()
        else:
            holder = await current_holder(self._store)
            if holder is not None and not holder.is_gone():
                self.address = holder.address
            else:
                self.address = free_address(spec.address)
            self.spec = spec = replace(spec, address=self.address)
            check_access(spec)
            offer = Offer.of(spec)
            self._serving = await take_over(self._store, spec.config.job, offer)
            await self._start_roles()
            await done(self._store, offer)
        self._watch = asyncio.create_task(self._until_failure())
        self._calls.add(self._watch)

    async def _start_roles(self) -> None:
        """All of them, once the address is free: orphans of a service that was killed live for a moment."""
        spec = self.spec
        await _until_free(spec.address)
        path = spec.write()
        self._engine = LocalEngine(spec.run_dir, role_argv(path))
        roles = [
            RoleSpec("planner", 0),
            *([] if spec.config.evaluation is None else [RoleSpec("planner", 0, split=SPLIT)]),
            *(RoleSpec("loader", index) for index in range(spec.config.loader.count)),
            *(RoleSpec("constructor", index) for index in range(spec.config.constructor.count)),
            *(RoleSpec("loader", index, shadow=True) for index in range(spec.config.loader.shadows)),
        ]
        log.info("starting %s; logs in %s", ", ".join(role.name for role in roles), spec.run_dir / "logs")
        starts = [asyncio.create_task(self._start_role(self._engine, role)) for role in roles]
        try:
            await asyncio.gather(*starts)
        finally:
            for start in starts:
                start.cancel()

    async def _start_role(self, engine: LocalEngine, role: RoleSpec) -> None:
        address = await engine.start(role)
        log.info("%s is ready at %s", role.name, address)

    async def _failed(self) -> None:
        assert self._watch is not None
        await asyncio.wait([self._watch])
        self._watch.result()

    async def _until_failure(self) -> None:
        """Until a role fails for good, or another service has taken the job over."""
        assert self._store is not None
        ours = await asyncio.to_thread(Offer.of, self.spec)
        while True:
            offer = await self._until_asked(self._store, ours)
            if await self._hand_over(self._store, offer):
                log.warning("the job was handed over to %s (%s)", offer.holder, offer.version)
                return
            log.warning("%s ended before it served the job; going on", offer.holder)
            self._serving = await take_back(self._store, self.spec)
            await self._start_roles()

    async def _hand_over(self, store: Store, offer: Offer) -> bool:
        """Let the job go; tell whether the other serves it."""
        assert self._engine is not None
        assert self._serving is not None
        log.warning("handing the job over to %s (%s)", offer.holder, offer.version)
        await self._engine.close()
        faultpoint.point("takeover.stopped")
        serving, self._serving = self._serving, None
        await serving.end()
        faultpoint.point("takeover.given_up")
        return await successor_serves(store, offer)

    async def _until_asked(self, store: Store, ours: Offer) -> Offer:
        """Keep the right to serve, and roles as they should be, until another may have the job."""
        assert self._engine is not None
        assert self._serving is not None
        serving = self._serving
        request = asyncio.create_task(asked(store, ours))
        failures: list[asyncio.Task[Any]] = [
            asyncio.create_task(_tell_restarts(self._engine)),
            asyncio.create_task(replace_slow(self._engine, store)),
            request,
        ]
        try:
            while not request.done():
                done, _ = await asyncio.wait(failures, timeout=RENEW_S, return_when=asyncio.FIRST_COMPLETED)
                for failure in done:
                    failure.result()
                try:
                    await serving.renew()
                except NotLeader:
                    raise
                except StoreError as error:  # full, or away: nobody else can take the job meanwhile either
                    log.warning("can't renew the right to serve: %s", error)
            return request.result()
        finally:
            await cancel(failures)

    async def _close(self) -> None:
        """First what starts and watches ends, then the roles, then whatever else runs on this loop."""
        await cancel(self._calls)
        if self._engine is not None:
            await self._engine.close()
        await cancel(asyncio.all_tasks())
        if self._serving is not None:
            with contextlib.suppress(StoreError):  # it expires by itself
                await within(LEAVE_S, "giving back the right to serve", self._serving.end())
        if self._store is not None:
            await within(LEAVE_S, "closing the state store", asyncio.to_thread(self._store.close))


async def _tell_restarts(engine: LocalEngine) -> None:
    """Log who died and who is back, until a role fails for good: raises that EngineError."""
    seen = engine.roles()
    while True:
        before = seen
        seen = await engine.wait_for(lambda roles: roles != before)  # noqa: B023 - is done before the next
        for name, now in seen.items():
            was = before[name]
            died = now.state is RoleState.WAITING and was.state is not now.state
            if died and now.last_exit is not None:
                log.warning("%s: %s; it is started again", name, describe_exit(now.last_exit))
            elif now.restarts > was.restarts and was.state is RoleState.READY and now.last_exit is not None:
                log.warning("%s: %s; a shadow takes its place", name, describe_exit(now.last_exit))
            elif now.state is RoleState.READY and was.state is not now.state:
                log.warning("%s is back", name)


async def _until_free(address: str) -> None:
    """ConfigError: somebody else listens there, and goes on to."""
    for _ in range(_PORT_TRIES):
        try:
            free_address(address)
        except ConfigError:
            await asyncio.sleep(_PORT_PAUSE_S)
        else:
            return
    free_address(address)


def free_address(address: str) -> str:
    """`address` with port 0 made a free one; ConfigError where it can't be listened on.

    The port is fixed before anything is started, so that a restarted constructor comes back to it.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"address {address!r}: expected HOST:PORT, such as 127.0.0.1:7077")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), int(port)))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigError(
                f"can't listen on {address}: {reason.lower()}; choose another with --address HOST:PORT "
                "(port 0: any free one)"
            ) from None
        return f"{host}:{probe.getsockname()[1]}"
