"""The planner's service, told that checkpoints are safe: what goes from the log, and how it goes on."""

from __future__ import annotations

import asyncio

import pytest

from dataloader_client import methods
from dataloader_client._pb import common_pb2, control_service_pb2, plan_pb2
from dataloader_svc.cli.plan_log import PlanLog
from dataloader_svc.config.schema import Config
from dataloader_svc.errors import SessionSuperseded, StateError, StoreError
from dataloader_svc.planner import retention
from dataloader_svc.planner.calibration import Factors
from dataloader_svc.planner.history import current_generation, lineage
from dataloader_svc.planner.session import Generation
from dataloader_svc.sample import SampleId
from dataloader_svc.store.quarantine_log import add_readmitted

from .planner_world import LIMIT_S, World, config, scenario


def keeping(keep: int | str) -> Config:
    return config(planner={"ahead": 2, "keep": keep})


async def commit(world: World, session: int, step: int, dp: int = 0) -> control_service_pb2.CommitResponse:
    request = control_service_pb2.CommitRequest(session=session, coords=common_pb2.Coords(dp=dp), step=step)
    return await world.peer.call(methods.COMMIT, request, timeout_s=LIMIT_S)


async def started(world: World, **fields: int) -> plan_pb2.JoinResponse:
    await world.add_loader()
    await world.start()
    return await world.join(**fields)


def steps(world: World, generation: int = 1) -> list[int]:
    return [step for step, _ in world.store.read(f"plan/{generation}", 0, 10_000)]


def test_never_beyond_the_slowest_rank_nor_the_state_that_it_comes_back_with(tmp_path):
    async def body(world: World) -> None:
        session = (await started(world, dp=2)).session
        plans = await world.plans(session, 0, 20)
        assert (await commit(world, session, 15)).committed == 0
        assert steps(world) == list(range(21))
        answer = await commit(world, session, 9, dp=1)
        assert (answer.committed, answer.first) == (9, 6)
        assert steps(world) == list(range(6, 21))
        assert (await commit(world, session, 7, dp=1)).committed == 9  # late, or again
        joined = await world.join(state=plans[8].record.state_json)
        assert current_generation(world.store).number == 1
        again = await world.plans(joined.session, 9, 20)
        assert [plan.record for plan in again] == [plan.record for plan in plans[9:]]

    scenario(body, tmp_path, keeping(2))


def test_nothing_kept_but_the_record_that_a_session_can_go_on_from(tmp_path):
    async def body(world: World) -> None:
        session = (await started(world, dp=1)).session
        plans = await world.plans(session, 0, 10)
        await commit(world, session, 11)
        assert steps(world) == [10]
        await world.stop()
        await world.start()
        joined = await world.join(dp=1, state=plans[10].record.state_json)
        assert (current_generation(world.store).number, joined.start_step) == (1, 11)
        assert [plan.step for plan in await world.plans(joined.session, 11, 13)] == [11, 12, 13]

    scenario(body, tmp_path, keeping(0))


def test_a_rank_joins_its_session_again_though_its_first_record_is_gone(tmp_path):
    """As a client does that looks for its constructor."""

    async def body(world: World) -> None:
        plans = await world.plans((await started(world, dp=1)).session, 0, 4)
        state = plans[4].record.state_json
        session = (await world.join(dp=1, state=state)).session
        await world.plans(session, 5, 20)
        await commit(world, session, 15)
        assert steps(world)[0] == 14
        assert (await world.join(dp=1, state=state)).session == session
        await world.stop()
        await world.start()
        assert (await world.join(dp=1, state=state)).session == session

    scenario(body, tmp_path, keeping(0))


def test_an_older_state_is_planned_again_and_the_same(tmp_path):
    async def body(world: World) -> None:
        session = (await started(world, dp=1)).session
        plans = await world.plans(session, 0, 20)
        await commit(world, session, 15)
        joined = await world.join(dp=1, state=plans[4].record.state_json)
        assert joined.start_step == 5
        again = await world.plans(joined.session, 5, 20)
        assert [plan.record for plan in again] == [plan.record for plan in plans[5:]]

    scenario(body, tmp_path, keeping(0))


def test_a_step_that_is_gone_is_refused_by_name(tmp_path):
    async def body(world: World) -> None:
        session = (await started(world, dp=1)).session
        await world.plans(session, 0, 20)
        await commit(world, session, 15)
        await world.stop()  # what is in memory is gone, too
        await world.start()
        with pytest.raises(StateError, match="step 3 was committed by all ranks, and its plan is not kept"):
            await world.plans(session, 3, 5)
        log = PlanLog.of(world.store)
        assert log.words() == (
            "it has steps 14 to 20; those before were removed after the trainers had committed later ones "
            "(planner.keep says how many stay)"
        )
        with pytest.raises(StateError, match="step 3 is not in the plan log any more: it has steps 14 to 20"):
            log.read(3, 32)
        assert log.begins[0] == 15
        assert log.begins[1].to_json() == log.read(14, 32)[1].state_json

    scenario(body, tmp_path, keeping(0))


def test_the_log_of_a_long_job_stays_as_long_as_it_was(tmp_path):
    async def body(world: World) -> None:
        session = (await started(world, dp=1)).session
        lengths = []
        for step in range(10, 200, 10):
            await world.plans(session, step - 10, step)
            await commit(world, session, step)
            lengths.append(len(steps(world)))
        assert max(lengths) == 7  # the next ones are planned only when they are asked for
        assert steps(world)[0] == 190 - 1 - 5

    scenario(body, tmp_path, keeping(5))


async def branched(world: World) -> int:
    """A session in a second generation, which goes on from step 6 of the first, up to step 20."""
    session = (await started(world, dp=1)).session
    plans = await world.plans(session, 0, 9)
    await world.stop()
    await world.start(config(planner={"ahead": 2, "keep": 0}, last_batch="drop"))
    joined = await world.join(dp=1, state=plans[5].record.state_json)
    assert [part.generation.number for part in lineage(world.store)] == [2, 1]
    await world.plans(joined.session, 6, 20)
    return joined.session


def test_an_earlier_generation_stays_while_a_step_of_it_does(tmp_path):
    async def body(world: World) -> None:
        session = await branched(world)
        await commit(world, session, 8)
        assert (steps(world, 1), steps(world, 2)) == ([7, 8, 9], list(range(7, 21)))
        parts = lineage(world.store)
        assert [(part.generation.number, part.first, part.stop) for part in parts] == [(2, 6, 21), (1, 0, 6)]

    scenario(body, tmp_path, keeping(0))


def test_of_an_earlier_generation_that_no_kept_step_is_of_nothing_is_left(tmp_path):
    async def body(world: World) -> None:
        session = await branched(world)
        for log in ("mixture/1", "factors/1", "losses/1"):
            world.store.append(log, 0, b"{}", fence=None)
        await commit(world, session, 20)
        assert (steps(world, 1), steps(world, 2)) == ([], [19, 20])
        assert [world.store.last(log) for log in ("mixture/1", "factors/1", "losses/1")] == [None] * 3
        assert set(world.store.items("generation/")) == {"generation/current", Generation.key(2)}
        (part,) = lineage(world.store)
        assert (part.generation.number, part.first, part.stop) == (2, 6, 21)
        log = PlanLog.of(world.store)
        assert (log.kept, log.begins[0]) == (19, 20)
        assert log.words().startswith("it has steps 19 to 20; those before were removed after the trainers")
        # The job goes on, from now and from long ago.
        await world.stop()
        await world.start()
        joined = await world.join(dp=1, state=log.read(20, 32)[1].state_json)
        assert (current_generation(world.store).number, joined.start_step) == (2, 21)
        assert [plan.step for plan in await world.plans(joined.session, 21, 22)] == [21, 22]
        await world.join(dp=1)
        assert current_generation(world.store).number == 3
        assert current_generation(world.store).origin == 0

    scenario(body, tmp_path, keeping(0))


def test_a_generation_that_a_readmission_is_of_stays_with_those_after_it(tmp_path):
    async def body(world: World) -> None:
        session = await branched(world)
        add_readmitted(world.store, [SampleId("a", 0, 3)], 1, 4)
        await commit(world, session, 20)
        assert [part.generation.number for part in lineage(world.store)] == [2, 1]
        assert (steps(world, 1), steps(world, 2)) == ([9], [19, 20])

    scenario(body, tmp_path, keeping(0))


def test_changes_and_factors_go_when_no_kept_step_needs_them(tmp_path, monkeypatch):
    monkeypatch.setattr(retention, "_KEPT_CHANGES", 2)

    async def change(world: World, number: int) -> None:
        asked = control_service_pb2.MixtureChange(
            id=f"change {number}", weights={"a": 1.0, "b": 1.0 + number}
        )
        await world.peer.call(methods.SET_MIXTURE, asked, timeout_s=LIMIT_S)

    async def body(world: World) -> None:
        session = (await started(world, dp=1)).session
        for number in range(6):
            await world.plans(session, 5 * number, 5 * number + 3)
            await change(world, number)
        journal = world.planner._journal
        for step in (2, 9, 15, 27):
            await journal.append_factors(Factors(step, (1.0, float(step)), 0.1))
        expected = await world.plans(session, 25, 32)
        await commit(world, session, 25)
        ids = [made.id for made in journal.changes]
        assert ids == [f"change {number}" for number in range(4, 6)]
        assert [seq for seq, _ in world.store.read("mixture/1", 0, 10)] == [4, 5]
        assert [factors.from_step for factors in journal.factors] == [15, 27]
        assert [seq for seq, _ in world.store.read("factors/1", 0, 10)] == [2, 3]

        # Another planner knows the same, and goes on numbering.
        await world.stop()
        await world.start()
        journal = world.planner._journal
        assert [made.id for made in journal.changes] == ids
        joined = await world.join(dp=1, state=expected[-1].record.state_json)
        assert current_generation(world.store).number == 1
        await world.plans(joined.session, 33, 34)
        await change(world, 6)
        await journal.append_factors(Factors(40, (), 0.0))
        assert [seq for seq, _ in world.store.read("mixture/1", 0, 10)] == [4, 5, 6]
        # One was added by the planner that does not calibrate any more, when it started.
        assert [seq for seq, _ in world.store.read("factors/1", 0, 10)] == [2, 3, 4, 5]

    scenario(body, tmp_path, keeping(0))


def test_ranks_may_commit_at_once(tmp_path):
    async def body(world: World) -> None:
        session = await branched(world)
        answers = await asyncio.gather(*(commit(world, session, step) for step in (20, 18, 20, 19)))
        assert {answer.committed for answer in answers} == {20}
        assert set(world.store.items("generation/")) == {"generation/current", Generation.key(2)}

    scenario(body, tmp_path, keeping(0))


def test_all_of_it_stays_where_that_is_wanted(tmp_path):
    async def body(world: World) -> None:
        session = (await started(world, dp=1)).session
        await world.plans(session, 0, 20)
        answer = await commit(world, session, 20)
        assert (answer.committed, answer.first) == (20, 0)
        assert steps(world) == list(range(21))

    scenario(body, tmp_path, keeping("all"))


def test_a_store_that_can_not_remove_fails_no_trainer(tmp_path):
    async def body(world: World) -> None:
        session = (await started(world, dp=1)).session
        await world.plans(session, 0, 20)

        def fails(*_: object, **__: object) -> None:
            raise StoreError("the disk is full")

        truncate, world.store.truncate = world.store.truncate, fails
        assert (await commit(world, session, 10)).first == 0
        world.store.truncate = truncate
        assert (await commit(world, session, 11)).first == 10
        assert steps(world)[0] == 10

    scenario(body, tmp_path, keeping(0))


def test_what_can_not_be_committed(tmp_path):
    async def body(world: World) -> None:
        session = (await started(world, dp=2)).session
        await world.plans(session, 0, 5)
        with pytest.raises(StateError, match="step 7 is committed, and the plan log ends before step 6"):
            await commit(world, session, 7)
        await commit(world, session, 5, dp=9)  # no rank of this mesh
        assert (await commit(world, session, 5)).committed == 0
        other = await world.join(dp=4)
        with pytest.raises(SessionSuperseded):
            await commit(world, session, 5)
        assert (await commit(world, other.session, 5)).committed == 0

    scenario(body, tmp_path, keeping(0))
