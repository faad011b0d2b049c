"""The planner's service in trouble: bad rows, loaders that fail or go, changed files, another leader."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from dataloader_svc.errors import (
    DataError,
    NotLeader,
    Overloaded,
    PeerError,
    RoleFailed,
    SourceError,
    StateError,
)
from dataloader_svc.planner.history import current_generation, read_records
from dataloader_svc.planner.plan import Plan
from dataloader_svc.sample import BlockId, Incident, ProbeColumns, RowRef, SampleId
from dataloader_svc.store import quarantine
from dataloader_svc.store.incident_log import incidents
from dataloader_svc.testing.scripted_loader import ScriptedSources

from .planner_world import SOURCES, Heard, World, config, scenario


def test_skipped_rows_are_in_the_quarantine_before_the_plan_is_seen(tmp_path):
    async def body(world: World) -> None:
        await world.add_loader(ScriptedSources.of_lengths({"a": [8, 0, 8] * 30, "b": [8] * 90}))
        await world.start()
        await world.join()
        plans = await world.plans(1, 0, 3)
        expected = {row.position for plan in plans for row in plan.record.skipped}
        rows = quarantine(world.store, "a")
        assert {row.sample.position for row in rows} == expected
        assert len(expected) > 5
        assert {(row.row.shard, row.reason) for row in rows} == {("a.jsonl", "empty_text")}

    scenario(body, tmp_path, config(source={"max_bad_fraction": 1.0}))


def test_incidents_are_listed_and_their_samples_delivered(tmp_path):
    row = Incident(2, RowRef("a.jsonl", 2), "tokenizer_differs", "[1] where tokenizers has [2]")

    class Sources(ScriptedSources):
        def probe(self, block: BlockId) -> ProbeColumns:
            found = ScriptedSources.probe(self, block)
            return replace(found, incidents=(row,)) if block == BlockId("a", 0, 0) else found

    async def body(world: World) -> None:
        await world.add_loader(Sources(SOURCES.samples, SOURCES.block))
        await world.start()
        session = (await world.join()).session
        plans = await world.plans(session, 0, 3)
        (listed,) = incidents(world.store)
        assert listed.sample == SampleId("a", 0, 2)
        assert (listed.row, listed.reason, listed.detail) == (row.row, row.kind, row.detail)
        assert not quarantine(world.store)
        assert plans

    scenario(body, tmp_path)


def test_too_many_bad_rows_reach_every_reader(tmp_path):
    async def body(world: World) -> None:
        await world.add_loader(ScriptedSources.of_lengths({"a": [8, 0] * 50, "b": [8] * 90}))
        await world.start()
        await world.join()
        for _ in range(2):
            with pytest.raises(DataError, match=r"source 'a': \d+ of its first \d+ samples are bad"):
                await world.plans(1, 0, 50)
        # What was planned before is there for who asks for it.
        assert [plan.step for plan in await world.plans(1, 0, 0)] == [0]

    scenario(body, tmp_path, config(source={"max_bad_fraction": 0.3, "max_bad_minimum": 20}))


def test_a_source_that_can_t_be_opened_is_told_to_readers(tmp_path):
    async def body(world: World) -> None:
        await world.add_loader(ScriptedSources.of_lengths({"a": [8] * 50}))
        await world.start()
        await world.join()
        with pytest.raises(SourceError, match="source 'b': no such file"):
            await world.plans(1, 0, 0)

    scenario(body, tmp_path)


def test_changed_files_are_named_and_a_fresh_start_begins_again(tmp_path):
    async def body(world: World) -> None:
        loader = await world.add_loader()
        await world.start()
        await world.join()
        plans = await world.plans(1, 0, 2)
        await world.stop()
        loader.sources = ScriptedSources(SOURCES.samples, SOURCES.block, "index-1")
        await world.start()
        with pytest.raises(StateError, match=r"source '[ab]': its files are not those of the state"):
            await world.plans(1, 3, 3)
        joined = await world.join()
        assert (joined.session, joined.start_step) == (2, 0)
        assert current_generation(world.store).reason == "the files have changed"
        again = await world.plans(2, 0, 2)
        assert [plan.step for plan in again] == [0, 1, 2]
        assert again[0].record.digest == plans[0].record.digest  # the script's lengths are the same

    scenario(body, tmp_path)


def test_changed_files_that_a_constructor_finds_first(tmp_path):
    """Nobody has asked this planner for plans: it asks the loaders before it goes on from the old log."""

    async def body(world: World) -> None:
        loader = await world.add_loader()
        await world.start()
        await world.join()
        await world.plans(1, 0, 2)
        await world.stop()
        loader.sources = ScriptedSources(SOURCES.samples, SOURCES.block, "index-1")
        await world.start()
        joined = await world.join()
        assert (joined.session, joined.start_step) == (2, 0)
        assert current_generation(world.store).reason == "the files have changed"
        assert [plan.step for plan in await world.plans(2, 0, 2)] == [0, 1, 2]

    scenario(body, tmp_path)


def test_it_waits_for_loaders_and_says_so(tmp_path):
    async def body(world: World) -> None:
        heard = Heard("waiting for a loader to come up")
        await world.start()
        await world.join()
        reading = asyncio.create_task(world.plans(1, 0, 1))
        await heard.event.wait()
        await world.add_loader()
        assert [plan.step for plan in await reading] == [0, 1]

    scenario(body, tmp_path)


def test_what_one_loader_can_t_take_goes_to_another(tmp_path):
    async def body(world: World) -> None:
        first = await world.add_loader(errors=[Overloaded("no room")] * 3 + [PeerError("stopping")])
        second = await world.add_loader()
        await world.start()
        await world.join()
        plans = await world.plans(1, 0, 8)
        assert len(plans) == 9
        assert len(plans[-1].loader) == 2
        assert {number for plan in plans for number in plan.piece_loader} == {0, 1}  # shared out
        assert first.probed
        assert second.probed

    scenario(body, tmp_path)


def test_a_loader_that_makes_a_mistake_is_replaced_or_asked_again_but_not_for_ever(tmp_path):
    async def body(world: World) -> None:
        first = await world.add_loader(errors=[ZeroDivisionError("x")] * 4)
        await world.start()
        await world.join()
        assert len(await world.plans(1, 0, 1)) == 2
        first.errors += [ZeroDivisionError("y")] * 100
        with pytest.raises(RoleFailed, match=r"failed in \w+: ZeroDivisionError: y\. "):
            await world.plans(1, 2, 200)
        first.errors.clear()
        assert not world.planner.failed.done()

    scenario(body, tmp_path)


def test_a_dead_loader_is_replaced(tmp_path):
    async def body(world: World) -> None:
        await world.add_loader()
        second = await world.add_loader()
        await world.start()
        await world.join()
        await world.plans(1, 0, 2)
        await world.stop_loader(0, deregister=True)
        before = len(second.probed)
        plans = await world.plans(1, 0, 20)
        assert len(plans) == 21
        assert len(second.probed) > before

    scenario(body, tmp_path)


def test_used_up_blocks_are_released(tmp_path):
    async def body(world: World) -> None:
        loader = await world.add_loader()
        await world.start()
        await world.join()
        await world.plans(1, 0, 12)
        await world.plans(1, 12, 14)
        await loader.has_released.wait()
        assert set(loader.released) <= set(loader.probed)

    scenario(body, tmp_path)


def test_an_overtaken_planner_writes_nothing_and_fails(tmp_path):
    async def body(world: World) -> None:
        await world.add_loader()
        await world.start()
        await world.join()
        await world.plans(1, 0, 1)
        world.store.acquire("planner", "planner", 10.0)  # a successor of the same name leads at once
        before = [record.step for record in read_records(world.store)]
        with pytest.raises(PeerError, match="the planner is stopping"):
            await world.plans(1, 0, 9)
        with pytest.raises(NotLeader):
            await world.planner.failed
        assert [record.step for record in read_records(world.store)] == before

    scenario(body, tmp_path)


def test_another_planner_waits_for_the_lease(tmp_path):
    async def body(world: World) -> None:
        heard = Heard("another planner leads")
        lease = world.store.acquire("planner", "another", 10.0)
        starting = asyncio.create_task(world.start())
        await heard.event.wait()
        assert not starting.done()
        world.store.release(lease)
        await starting
        assert (await world.join()).session == 1

    scenario(body, tmp_path)


def test_a_record_written_by_a_life_before_is_taken_up(tmp_path):
    """Killed between the log and the news of it: the record counts, and is sent after the restart."""

    async def body(world: World) -> None:
        await world.add_loader()
        await world.start()
        await world.join()
        plans = await world.plans(1, 0, 4)
        await world.stop()
        other = World(world.folder)
        await other.add_loader()
        await other.start()
        await other.join()
        await other.stop()
        lease = other.store.acquire("planner", "planner", 10.0)
        for plan in plans[:3]:
            data = Plan.from_bytes(plan.record.SerializeToString(), 32).to_bytes()
            other.store.append("plan/1", plan.step, data, fence=lease.token)
        await other.start()
        again = await other.plans(1, 0, 4)
        await other.end()
        assert [plan.record for plan in again] == [plan.record for plan in plans]

    scenario(body, tmp_path)
