"""The planner's service: plans in order, joins, sessions, resumes and the end of the data."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from dataloader_client import methods
from dataloader_client._pb import common_pb2, plan_pb2, planner_service_pb2
from dataloader_svc import faultpoint
from dataloader_svc.errors import (
    MeshError,
    PeerError,
    SessionSuperseded,
    StateError,
    VersionError,
)
from dataloader_svc.planner.history import current_generation, read_records
from dataloader_svc.testing.planning import plan_config
from dataloader_svc.testing.scripted_loader import ScriptedSources

from .planner_world import LIMIT_S, World, config, scenario


def test_plans_are_in_the_log_placed_and_in_order(tmp_path):
    async def body(world: World) -> None:
        loader = await world.add_loader()
        await world.start()
        joined = await world.join(dp=2)
        assert (joined.session, joined.start_step, joined.num_microbatches) == (1, 0, 2)
        assert joined.job == "scripted"
        assert list(joined.sources) == ["a", "b"]
        plans = await world.plans(1, 0, 5)
        assert [plan.step for plan in plans] == list(range(6))
        logged = {record.step: record for record in read_records(world.store)}
        for plan in plans:
            assert plan.record == logged[plan.step]
            assert sorted(plan.dp_rank) == [0, 0, 1, 1]
            assert sorted(plan.microbatch) == [0, 0, 1, 1]
            assert len(plan.loader) == 1
            assert set(plan.piece_loader) == {0}
            assert len(plan.piece_loader) == len(plan.record.position)
            assert plan.metrics["llm_imbalance"] >= 1
            assert plan.plan_seconds > 0
        assert json.loads(joined.state_json)["step"] == 0
        assert json.loads(plans[-1].record.state_json)["step"] == 6
        assert len(loader.probed) == len(set(loader.probed))  # each block is read once

    scenario(body, tmp_path)


def test_each_plan_once_as_demand_grows(tmp_path):
    async def body(world: World) -> None:
        await world.add_loader()
        await world.start()
        session = (await world.join()).session
        asked: asyncio.Queue[int] = asyncio.Queue()

        async def demands() -> AsyncIterator[planner_service_pb2.PlanDemand]:
            while True:
                yield planner_service_pb2.PlanDemand(session=session, from_step=2, up_to=await asked.get())

        got = []
        asked.put_nowait(3)
        async with aclosing(world.peer.stream(methods.PLANS, demands())) as stream:
            async for plan in stream:
                got.append(plan.step)
                if got[-1] in (3, 4):
                    asked.put_nowait(got[-1] + 1)
                if got[-1] == 5:
                    break
        assert got == [2, 3, 4, 5]
        assert max(record.step for record in read_records(world.store)) == 5

    scenario(body, tmp_path)


def test_two_readers_get_the_same(tmp_path):
    async def body(world: World) -> None:
        await world.add_loader()
        await world.start()
        await world.join()
        one, two = await asyncio.gather(world.plans(1, 0, 4), world.plans(1, 3, 6))
        assert [plan.step for plan in one] == [0, 1, 2, 3, 4]
        assert [plan.step for plan in two] == [3, 4, 5, 6]
        assert one[3].record == two[0].record
        assert list(one[3].dp_rank) == list(two[0].dp_rank)

    scenario(body, tmp_path)


def test_a_restarted_planner_goes_on_and_readers_keep_their_session(tmp_path):
    async def body(world: World) -> None:
        await world.add_loader()
        await world.start()
        session = (await world.join()).session
        before = await world.plans(session, 0, 3)
        await world.stop()
        await world.start()
        status = await world.peer.call(methods.PLANNER_STATUS, common_pb2.Empty(), timeout_s=LIMIT_S)
        assert (status.session, status.generation, status.next_step) == (session, 1, 4)
        after = await world.plans(session, 2, 7)
        assert [plan.step for plan in after] == [2, 3, 4, 5, 6, 7]
        assert [plan.record for plan in after[:2]] == [plan.record for plan in before[2:]]
        assert (await world.join()).session == session  # the same join is the same session
        await world.stop()

        unbroken = World(world.folder)
        await unbroken.add_loader()
        await unbroken.start()
        await unbroken.join()
        reference = await unbroken.plans(1, 0, 7)
        await unbroken.end()
        assert [plan.record for plan in reference] == [plan.record for plan in [*before, *after[2:]]]

    scenario(body, tmp_path)


def test_a_mistake_on_the_way_from_demand_to_log_ends_the_role(tmp_path, monkeypatch):
    """It happens in the task that hears what a reader wants, which nobody awaits."""
    monkeypatch.setattr(faultpoint, "_counts", {})
    monkeypatch.setenv("DATALOADER_FAULT", "planner.plan_made:raise:3")

    async def body(world: World) -> None:
        await world.add_loader()
        await world.start()
        session = (await world.join()).session
        await world.plans(session, 0, 1)
        with pytest.raises(PeerError, match="the planner is stopping; it will be back"):
            await world.plans(session, 2, 2)
        assert isinstance(world.planner.failed.exception(), RuntimeError)

    scenario(body, tmp_path)


def test_the_same_set_on_every_mesh(tmp_path):
    async def body(world: World) -> None:
        await world.add_loader()
        await world.start()
        digests = []
        for number, dp in enumerate((1, 2, 4), 1):
            joined = await world.join(dp=dp)
            assert (joined.session, joined.start_step) == (number, 0)
            plans = await world.plans(number, 0, 4)
            assert all(set(plan.dp_rank) == set(range(dp)) for plan in plans)
            digests.append([plan.record.digest for plan in plans])
        assert digests[0] == digests[1] == digests[2]
        assert current_generation(world.store).number == 1  # one log for all of them

    scenario(body, tmp_path)


def test_another_mesh_supersedes(tmp_path):
    async def body(world: World) -> None:
        await world.add_loader()
        await world.start()
        first = (await world.join(dp=2)).session
        reading = asyncio.create_task(world.plans(first, 0, 10_000))
        await world.plans(first, 0, 2)
        second = (await world.join(dp=4)).session
        assert second == first + 1
        with pytest.raises(SessionSuperseded, match=f"session {first} is over: .*session {second} is served"):
            await reading
        assert [plan.step for plan in await world.plans(second, 0, 1)] == [0, 1]

    scenario(body, tmp_path)


def test_a_resume_goes_on_in_the_log_on_another_mesh(tmp_path):
    async def body(world: World) -> None:
        await world.add_loader()
        await world.start()
        await world.join(dp=2)
        plans = await world.plans(1, 0, 6)
        joined = await world.join(dp=4, state=plans[2].record.state_json)
        assert (joined.session, joined.start_step) == (2, 3)
        assert json.loads(joined.state_json) == json.loads(plans[2].record.state_json)
        again = await world.plans(2, 3, 6)
        assert [plan.record for plan in again] == [plan.record for plan in plans[3:]]
        assert current_generation(world.store).number == 1

    scenario(body, tmp_path)


def test_a_resume_into_an_empty_store_gives_the_same_steps(tmp_path):
    async def body(world: World) -> None:
        await world.add_loader()
        await world.start()
        await world.join()
        plans = await world.plans(1, 0, 6)
        await world.stop()
        other = World(world.folder)
        await other.add_loader()
        await other.start()
        joined = await other.join(dp=1, state=plans[2].record.state_json)
        assert joined.start_step == 3
        again = await other.plans(joined.session, 3, 6)
        await other.end()
        assert [plan.record.digest for plan in again] == [plan.record.digest for plan in plans[3:]]
        assert [plan.record.state_json for plan in again] == [plan.record.state_json for plan in plans[3:]]

    scenario(body, tmp_path)


def test_another_mixture_branches_from_the_state(tmp_path):
    async def body(world: World) -> None:
        await world.add_loader()
        await world.start()
        await world.join()
        plans = await world.plans(1, 0, 4)
        await world.stop()
        changed = plan_config({"a": 1, "b": 3}, sequences=4)
        await world.start(changed)
        with pytest.raises(SessionSuperseded, match="session 1 is over"):
            await world.plans(1, 0, 4)
        joined = await world.join(state=plans[1].record.state_json)
        assert (joined.session, joined.start_step) == (2, 2)
        generation = current_generation(world.store)
        assert (generation.number, generation.parent, generation.base.step) == (2, 1, 2)
        assert generation.reason == "the configuration has changed"
        after = await world.plans(2, 2, 9)
        drawn = [json.loads(plans[1].record.state_json), json.loads(after[-1].record.state_json)]
        tokens = {
            name: drawn[1]["sources"][name]["tokens"] - drawn[0]["sources"][name]["tokens"] for name in "ab"
        }
        assert tokens["b"] == pytest.approx(3 * tokens["a"], abs=40)
        # Nothing that was read before the branch is read again.
        seen = set()
        for plan in [*plans[:2], *after]:
            columns = (plan.record.source, plan.record.epoch, plan.record.position, plan.record.start)
            pieces = set(zip(*columns, strict=True))
            assert not pieces & seen
            seen |= pieces

    scenario(body, tmp_path)


def test_who_is_refused_and_why(tmp_path):
    async def body(world: World) -> None:
        await world.add_loader()
        await world.start()
        with pytest.raises(
            MeshError, match="dp=3 does not divide the 4 sequences of a step: use dp=2 or dp=4"
        ):
            await world.join(dp=3)
        with pytest.raises(MeshError, match="dp rank 2 is not in 0 to 1 of mesh dp=2,cp=1"):
            await world.join(dp=2, coords=common_pb2.Coords(dp=2))
        with pytest.raises(StateError, match="serves job 'scripted', not 'other'"):
            await world.join(job="other")
        with pytest.raises(StateError, match="lacks a version"):
            await world.join(state="{}")
        with pytest.raises(VersionError, match="protocol 99"):
            request = plan_pb2.JoinRequest(protocol=99)
            await world.peer.call(methods.PLANNER_JOIN, request, timeout_s=LIMIT_S)
        assert current_generation(world.store) is None  # nothing was begun
        first = await world.join()
        state = json.loads(first.state_json)
        state["config"]["job"] = "0000" + state["config"]["job"][4:]
        with pytest.raises(StateError, match="^seed differs from what the state was made with"):
            await world.join(state=json.dumps(state))
        forced = await world.join(state=json.dumps(state), force=True)
        assert forced.state_json == first.state_json  # read as today's configuration reads it

    scenario(body, tmp_path)


def test_the_default_mesh_is_the_configured_one(tmp_path):
    async def body(world: World) -> None:
        await world.start()
        request = plan_pb2.JoinRequest(protocol=methods.PROTOCOL)
        joined = await world.peer.call(methods.PLANNER_JOIN, request, timeout_s=LIMIT_S)
        assert joined.mesh.dp == 4
        assert joined.num_microbatches == 1

    scenario(body, tmp_path, config(mesh={"dp": 4}))


def test_steps_of_samples_are_placed_on_any_mesh_with_as_many_microbatches_on_each_rank(tmp_path):
    lengths = {"a": [8, 5, 3, 30, 25, 2] * 30, "b": [9, 2, 31, 14] * 30}

    async def body(world: World) -> None:
        await world.add_loader(ScriptedSources.of_lengths(lengths, block=7))
        await world.start()
        digests, shapes = [], []
        for dp in (1, 2, 3):
            joined = await world.join(dp=dp)
            assert joined.num_microbatches == 0  # it differs from step to step
            plans = await world.plans(joined.session, 0, 6)
            digests.append([plan.record.digest for plan in plans])
            for plan in plans:
                assert len(plan.record.source) == 9
                sequences = len(plan.record.sequence_offsets) - 1
                microbatches = -(-sequences // dp)
                places = list(zip(plan.dp_rank, plan.microbatch, strict=True))
                assert sorted(places) == [(rank, mb) for rank in range(dp) for mb in range(microbatches)]
                shapes.append(sequences)
        assert digests[0] == digests[1] == digests[2]
        assert len(set(shapes)) > 1  # the lengths are such that not all steps need as many

    scenario(body, tmp_path, plan_config({"a": 1, "b": 1}, samples=9))


def test_the_end_of_the_data(tmp_path):
    async def body(world: World) -> None:
        await world.add_loader(ScriptedSources.of_lengths({"a": [8] * 20, "b": [8] * 20}))
        await world.start()
        await world.join()
        plans = await world.plans(1, 0, 100)
        assert [plan.record.last for plan in plans] == [False, False, True]
        (beyond,) = await world.plans(1, 3, 3)
        assert beyond.end_of_data
        assert beyond.step == 3
        await world.stop()
        await world.start()
        (again,) = await world.plans(1, 3, 3)
        assert again.end_of_data

    scenario(body, tmp_path, config(mixture={"exhausted": "drop"}))


def test_no_whole_step_is_an_end_and_a_warning(tmp_path, caplog):
    async def body(world: World) -> None:
        await world.add_loader(ScriptedSources.of_lengths({"a": [8] * 2, "b": [8] * 2}))
        await world.start()
        await world.join()
        (plan,) = await world.plans(1, 0, 0)
        assert plan.end_of_data
        assert plan.step == 0

    with caplog.at_level(logging.WARNING):
        scenario(body, tmp_path, config(mixture={"exhausted": "stop"}, last_batch="drop"))
    assert "less than one step (4 samples, 32 tokens; global_batch is 4 sequences) and" in caplog.text
