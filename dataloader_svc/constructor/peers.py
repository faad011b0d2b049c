"""The planner and the loaders as a constructor reaches them: found in the store, retried, replaced.

Where a role listens stands in the store under `endpoint/<role>/<index>` as JSON {"address": "host:port"}.
A loader that is gone or has no memory is replaced by any other: all of them serve every block. Knows nothing
of steps in flight (`core.py`) nor of what frames mean (`step.py`).
"""

from __future__ import annotations

import asyncio
import json

import numpy as np
from numpy.typing import NDArray

from dataloader_client import methods
from dataloader_client._pb import loader_service_pb2
from dataloader_client.wire import Frame
from dataloader_svc.clock import Clock
from dataloader_svc.constructor.step import StepPlan, fetch_request
from dataloader_svc.errors import PeerError, RoleFailed
from dataloader_svc.rpc.stubs import Connect, Peer
from dataloader_svc.store.base import Store

PLANNER_KEY = "endpoint/planner/0"
LOADER_PREFIX = "endpoint/loader/"
CONSTRUCTOR_PREFIX = "endpoint/constructor/"

FETCH_TIMEOUT_S = 120.0
"""Of one request: a step's samples of one loader, decoding included. A dead peer is noticed long before."""

PATIENCE_S = 60.0
"""How long all loaders may be unreachable before a read fails: a restart takes seconds."""

MISTAKES = 3
"""How often all loaders may fail at a request by a mistake of their own before a read fails."""

_FIRST_DELAY_S, _LAST_DELAY_S = 0.05, 1.0


class Peers:
    """Channels by address, opened when first used, and the directory they come from."""

    def __init__(self, store: Store, clock: Clock, connect: Connect = Peer) -> None:
        self._store = store
        self._clock = clock
        self._connect = connect
        self._peers: dict[str, Peer] = {}

    async def planner(self) -> Peer:
        """The planner. PeerError where none is registered."""
        value = await asyncio.to_thread(self._store.get, PLANNER_KEY)
        if value is None:
            raise PeerError("no planner is registered in the store: it has not started yet, or is restarting")
        return self._peer(_address(value), "planner")

    async def constructor_address(self, index: int) -> str | None:
        """Where constructor `index` listens, or None while it doesn't."""
        value = await asyncio.to_thread(self._store.get, f"{CONSTRUCTOR_PREFIX}{index}")
        return None if value is None else _address(value)

    async def fetch(self, plan: StepPlan, max_bytes: int) -> list[tuple[NDArray[np.int64], Frame]]:
        """All samples of a step: one request a loader, side by side; each answer with its pieces.

        Raises what a loader says of the data; PeerError when no loader answers for PATIENCE_S, RoleFailed
        when all of them failed at it MISTAKES times.
        """
        groups = [np.flatnonzero(plan.loader == number) for number in np.unique(plan.loader)]
        tasks = [asyncio.ensure_future(self._fetch_pieces(plan, pieces, max_bytes)) for pieces in groups]
        try:
            return list(await asyncio.gather(*tasks))
        finally:  # the first error ends the others
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _fetch_pieces(
        self, plan: StepPlan, pieces: NDArray[np.int64], max_bytes: int
    ) -> tuple[NDArray[np.int64], Frame]:
        request = fetch_request(plan, pieces, max_bytes)
        preferred = plan.loaders[plan.loader[pieces[0]]]
        until = self._clock.monotonic() + PATIENCE_S
        delay, mistakes = 0.0, 0
        while True:
            try:
                return pieces, await self._fetch_from_any(request, preferred)
            except PeerError:
                if self._clock.monotonic() >= until:
                    raise
            except RoleFailed:
                mistakes += 1
                if mistakes == MISTAKES:
                    raise
            delay = min(max(2 * delay, _FIRST_DELAY_S), _LAST_DELAY_S)
            await asyncio.sleep(delay)

    async def _fetch_from_any(self, request: loader_service_pb2.FetchRequest, preferred: str) -> Frame:
        """The answer of the preferred loader, else of the first other that gives one."""
        problem: PeerError | RoleFailed
        try:
            return await self._fetch_from(preferred, request)
        except (PeerError, RoleFailed) as error:
            problem = error
        for address in await self._loader_addresses():
            try:
                if address != preferred:
                    return await self._fetch_from(address, request)
            except (PeerError, RoleFailed) as error:
                problem = error
        raise problem

    async def _fetch_from(self, address: str, request: loader_service_pb2.FetchRequest) -> Frame:
        return await self._peer(address, "loader").fetch(methods.FETCH, request, timeout_s=FETCH_TIMEOUT_S)

    async def _loader_addresses(self) -> list[str]:
        values = await asyncio.to_thread(self._store.items, LOADER_PREFIX)
        return [_address(value) for value in values.values()]

    def _peer(self, address: str, name: str) -> Peer:
        if address not in self._peers:
            self._peers[address] = self._connect(address, name)
        return self._peers[address]

    async def close(self) -> None:
        """End all channels."""
        peers, self._peers = list(self._peers.values()), {}
        await asyncio.gather(*(peer.close() for peer in peers))


def _address(value: bytes) -> str:
    return str(json.loads(value)["address"])
