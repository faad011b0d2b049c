"""The planner's service, asked to change the mixture: in the store, in the state, once, whatever restarts."""

from __future__ import annotations

import asyncio
import json

import pytest

from dataloader_client import methods
from dataloader_client._pb import common_pb2, control_service_pb2, plan_pb2
from dataloader_svc.errors import MixtureError, StoreError
from dataloader_svc.observe.audit import StepDelivery, check_mixture
from dataloader_svc.planner.history import current_generation, read_records
from dataloader_svc.sample import keyed_rng
from dataloader_svc.testing.planning import plan_config
from dataloader_svc.testing.scripted_loader import ScriptedSources

from .planner_world import LIMIT_S, World, config, scenario

FILE = [{"step": 0, "ramp": "none", "weights": {"a": 1, "b": 1}}]


async def change(
    world: World, weights: dict[str, float], *, name: str = "one", **fields: int
) -> control_service_pb2.MixtureChange:
    request = control_service_pb2.MixtureChange(id=name, weights=weights, **fields)
    return await world.peer.call(methods.SET_MIXTURE, request, timeout_s=LIMIT_S)


async def show(world: World) -> control_service_pb2.MixtureStatus:
    return await world.peer.call(methods.SHOW_MIXTURE, common_pb2.Empty(), timeout_s=LIMIT_S)


async def started(world: World) -> int:
    """The session of a job that has just begun."""
    await world.add_loader()
    await world.start()
    return (await world.join()).session


def assert_within_one_sample(records: list[plan_pb2.PlanRecord], file: list[dict] = FILE) -> None:
    """Of the targets by the `file` and the changes that the records' own states name."""
    states = [json.loads(record.state_json) for record in records]
    steps = [StepDelivery(record.step, "", (), state) for record, state in zip(records, states, strict=True)]
    findings, _ = check_mixture(steps, file, "tokens", states[-1]["largest"], "log")
    assert not findings


def test_it_counts_from_the_step_that_is_named_and_no_sample_earlier(tmp_path):
    async def body(world: World) -> None:
        session = await started(world)
        await world.plans(session, 0, 3)
        made = await change(world, {"a": 3, "b": 1}, at_step=9)
        assert (made.at_step, made.known_from, dict(made.weights)) == (9, 4, {"a": 0.75, "b": 0.25})
        await world.plans(session, 0, 30)
        records = list(read_records(world.store))
        assert_within_one_sample(records)
        carried = [json.loads(record.state_json).get("mixture", []) for record in records]
        assert [len(each) for each in carried] == [0] * 4 + [1] * 27
        drawn = json.loads(records[-1].state_json)["sources"]
        before = json.loads(records[8].state_json)["sources"]
        a, b = (drawn[name]["tokens"] - before[name]["tokens"] for name in ("a", "b"))
        assert a / (a + b) == pytest.approx(0.75, abs=0.02)
        status = await show(world)
        assert dict(status.weights) == {"a": 0.75, "b": 0.25}
        assert [(entry.step, dict(entry.weights)) for entry in status.schedule] == [
            (0, {"a": 0.5, "b": 0.5}),
            (9, {"a": 0.75, "b": 0.25}),
        ]
        assert [each.id for each in status.changes] == ["one"]

    scenario(body, tmp_path)


def test_it_counts_at_once_where_no_step_is_named(tmp_path):
    async def body(world: World) -> None:
        session = await started(world)
        await world.plans(session, 0, 5)
        for number, weights in enumerate([{"a": 1}, {"b": 1}, {"a": 1, "b": 1}]):
            made = await change(world, weights, name=str(number))
            assert made.at_step == 6 + 4 * number
            await world.plans(session, 0, made.at_step + 3)
        assert_within_one_sample(list(read_records(world.store)))

    scenario(body, tmp_path)


@pytest.mark.parametrize("seed", range(3))
def test_any_weights_at_any_time_each_source_stays_within_one_sample(tmp_path, seed):
    """Unannounced, some of them 0, at once or over some steps; ten steps apart (see decision 0008)."""
    rng = keyed_rng(seed, "changes")
    names = "abcdef"[: 4 + seed]
    lengths = {name: rng.integers(1, 31, 300).tolist() for name in names}
    even = dict.fromkeys(names, 1.0)
    file = [{"step": 0, "ramp": "none", "weights": even}]

    async def body(world: World) -> None:
        await world.add_loader(ScriptedSources.of_lengths(lengths, block=7))
        await world.start()
        session, step = (await world.join()).session, 0
        for number in range(5):
            weights = rng.dirichlet([0.4] * len(names)) * (rng.random(len(names)) < 0.7)
            weights[number % len(names)] += 0.1
            over = int(rng.integers(0, 4))
            await change(world, dict(zip(names, weights.tolist(), strict=True)), name=f"{number}", over=over)
            step += 10
            await world.plans(session, 0, step)
        assert_within_one_sample(list(read_records(world.store)), file)

    scenario(body, tmp_path, plan_config(even, sequences=4))


def test_a_ramp(tmp_path):
    async def body(world: World) -> None:
        session = await started(world)
        await change(world, {"a": 1}, over=8)
        await world.plans(session, 0, 20)
        assert_within_one_sample(list(read_records(world.store)))
        entries = (await show(world)).schedule
        assert [(entry.step, entry.ramp) for entry in entries] == [(0, False), (8, True)]

    scenario(body, tmp_path)


def test_the_same_request_again_is_the_same_change(tmp_path):
    async def body(world: World) -> None:
        session = await started(world)
        first = await change(world, {"a": 1})
        await world.plans(session, 0, 6)
        assert await change(world, {"a": 1}) == first
        await world.stop()
        await world.start()
        assert await change(world, {"a": 1}) == first
        assert len((await show(world)).changes) == 1

    scenario(body, tmp_path)


def test_what_is_refused_changes_nothing(tmp_path):
    async def body(world: World) -> None:
        await world.add_loader()
        await world.start()
        with pytest.raises(MixtureError, match="no trainer has joined yet"):
            await change(world, {"a": 1})
        session = (await world.join()).session
        await world.plans(session, 0, 3)
        with pytest.raises(MixtureError, match="step 2 is already planned: the first step that is not is 4"):
            await change(world, {"a": 1}, at_step=2)
        with pytest.raises(MixtureError, match="no source 'web'"):
            await change(world, {"web": 1})
        with pytest.raises(MixtureError, match="sum to 0"):
            await change(world, {})
        with pytest.raises(MixtureError, match="needs an id"):
            await change(world, {"a": 1}, name="")
        assert not (await show(world)).changes
        assert world.store.last("mixture/1") is None

    scenario(body, tmp_path)


def test_a_planner_that_starts_again_plans_the_same_steps(tmp_path):
    """Stopped at every step around a change that lies ahead: with it, as one that was never stopped."""

    async def steps(world: World, *, stops: bool) -> list[bytes]:
        session = await started(world)
        await world.plans(session, 0, 1)
        await change(world, {"a": 5, "b": 1}, at_step=5)
        for step in range(2, 10):
            if stops:
                await world.stop()
                await world.start()
            await world.plans(session, 0, step)
        return [record.SerializeToString(deterministic=True) for record in read_records(world.store)]

    async def body(world: World) -> None:
        other = World(world.folder)
        try:
            assert await steps(world, stops=True) == await steps(other, stops=False)
        finally:
            await other.end()

    scenario(body, tmp_path)


def test_a_state_keeps_it_in_an_empty_service(tmp_path):
    async def body(world: World) -> None:
        session = await started(world)
        await world.plans(session, 0, 3)
        await change(world, {"a": 5, "b": 1}, at_step=8)
        plans = await world.plans(session, 0, 14)
        other = World(world.folder)
        try:
            await other.add_loader()
            await other.start()
            joined = await other.join(state=plans[5].record.state_json)  # before it holds
            again = await other.plans(joined.session, 6, 14)
            assert [plan.record for plan in again] == [plan.record for plan in plans[6:]]
        finally:
            await other.end()

    scenario(body, tmp_path)


def test_another_configuration_keeps_what_is_still_to_come_unless_its_mixture_is_newer(tmp_path):
    async def body(world: World) -> None:
        session = await started(world)
        plans = await world.plans(session, 0, 5)
        await change(world, {"a": 5, "b": 1}, at_step=20)  # the states so far do not know it
        await world.stop()
        await world.start(config(last_batch="drop"))
        joined = await world.join(state=plans[3].record.state_json)
        assert current_generation(world.store).reason == "the configuration has changed"
        await world.plans(joined.session, 4, 8)
        carried = [len(json.loads(r.state_json).get("mixture", [])) for r in read_records(world.store)]
        assert carried == [0, 0, 1, 1, 1]  # from step 6 on, where it was made
        last = list(read_records(world.store))[-1].state_json
        await world.stop()
        await world.start(plan_config({"a": 1, "b": 2}, sequences=4))
        joined = await world.join(state=last)
        assert "mixture" not in json.loads(joined.state_json)
        assert not (await show(world)).changes

    scenario(body, tmp_path)


def test_a_caller_that_goes_away_leaves_nothing_half_done(tmp_path):
    async def body(world: World) -> None:
        session = await started(world)
        append, may_go, begun = world.store.append, asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def slow(log: str, seq: int, record: bytes, *, fence: int | None) -> None:
            if log.startswith("mixture"):
                loop.call_soon_threadsafe(begun.set)
                asyncio.run_coroutine_threadsafe(may_go.wait(), loop).result(LIMIT_S)
            append(log, seq, record, fence=fence)

        world.store.append = slow
        asking = asyncio.create_task(change(world, {"a": 1}))
        await begun.wait()
        asking.cancel()
        await asyncio.wait([asking])
        may_go.set()
        made = await change(world, {"a": 1})
        await world.plans(session, 0, made.at_step + 4)
        assert len((await show(world)).changes) == 1
        assert_within_one_sample(list(read_records(world.store)))

    scenario(body, tmp_path)


def test_a_store_that_fails_ends_the_role_and_the_next_one_knows(tmp_path):
    async def body(world: World) -> None:
        await started(world)
        append = world.store.append

        def fails(log: str, seq: int, record: bytes, *, fence: int | None) -> None:
            append(log, seq, record, fence=fence)
            if log.startswith("mixture"):
                raise StoreError("it may have happened")

        world.store.append = fails
        with pytest.raises(StoreError, match="it may have happened"):
            await change(world, {"a": 1}, at_step=7)
        assert isinstance(world.planner.failed.exception(), StoreError)
        world.store.append = append
        await world.stop()
        await world.start()
        assert (await change(world, {"a": 1}, at_step=7)).at_step == 7
        assert len((await show(world)).changes) == 1

    scenario(body, tmp_path)


def test_the_end_of_the_data_stays_where_it_was_told(tmp_path):
    ends = plan_config({"a": 1, "b": 1}, sequences=4, mixture={"exhausted": "stop"})

    async def body(world: World) -> None:
        session = await started(world)
        await world.plans(session, 0, 200)
        with pytest.raises(MixtureError, match="the data ends before step"):
            await change(world, {"a": 1})

    scenario(body, tmp_path, ends)
