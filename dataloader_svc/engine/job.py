"""A running job: its processes started, watched and stopped, behind a plain synchronous object.

`serve` holds one for as long as it runs; `bench`, `preview` and `audit` for a moment. The engine's event loop
has a thread of its own. One job is served once: a lease in its store says by whom.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import Self

from dataloader_svc.engine.base import RoleSpec, RoleStatus
from dataloader_svc.engine.local import LocalEngine, role_argv
from dataloader_svc.engine.spec import JobSpec
from dataloader_svc.errors import ConfigError, StoreError
from dataloader_svc.store.base import Lease, Store
from dataloader_svc.store.open import open_store

SERVING_TTL_S = 10.0
RENEW_S = 3.0


class Job:
    """The processes of a job. `with Job(spec) as job: job.address`.

    Entering starts them and returns when all are ready; leaving stops them, whatever happened. Raises what
    keeps a role from starting: ConfigError (port in use), StoreError, EngineError with the role's last words.
    """

    def __init__(self, spec: JobSpec) -> None:
        self.spec = replace(spec, address=free_address(spec.address))
        self.address = self.spec.address
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine", daemon=True)
        self._engine: LocalEngine | None = None
        self._watch: Future[None] | None = None
        self._store: Store | None = None
        self._stopping = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def roles(self) -> dict[str, RoleStatus]:
        """The processes as they are now, by name (`loader-0`)."""
        return self._engine.roles() if self._engine is not None else {}

    def logs(self, name: str) -> list[str]:
        """Last lines of a process's log."""
        return self._engine.logs(name) if self._engine is not None else []

    def wait(self) -> None:
        """Until the job fails for good; raises why. A signal handler that raises interrupts it."""
        assert self._watch is not None
        self._watch.result()

    def stop(self) -> None:
        """Stop every process and wait for it; fine when repeated."""
        if self._stopping.is_set() or not self._thread.is_alive():
            return
        self._stopping.set()
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        spec = self.spec
        self._store = await asyncio.to_thread(open_store, spec.store, spec.base_dir)
        lease = await self._serve_alone(self._store)
        path = spec.write()
        self._engine = LocalEngine(spec.run_dir, role_argv(path))
        roles = [
            RoleSpec("planner", 0),
            *(RoleSpec("loader", index) for index in range(spec.config.loader.count)),
            *(RoleSpec("constructor", index) for index in range(spec.config.constructor.count)),
        ]
        starts = [asyncio.create_task(self._engine.start(role)) for role in roles]
        try:
            await asyncio.gather(*starts)
        finally:
            for start in starts:
                start.cancel()
        self._watch = asyncio.run_coroutine_threadsafe(self._until_failure(lease), self._loop)

    async def _serve_alone(self, store: Store) -> Lease:
        """The lease on this job; waits out a predecessor that was killed."""
        owner = f"{socket.gethostname()}:{os.getpid()}"
        lease = await asyncio.to_thread(store.acquire, "serving", owner, SERVING_TTL_S)
        if lease is None:
            await asyncio.sleep(SERVING_TTL_S)
            lease = await asyncio.to_thread(store.acquire, "serving", owner, SERVING_TTL_S)
        if lease is None:
            raise StoreError(
                f"job {self.spec.config.job!r} is being served already from {self.spec.store}; stop that "
                "service, or give this one another job name or --store"
            )
        return lease

    async def _until_failure(self, lease: Lease) -> None:
        assert self._engine is not None
        assert self._store is not None
        failure = asyncio.create_task(self._engine.wait_for(lambda _: False))
        try:
            while True:
                done, _ = await asyncio.wait([failure], timeout=RENEW_S)
                if done:
                    failure.result()
                lease = await asyncio.to_thread(self._store.renew, lease)
        finally:
            failure.cancel()
            await asyncio.to_thread(self._store.release, lease)

    async def _close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        if self._engine is not None:
            await self._engine.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._store is not None:
            await asyncio.to_thread(self._store.close)


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
