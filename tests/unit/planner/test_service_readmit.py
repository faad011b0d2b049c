"""Requests for readmission as the planner's service finds them: at its start, at a join, while it leads."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from dataloader_svc.planner import service as service_module
from dataloader_svc.planner import shadows
from dataloader_svc.planner.history import current_generation, lineage, read_records
from dataloader_svc.planner.requests import read_requests
from dataloader_svc.sample import RowRef, SampleId
from dataloader_svc.store import MemoryStore, quarantine
from dataloader_svc.store.quarantine_log import Quarantined, add_quarantine, readmitted
from dataloader_svc.store.readmission_log import Readmission, Repaired, add_readmission
from dataloader_svc.testing.planning import plan_config
from dataloader_svc.testing.scripted_loader import ScriptedSources

from .planner_world import Heard, World, config, scenario

BAD = (2, 5, 16)
LENGTHS = [8, 5, 3] * 20
BROKEN = ScriptedSources.of_lengths(
    {"a": [0 if i in BAD else n for i, n in enumerate(LENGTHS)], "b": [9, 2] * 30}, block=7
)
WHOLE = ScriptedSources.of_lengths({"a": LENGTHS, "b": [9, 2] * 30}, block=7)
ONE_EPOCH = plan_config({"a": 1, "b": 1}, sequences=4, mixture={"exhausted": "drop"})


def ask(store: MemoryStore, *positions: int, number: int = 1, at_step: int = 0) -> Readmission:
    """Write a request for positions of `a`, epoch 0."""
    generation = current_generation(store)
    assert generation is not None
    samples = tuple(Repaired(SampleId("a", 0, at), at // 7, 0, masked=False) for at in positions)
    base = generation.base
    request = Readmission(number, generation.number, at_step, dict(base.config), {"a": "index-0"}, samples)
    assert add_readmission(store, request)
    return request


def came(store: MemoryStore) -> dict[int, int]:
    """Position of `a` -> step whose record readmits it."""
    return {row.position: record.step for record in read_records(store) for row in record.readmitted}


async def first_life(world: World, steps: int = 3) -> str:
    """Plan some steps over the broken sources, and stop. The state after them."""
    loader = await world.add_loader(BROKEN)
    await world.start()
    session = (await world.join()).session
    plans = await world.plans(session, 0, steps - 1)
    await world.stop()
    loader.sources = WHOLE
    return plans[-1].record.state_json


def test_found_at_the_start(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        state = await first_life(world)
        ask(world.store, 2, 5)
        await world.start()
        session = (await world.join(state=state)).session
        plans = await world.plans(session, 3, 12)
        assert came(world.store) == {2: 3, 5: 3}
        pieces = [
            (plan.step, position)
            for plan in plans
            for source, epoch, position in zip(
                plan.record.source, plan.record.epoch, plan.record.position, strict=True
            )
            if source == 0 and epoch == 0 and position in BAD
        ]
        assert sorted(position for _, position in pieces) == [2, 5]
        assert readmitted(world.store) == {SampleId("a", 0, 2): (1, 3), SampleId("a", 0, 5): (1, 3)}
        assert {row.step for row in quarantine(world.store)} == {0, 1}

    scenario(body, tmp_path)


def test_found_at_a_join_of_a_planner_that_runs(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        loader = await world.add_loader(BROKEN)
        await world.start()
        plans = await world.plans((await world.join()).session, 0, 2)
        loader.sources = WHOLE
        ask(world.store, 2)
        session = (await world.join(dp=4, state=plans[-1].record.state_json)).session
        await world.plans(session, 3, 5)
        assert came(world.store) == {2: 3}
        assert [str(block) for block in loader.reopened] == ["a/0#0"]

    scenario(body, tmp_path)


def test_found_while_it_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service_module, "_RENEW_S", 0.01)
    caplog.set_level(logging.INFO, "dataloader_svc.planner")

    async def body(world: World) -> None:
        loader = await world.add_loader(BROKEN)
        await world.start()
        session = (await world.join()).session
        await world.plans(session, 0, 2)
        loader.sources = WHOLE
        heard = Heard("request 1 for readmission")
        ask(world.store, 2)
        await heard.event.wait()
        await world.plans(session, 3, 5)
        assert came(world.store) == {2: 3}

    scenario(body, tmp_path)


def test_done_ones_are_not_done_again(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        state = await first_life(world)
        ask(world.store, 2)
        for first, last in ((3, 5), (6, 8)):
            await world.start()
            session = (await world.join(state=state)).session
            state = (await world.plans(session, first, last))[-1].record.state_json
            await world.stop()
        ask(world.store, 5, number=2)
        await world.start()
        session = (await world.join(state=state)).session
        await world.plans(session, 9, 11)
        assert came(world.store) == {2: 3, 5: 9}
        assert [len(record.readmitted) for record in read_records(world.store)].count(1) == 2

    scenario(body, tmp_path)


def test_other_histories(tmp_path: Path) -> None:
    """A branch takes a request along for what it had passed; from the start again, all come in their turn."""

    async def body(world: World) -> None:
        state = await first_life(world)
        ask(world.store, 2, 5)
        changed = config(sequence_length=48)
        await world.start(changed)
        session = (await world.join(state=state)).session
        assert current_generation(world.store).number == 2
        await world.plans(session, 3, 6)
        assert came(world.store) == {2: 3, 5: 3}
        assert [part.generation.number for part in lineage(world.store)] == [2, 1]

        session = (await world.join()).session
        plans = await world.plans(session, 0, 2)
        assert current_generation(world.store).number == 3
        assert came(world.store) == {}
        assert read_requests(world.store).asked == ()
        rows = [row for plan in plans for row in zip(plan.record.source, plan.record.position, strict=True)]
        assert {(0, 2), (0, 5)} <= set(rows)

    scenario(body, tmp_path)


def test_a_masked_slot_stays_masked(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        state = await first_life(world)
        records = {record.step: record for record in read_records(world.store)}
        step, number = next(
            (step, number)
            for step, record in records.items()
            for number, (source, position) in enumerate(zip(record.source, record.position, strict=True))
            if (source, position) == (0, 7)
        )
        found = RowRef("a.jsonl", 7)
        for generation, at in (
            (1, step),
            (9, step - 1),
        ):  # the second is of a life that this one is no branch of
            sample = SampleId("a", 0, 7 if generation == 1 else 8)
            row = Quarantined(sample, found, "truncated", delivered=True, step=at, generation=generation)
            add_quarantine(world.store, [row])
        await world.start()
        session = (await world.join()).session  # back to the start: the log is replayed
        plans = await world.plans(session, 0, 6)
        assert [list(plan.masked) for plan in plans] == [
            [number] if plan.step == step else [] for plan in plans
        ]
        assert state == plans[2].record.state_json

    scenario(body, tmp_path)


def test_the_end_moves_only_for_a_new_session(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        loader = await world.add_loader(BROKEN)
        await world.start()
        first = await world.join()
        plans = await world.plans(first.session, 0, 99)
        end, state = plans[-1].step + 1, plans[-1].record.state_json
        assert plans[-1].record.last
        same = await world.join(state=state)
        assert [plan.end_of_data for plan in await world.plans(same.session, end, 99)] == [True]
        assert (await world.join(state=state)).session == same.session
        loader.sources = WHOLE
        ask(world.store, *BAD)
        other = await world.join(state=state)
        assert other.session == same.session + 1
        assert (await world.join(state=state)).session == other.session
        more = await world.plans(other.session, end, 99)
        assert more[-1].record.last
        assert set(came(world.store)) == set(BAD)
        last = await world.join(state=more[-1].record.state_json)
        (nothing,) = await world.plans(last.session, more[-1].step + 1, 99)
        assert nothing.end_of_data

    scenario(body, tmp_path, ONE_EPOCH)


def test_a_session_at_the_end_survives_a_restart(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        state = await first_life(world, 100)
        end = max(record.step for record in read_records(world.store)) + 1
        ask(world.store, 2)
        await world.start()
        session = (await world.join(state=state)).session
        await world.stop()  # before anything is asked of it
        await world.start()
        await world.plans(session, end, 99)
        assert came(world.store) == {2: end}

    scenario(body, tmp_path, ONE_EPOCH)


def test_shadows_forget_as_loaders_do(tmp_path: Path) -> None:
    """One may take a loader's place at any time, with what was bad in its memory."""

    async def body(world: World) -> None:
        state = await first_life(world)
        shadow = await world.add_loader(WHOLE)
        address = world.store.get("endpoint/loader/1")
        assert address is not None
        world.store.delete("endpoint/loader/1")
        world.store.put(f"{shadows.PREFIX}0", address)
        ask(world.store, 2)
        await world.start()
        session = (await world.join(state=state)).session
        await world.plans(session, 3, 4)
        assert [str(block) for block in shadow.reopened] == ["a/0#0"]

    scenario(body, tmp_path)
