"""Shadow loaders as the planner reaches them: told to read what another loader has just been given.

A shadow reads one block at a time, the newest lease there is when it is free, so that it holds a share of the
next steps and costs no loader anything. Nobody waits for it, and nothing depends on it: what it holds when it
takes a dead loader's place is there, the rest is read again.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import Collection, Coroutine, Mapping
from typing import Any

from dataloader_client import methods
from dataloader_client._pb import loader_service_pb2
from dataloader_svc.clock import Clock
from dataloader_svc.errors import DataloaderError, StoreError
from dataloader_svc.rpc.stubs import Connect, Peer
from dataloader_svc.sample import BlockId
from dataloader_svc.store.base import Store

log = logging.getLogger(__name__)

PREFIX = "endpoint/loader-shadow/"

_LOOK_AGAIN_S = 1.0
_READ_TIMEOUT_S = 60.0
_REMEMBERED = 4096


class Shadows:
    """Belongs to one event loop. `close` ends what runs."""

    def __init__(self, store: Store, clock: Clock, connect: Connect = Peer) -> None:
        self._store = store
        self._clock = clock
        self._connect = connect
        self._looked = -_LOOK_AGAIN_S
        self._addresses: list[str] = []
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._read: OrderedDict[BlockId, str] = OrderedDict()

    def read_ahead(self, block: BlockId, lease: loader_service_pb2.BlockRequest) -> None:
        """Have a shadow that is free read `block`, as `lease` asked a loader for it."""
        now = self._clock.monotonic()
        free = next((address for address in self._addresses if address not in self._busy), None)
        if free is not None:
            self._begin(free, self._have_read(free, block, lease))
        elif now - self._looked >= _LOOK_AGAIN_S and "" not in self._busy:
            self._looked = now
            self._begin("", self._look())

    def promoted(self, loaders: Collection[str]) -> Mapping[BlockId, str]:
        """Block -> address, of what shadows have read that are loaders now."""
        return {block: address for block, address in self._read.items() if address in loaders}

    def released(self, block: BlockId) -> list[str]:
        """Of a block that is used up: the address of the shadow that has read it, if one has."""
        address = self._read.pop(block, None)
        return [] if address is None else [address]

    async def close(self) -> None:
        """End what runs."""
        tasks = list(self._busy.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._busy[name] = task
        task.add_done_callback(lambda _: self._busy.pop(name, None))

    async def _look(self) -> None:
        try:
            values = await asyncio.to_thread(self._store.items, PREFIX)
        except StoreError as error:  # whoever needs the store will say so
            log.debug("shadows: %s", error)
            return
        self._addresses = [str(json.loads(value)["address"]) for value in values.values()]

    async def _have_read(self, address: str, block: BlockId, lease: loader_service_pb2.BlockRequest) -> None:
        peer = self._connect(address, "loader")
        try:
            await peer.fetch(methods.PROBE, lease, timeout_s=_READ_TIMEOUT_S)
        except DataloaderError as error:  # it has gone, or took a loader's place
            log.debug("shadow %s: %s", address, error)
            self._addresses = [other for other in self._addresses if other != address]
            return
        finally:
            await peer.close()
        self._read[block] = address
        while len(self._read) > _REMEMBERED:
            self._read.popitem(last=False)
