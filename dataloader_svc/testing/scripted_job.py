"""A whole job with real constructors and a scripted planner and loaders, over real sockets on loopback.

For tests of the constructor and the client: roles can be stopped and started again, on other ports as
after a crash. `ScriptedJob` lives on an event loop; `JobThread` gives it one in a thread, for sync clients.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from dataloader_svc.clock import SystemClock
from dataloader_svc.config.schema import Config
from dataloader_svc.constructor.service import ConstructorService
from dataloader_svc.rpc.servicers import Server, start_server
from dataloader_svc.store.memory import MemoryStore
from dataloader_svc.testing.scripted_roles import SOURCES, Script, ScriptedLoader, ScriptedPlanner

Result = TypeVar("Result")


def config_of(script: Script, **changes: Any) -> Config:
    """The configuration that fits a script; `changes` are top-level fields."""
    values = {
        "job": "scripted",
        "tokenizer": "none.json",
        "sequence_length": script.sequence_length,
        "global_batch": {
            "samples" if script.uneven else "sequences": script.num_sequences,
            "per_microbatch": script.per_microbatch,
        },
        "sources": {name: {"format": "jsonl", "path": "none", "text": "text"} for name in SOURCES},
        "mixture": {"schedule": [{"step": 0, **dict.fromkeys(SOURCES, 1.0)}]},
        "images": {
            "patch": script.patch,
            "merge": script.merge,
            "min_pixels": (script.patch * script.merge) ** 2,
            "max_pixels": 10_000,
        },
        "layout": script.layout,
        "planner": {"ahead": 2},
    }
    return Config.model_validate({**values, **changes})


class ScriptedJob:
    """Use as an async context manager. `address` is constructor 0's and stays the same when it restarts."""

    def __init__(self, script: Script | None = None, *, num_loaders: int = 2, **config: Any) -> None:
        self.script = script or Script()
        self.config = config_of(self.script, **config)
        self.store = MemoryStore()
        self.planner = ScriptedPlanner(self.script, [])
        self.loaders = [ScriptedLoader(self.script) for _ in range(num_loaders)]
        self.constructors: dict[int, ConstructorService] = {}
        self.address = "127.0.0.1:0"
        self._servers: dict[str, Server] = {}

    async def start(self) -> Self:
        for number in range(len(self.loaders)):
            await self.start_loader(number)
        await self.start_planner()
        for index in reversed(range(self.config.constructor.count)):
            await self.start_constructor(index)
        return self

    async def start_loader(self, number: int) -> None:
        """Start it on a new port and plan with that."""
        address = await self._serve(f"loader/{number}", "LoaderService", self.loaders[number])
        self.planner.loaders = [*self.planner.loaders[:number], address, *self.planner.loaders[number + 1 :]]

    async def start_planner(self) -> None:
        """Start it on a new port; it remembers its sessions, as the real one does from its log."""
        await self._serve("planner/0", "PlannerService", self.planner)

    async def start_constructor(self, index: int = 0) -> None:
        """Start one that knows nothing; number 0 at its old address."""
        service = ConstructorService(self.config, self.store, SystemClock(), index=index)
        await service.start()
        self.constructors[index] = service
        where = self.address if index == 0 else "127.0.0.1:0"
        address = await self._serve(f"constructor/{index}", "ConstructorService", service, where)
        if index == 0:
            self.address = address

    async def _serve(self, name: str, service: str, handler: object, where: str = "127.0.0.1:0") -> str:
        server, address = await start_server({service: handler}, where)
        self._servers[name] = server
        self.store.put(f"endpoint/{name}", json.dumps({"address": address}).encode())
        return address

    async def stop(self, name: str) -> None:
        """Stop a role by its name in the registry ("loader/0"), in the middle of what it does."""
        await self._servers.pop(name).stop(None)
        role, _, index = name.partition("/")
        if role == "constructor":
            await self.constructors.pop(int(index)).stop()

    async def close(self) -> None:
        for name in list(self._servers):
            await self.stop(name)
        self.store.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class JobThread:
    """A ScriptedJob whose loop runs in a thread. Use as a context manager; `do` runs a coroutine there."""

    def __init__(self, script: Script | None = None, **options: Any) -> None:
        self.job = ScriptedJob(script, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="scripted-job", daemon=True)

    @property
    def address(self) -> str:
        return self.job.address

    def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run to its end on the job's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _end(self) -> None:
        await self.job.close()
        # As asyncio.run does at its end: gRPC's own tasks see their cancellation before the loop closes.
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.do(self.job.start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
