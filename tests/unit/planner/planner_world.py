"""A planner's service over real gRPC on loopback, with scripted loaders and a store in memory."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path

from dataloader_client import methods
from dataloader_client._pb import common_pb2, plan_pb2, planner_service_pb2
from dataloader_svc.clock import SystemClock
from dataloader_svc.config.schema import Config
from dataloader_svc.planner.service import PlannerService
from dataloader_svc.rpc.servicers import start_server
from dataloader_svc.rpc.stubs import Peer
from dataloader_svc.store import MemoryStore
from dataloader_svc.testing.planning import plan_config
from dataloader_svc.testing.scripted_loader import ScriptedPlanLoader, ScriptedSources

SOURCES = ScriptedSources.of_lengths({"a": [8, 5, 3] * 60, "b": [9, 2] * 60}, block=7)
LIMIT_S = 60.0


def config(**fields) -> Config:
    return plan_config({"a": 1, "b": 1}, sequences=4, **fields)


class World:
    """A store, loaders, and planners that come and go; everything a test starts ends with it."""

    def __init__(self, folder: Path, settings: Config | None = None) -> None:
        self.folder = folder
        (folder / "tokenizer.json").write_text("{}")
        self.config = settings or config()
        self.store = MemoryStore()
        self.planner: PlannerService | None = None
        self.peer: Peer | None = None
        self._server = None
        self._loader_servers = []

    async def add_loader(
        self, sources: ScriptedSources = SOURCES, errors: Sequence[Exception] = ()
    ) -> ScriptedPlanLoader:
        return await self.add_loader_of(ScriptedPlanLoader(sources, list(errors)))

    async def add_loader_of(self, loader: ScriptedPlanLoader) -> ScriptedPlanLoader:
        server, address = await start_server({methods.LOADER: loader}, "127.0.0.1:0")
        self.store.put(
            f"endpoint/loader/{len(self._loader_servers)}", json.dumps({"address": address}).encode()
        )
        self._loader_servers.append(server)
        return loader

    async def stop_loader(self, index: int, *, deregister: bool) -> None:
        await self._loader_servers[index].stop(None)
        if deregister:
            self.store.delete(f"endpoint/loader/{index}")

    async def start(self, settings: Config | None = None) -> None:
        self.config = settings or self.config
        self.planner = PlannerService(
            self.config, self.store, SystemClock(), owner="planner", base_dir=self.folder
        )
        await self.planner.start()
        self._server, address = await start_server(
            {methods.PLANNER: self.planner, methods.CONTROL: self.planner.control}, "127.0.0.1:0"
        )
        self.peer = Peer(address, "planner")

    async def stop(self) -> None:
        if self.planner is not None:
            await self.peer.close()
            await self._server.stop(None)
            await self.planner.stop()
            self.planner = None

    async def end(self) -> None:
        await self.stop()
        for server in self._loader_servers:
            await server.stop(None)

    async def join(self, dp: int = 2, state: str = "", **fields) -> plan_pb2.JoinResponse:
        request = plan_pb2.JoinRequest(
            protocol=methods.PROTOCOL, mesh=common_pb2.Mesh(dp=dp), state_json=state, **fields
        )
        return await self.peer.call(methods.PLANNER_JOIN, request, timeout_s=LIMIT_S)

    async def plans(self, session: int, first: int, up_to: int) -> list[plan_pb2.PlacedPlan]:
        async def demands() -> AsyncIterator[planner_service_pb2.PlanDemand]:
            yield planner_service_pb2.PlanDemand(session=session, from_step=first, up_to=up_to)

        async with aclosing(self.peer.stream(methods.PLANS, demands())) as stream:
            return [plan async for plan in stream]


class Heard(logging.Handler):
    """`event` is set when the planner logs `text`."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.event = text, asyncio.Event()
        logging.getLogger("dataloader_svc.planner").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if self.text in record.getMessage():
            self.event.set()
            logging.getLogger("dataloader_svc.planner").removeHandler(self)


def scenario(body: Callable[[World], Awaitable[None]], folder: Path, settings: Config | None = None) -> None:
    async def run() -> None:
        world = World(folder, settings)
        try:
            await asyncio.wait_for(body(world), LIMIT_S)
        finally:
            await world.end()

    asyncio.run(run())
