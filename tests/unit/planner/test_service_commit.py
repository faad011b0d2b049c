"""The planner's service, told that checkpoints are safe: what goes from the log, and how it goes on."""

from __future__ import annotations

import pytest

from dataloader_client import methods
from dataloader_client._pb import common_pb2, control_service_pb2, plan_pb2
from dataloader_svc.cli.plan_log import PlanLog
from dataloader_svc.config.schema import Config
from dataloader_svc.errors import SessionSuperseded, StateError, StoreError
from dataloader_svc.planner.history import current_generation, lineage

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


def test_earlier_generations_go_too_and_the_history_is_still_known(tmp_path):
    async def body(world: World) -> None:
        session = (await started(world, dp=1)).session
        plans = await world.plans(session, 0, 9)
        await world.stop()
        await world.start(config(planner={"ahead": 2, "keep": 0}, last_batch="drop"))
        joined = await world.join(dp=1, state=plans[5].record.state_json)
        assert [part.generation.number for part in lineage(world.store)] == [2, 1]
        await world.plans(joined.session, 6, 20)
        await commit(world, joined.session, 20)
        assert (steps(world, 1), steps(world, 2)) == ([9], [19, 20])
        parts = lineage(world.store)
        assert [(part.generation.number, part.first, part.stop) for part in parts] == [(2, 6, 21), (1, 0, 6)]
        assert PlanLog.of(world.store).kept == 19

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
