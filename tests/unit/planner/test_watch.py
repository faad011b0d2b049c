"""The planner's watch over loaders: what it hears, whom it drains, and that the engine is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from dataloader_client._pb import loader_service_pb2
from dataloader_svc.errors import PeerError, StoreUnreachable
from dataloader_svc.planner import watch as watch_module
from dataloader_svc.planner.watch import LoaderWatch, replaced_messages
from dataloader_svc.store.memory import MemoryStore
from dataloader_svc.store.replaced_log import replaced
from dataloader_svc.testing.scripted_loader import ScriptedPlanLoader

from .planner_world import LIMIT_S, SOURCES, World, scenario


class Ticks:
    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1000.0 + self.now


class Pool:
    """Two loaders, of which `answers` says what they tell at a time."""

    def __init__(self, answers: Callable[[str], loader_service_pb2.LoaderStatus]) -> None:
        self.answers, self.drained = answers, []

    async def refresh(self) -> dict[str, str]:
        return {"host:0": "loader-0", "host:1": "loader-1"}

    async def status(self, address: str, *, timeout_s: float) -> loader_service_pb2.LoaderStatus:
        return self.answers(address)

    def drain(self, address: str) -> None:
        self.drained.append(address)


class Away(MemoryStore):
    """Takes nothing at first."""

    refusals = 3

    def put(self, key: str, value: bytes, *, ttl_s: float | None = None) -> None:
        if self.refusals:
            self.refusals -= 1
            raise StoreUnreachable("away")
        super().put(key, value, ttl_s=ttl_s)


def watch_for(
    monkeypatch: pytest.MonkeyPatch, seconds: int, answers: Callable[[str, float], object], store: MemoryStore
) -> tuple[LoaderWatch, Pool]:
    """Let `seconds` go by."""
    clock = Ticks()
    pool = Pool(lambda address: answers(address, clock.now))
    watch = LoaderWatch(pool, store, clock, lambda: 42)

    async def pause(delay_s: float) -> None:
        clock.now += delay_s
        if clock.now >= seconds:
            raise asyncio.CancelledError

    monkeypatch.setattr(watch_module.asyncio, "sleep", pause)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(watch.run())
    return watch, pool


def told(done: int, seconds: float, *, kept: int = 20) -> loader_service_pb2.LoaderStatus:
    """The last pieces of `done`, each of which took `seconds`."""
    listed = min(done, kept)
    return loader_service_pb2.LoaderStatus(
        work=["read web"] * listed,
        work_units=[1000] * listed,
        work_s=[seconds] * listed,
        work_share_s=[seconds] * listed,
        works_done=done,
    )


def test_a_slow_one_is_drained_and_written_once_the_store_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(address: str, now: float) -> loader_service_pb2.LoaderStatus:
        slow = address == "host:1" and now > 15
        return told(int(5 * now if not slow else 75 + (now - 15)), 1.0 if slow else 0.1)

    store = Away()
    watch, pool = watch_for(monkeypatch, 60, answers, store)
    assert pool.drained == ["host:1"]
    (row,) = replaced(store)
    assert (row.loader, row.address, row.kind, row.step) == ("loader-1", "host:1", "slow", 42)
    assert 1015 < row.at <= 1035
    assert [message.why for message in replaced_messages(watch.replaced)] == [row.why]


def test_pieces_that_were_told_before_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader that was slow once, at its start, and does nothing since, tells of it at each question."""
    store = MemoryStore()
    watch, pool = watch_for(
        monkeypatch,
        60,
        lambda address, now: told(int(5 * now), 0.1) if address == "host:0" else told(8, 1.0),
        store,
    )
    assert not pool.drained
    assert not watch.replaced


def test_one_that_does_not_answer_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(address: str, now: float) -> loader_service_pb2.LoaderStatus:
        if address == "host:0" and now > 5:
            raise PeerError("DEADLINE_EXCEEDED")
        return told(int(5 * now), 0.1)

    store = MemoryStore()
    _, pool = watch_for(monkeypatch, 30, answers, store)
    assert pool.drained == ["host:0"]
    assert [row.kind for row in replaced(store)] == ["silent"]


def test_what_a_drained_loader_was_asked_goes_to_another(tmp_path: Path) -> None:
    class Stuck(ScriptedPlanLoader):
        async def probe(self, request: loader_service_pb2.BlockRequest):
            asked.set()
            await asyncio.Event().wait()

    async def body(world: World) -> None:
        await world.add_loader()
        await world.add_loader_of(Stuck(SOURCES))
        await world.start()
        session = (await world.join()).session
        reading = asyncio.create_task(world.plans(session, 0, 3))
        await asyncio.wait_for(asked.wait(), LIMIT_S)
        pool = world.planner._loaders
        address = next(life for life, name in (await pool.refresh()).items() if name == "loader-1")
        pool.drain(address)
        plans = await reading
        assert len(plans) == 4
        assert all(address not in plan.loader for plan in plans)

    asked = asyncio.Event()
    scenario(body, tmp_path)
