"""The planner's service, asked to pass over steps, and to begin another job from a state."""

from __future__ import annotations

import json

import pytest

from dataloader_client._pb import plan_pb2
from dataloader_svc.errors import StateError, VersionError
from dataloader_svc.planner.core import Demanded, PlannerCore
from dataloader_svc.planner.history import current_generation, read_records
from dataloader_svc.planner.skip import MOST, Skip, ahead, with_skips

from .planner_world import World, config, scenario

SPIKE = plan_pb2.SkippedSteps(first=8, stop=11, reason="loss spike")


def test_a_generation_begins_that_says_so_and_no_sample_moves(tmp_path):
    async def body(world: World) -> None:
        await world.add_loader()
        await world.start()
        session = (await world.join()).session
        plans = await world.plans(session, 0, 14)
        state = plans[5].record.state_json
        joined = await world.join(state=state, skip=[SPIKE], knows_skips=True)
        assert (joined.start_step, list(joined.skip)) == (6, [SPIKE])
        generation = current_generation(world.store)
        assert (generation.number, generation.parent) == (2, 1)
        assert generation.reason == "steps 8 to 10 are skipped: loss spike"
        again = await world.plans(joined.session, 6, 14)
        assert [plan.record.digest for plan in again] == [plan.record.digest for plan in plans[6:]]
        for record in read_records(world.store, generation):
            assert json.loads(record.state_json)["skips"] == [[8, 11, "loss spike"]]
        # A second rank says the same, and one that comes back later brings it in its state.
        second = await world.join(state=state, skip=[SPIKE], knows_skips=True)
        assert (second.session, current_generation(world.store).number) == (joined.session, 2)
        later = await world.join(state=again[3].record.state_json, knows_skips=True)
        assert (current_generation(world.store).number, list(later.skip)) == (2, [SPIKE])
        after = await world.join(state=again[5].record.state_json)
        assert (current_generation(world.store).number, list(after.skip)) == (2, [])

    scenario(body, tmp_path)


def test_an_empty_service_passes_over_what_the_state_says(tmp_path):
    async def body(world: World) -> None:
        await world.add_loader()
        await world.start()
        first = await world.join(skip=[SPIKE], knows_skips=True)
        plans = await world.plans(first.session, 0, 4)
        other = World(world.folder)
        try:
            await other.add_loader()
            await other.start()
            joined = await other.join(state=plans[4].record.state_json, knows_skips=True)
            assert list(joined.skip) == [SPIKE]
        finally:
            await other.end()

    scenario(body, tmp_path)


def test_what_is_read_before_a_skip_stays_with_the_loaders_until_it_was_read(tmp_path, monkeypatch):
    """A constructor whose ranks read step 7 and that works 4 steps ahead asks for steps up to 14."""
    told = []
    apply = PlannerCore.apply
    monkeypatch.setattr(PlannerCore, "apply", lambda core, event: told.append(event) or apply(core, event))

    async def body(world: World) -> None:
        await world.add_loader()
        await world.start()
        session = (await world.join(skip=[SPIKE], knows_skips=True)).session
        await world.plans(session, 0, 14)
        (demanded,) = (event for event in told if isinstance(event, Demanded))
        assert demanded == Demanded(up_to=14, done_below=7)

    scenario(body, tmp_path, config(planner={"ahead": 4}))


def test_a_client_that_would_train_on_them_is_refused(tmp_path):
    async def body(world: World) -> None:
        await world.add_loader()
        await world.start()
        joined = await world.join(skip=[SPIKE], knows_skips=True)
        plans = await world.plans(joined.session, 0, 4)
        with pytest.raises(
            VersionError, match="steps 8 to 10 are skipped: loss spike; the client .* is too old"
        ):
            await world.join(state=plans[4].record.state_json)

    scenario(body, tmp_path)


def test_what_can_not_be_skipped(tmp_path):
    async def body(world: World) -> None:
        await world.add_loader()
        await world.start()
        session = (await world.join()).session
        state = (await world.plans(session, 0, 9))[9].record.state_json
        for first, stop, words in [
            (8, 12, "step 8 can't be skipped: the state is at step 10"),
            (12, 12, "can't skip steps 12 to 12"),
        ]:
            with pytest.raises(StateError, match=words):
                await world.join(
                    state=state, skip=[plan_pb2.SkippedSteps(first=first, stop=stop)], knows_skips=True
                )
        assert current_generation(world.store).number == 1

    scenario(body, tmp_path)


def test_skips_of_one_job():
    one = Skip(8, 11, "a")
    assert with_skips((one,), [one, Skip(3, 4, "b")], 2) == (Skip(3, 4, "b"), one)
    assert with_skips((one,), [one], 20) == (one,)  # a rank that joins again
    with pytest.raises(StateError, match="steps 8 to 10 are skipped: a: it can't be skipped twice"):
        with_skips((one,), [Skip(10, 12, "b")], 2)
    with pytest.raises(StateError, match="at most"):
        with_skips((), [Skip(2 * n, 2 * n + 1, "") for n in range(MOST + 1)], 0)
    assert ahead((Skip(3, 4, "b"), one), 4) == [one]
    assert str(Skip(3, 4, "b")) == "step 3 is skipped: b"


def test_another_job_forks_from_a_state(tmp_path):
    async def body(world: World) -> None:
        await world.add_loader()
        await world.start()
        session = (await world.join()).session
        plans = await world.plans(session, 0, 9)
        other = World(world.folder, config().model_copy(update={"job": "variant"}))
        try:
            await other.add_loader()
            await other.start()
            joined = await other.join(state=plans[4].record.state_json)
            generation = current_generation(other.store)
            assert generation.reason == "forked from job 'scripted' at step 5"
            assert json.loads(joined.state_json)["job"] == "variant"
            again = await other.plans(joined.session, 5, 9)
            assert [plan.record.digest for plan in again] == [plan.record.digest for plan in plans[5:]]
            second = await other.join(state=plans[4].record.state_json)
            assert (second.session, current_generation(other.store).number) == (joined.session, 1)
        finally:
            await other.end()
        assert current_generation(world.store).number == 1  # the first job goes on as it was

    scenario(body, tmp_path)
