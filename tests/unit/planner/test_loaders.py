"""How blocks are shared out over the loaders, seen from the planner."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

from dataloader_client import methods
from dataloader_client._pb import common_pb2
from dataloader_client.wire import Frame
from dataloader_svc.planner import shadows
from dataloader_svc.planner.loaders import PREFIX, LoaderPool
from dataloader_svc.rpc.convert import probe_to_frame
from dataloader_svc.sample import BlockId, Listing
from dataloader_svc.store.memory import MemoryStore
from dataloader_svc.testing.fakes import FakeClock
from dataloader_svc.testing.scripted_loader import Sample, ScriptedSources

SOURCES = ScriptedSources({f"s{n}": [Sample(1)] for n in range(40)})


class SlowPeer:
    """Answers probes when all that may be under way are; `asked` counts them by address, `released` has what
    was released where.
    """

    def __init__(self, address: str, asked: Counter[str], released: list[tuple[str, str]]) -> None:
        self.address, self.asked, self.released = address, asked, released

    async def fetch(self, method: object, request: Any, *, timeout_s: float) -> Frame:
        self.asked[self.address] += 1
        for _ in range(100):
            await asyncio.sleep(0)
        return probe_to_frame(SOURCES.probe(BlockId(request.source, request.epoch, request.block)))

    async def call(self, method: object, request: Any, *, timeout_s: float) -> common_pb2.Empty:
        assert method == methods.RELEASE
        self.released.append((self.address, request.source))
        return common_pb2.Empty()

    async def close(self) -> None:
        pass


def test_many_blocks_at_once_are_leased_evenly() -> None:
    """As at the start of a job of many sources, when most probes wait for their turn."""
    store, asked = MemoryStore(), Counter[str]()
    for index in range(2):
        store.put(f"{PREFIX}{index}", json.dumps({"address": f"host:{index}"}).encode())

    async def scenario() -> None:
        pool = LoaderPool(store, FakeClock(), 2, lambda address, *_: SlowPeer(address, asked, []))  # type: ignore[arg-type,return-value]
        await pool.refresh()
        await asyncio.gather(*(pool.probe(BlockId(name, 0, 0), Listing(1, "")) for name in SOURCES.samples))
        await pool.close()

    asyncio.run(scenario())
    assert asked == {"host:0": 20, "host:1": 20}


def test_a_block_that_is_used_up_is_released_by_the_shadow_that_read_it_too() -> None:
    store, released = MemoryStore(), list[tuple[str, str]]()
    for key in (f"{PREFIX}0", f"{PREFIX}1", f"{shadows.PREFIX}0"):
        store.put(key, json.dumps({"address": key}).encode())

    async def scenario() -> None:
        asked = Counter[str]()
        pool = LoaderPool(store, FakeClock(), 2, lambda address, *_: SlowPeer(address, asked, released))  # type: ignore[arg-type,return-value]
        for name in ("s0", "s1"):  # the first has the pool look for shadows, the second is read ahead
            await pool.probe(BlockId(name, 0, 0), Listing(1, ""))
            for _ in range(1000):
                await asyncio.sleep(0)
            await asyncio.gather(*(asyncio.to_thread(lambda: None) for _ in range(2)))
        for name in ("s0", "s1"):
            await pool.release(BlockId(name, 0, 0))
        await pool.close()

    asyncio.run(scenario())
    assert Counter(released) == Counter(
        [(f"{PREFIX}0", "s0"), (f"{PREFIX}1", "s1"), (f"{shadows.PREFIX}0", "s1")]
    )
