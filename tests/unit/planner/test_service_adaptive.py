"""The planner's service, told of losses: weights follow them within bounds, the same whatever restarts."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import pytest

from dataloader_client import methods
from dataloader_client._pb import control_service_pb2, plan_pb2
from dataloader_client._pb.control_service_pb2 import LossesRequest, StepLosses
from dataloader_client.adaptive import Bounds, by_excess_loss
from dataloader_svc.errors import ConfigError, StoreError
from dataloader_svc.planner.history import read_losses, read_records

from .planner_world import LIMIT_S, Heard, World, config, scenario
from .test_service_mixture import assert_within_one_sample, change, show

EVERY, LEAD = 10, 12
BOUNDS = {"min_share": 0.1, "max_share": 0.9, "max_ratio": 1.5, "max_change": 0.08}
EVEN = {"a": 0.5, "b": 0.5}
REFERENCES = {"a": 1.0, "b": 1.0}


def settings(rule: str = "excess_loss", **changes):
    options = {"options": {"references": REFERENCES}} if rule == "excess_loss" else {}
    adaptive = {"rule": rule, "every": EVERY, "lead": LEAD, **BOUNDS, **options, **changes}
    return config(mixture={"adaptive": adaptive}, planner={"ahead": 2})


def lost(session: int, steps: Iterable[int], *, dp: int = 0, **changes) -> LossesRequest:
    """Of one rank: `a` loses 4, `b` 2, over as many targets as rank and step say."""
    request = LossesRequest()
    for step in steps:
        weight = float(1 + dp + step % 3)
        columns = {"source": [0, 1], "loss": [4 * weight, 2 * weight], "targets": [weight, weight]}
        request.steps.append(
            StepLosses(**{"session": session, "dp_rank": dp, "step": step} | columns | changes)
        )
    return request


async def tell(world: World, request: LossesRequest) -> int:
    response = await world.peer.call(methods.REPORT_LOSSES, request, timeout_s=LIMIT_S)
    return response.decided


async def tell_all(world: World, session: int, steps: Iterable[int]) -> None:
    for dp in range(2):
        await tell(world, lost(session, steps, dp=dp))


async def decided(world: World, before: int) -> control_service_pb2.MixtureStatus:
    """The status once that period is done with. Each question gives the planner's loop its turn."""
    while True:
        status = await show(world)
        if status.adaptive.decided >= before:
            return status


async def started(world: World) -> int:
    await world.add_loader()
    await world.start()
    response = await world.join()
    assert response.wants_losses
    return response.session


def carried(record: plan_pb2.PlanRecord) -> list[dict]:
    return json.loads(record.state_json).get("mixture", [])


def test_weights_follow_losses_at_the_named_step_and_no_sample_earlier(tmp_path):
    async def body(world: World) -> None:
        session = await started(world)
        await world.plans(session, 0, 14)
        await tell_all(world, session, range(14))
        status = await decided(world, EVERY)
        expected = by_excess_loss(
            EVEN, {"a": 4.0, "b": 2.0}, REFERENCES, declared=EVEN, bounds=Bounds(**BOUNDS)
        )
        assert expected["a"] == pytest.approx(0.58), "the change is bounded"
        (made,) = status.changes
        assert (made.id, made.at_step, made.rule) == ("adaptive/10", EVERY + LEAD, "excess_loss")
        assert dict(made.weights) == pytest.approx(expected)
        assert dict(status.adaptive.losses) == {"a": 4.0, "b": 2.0}
        assert (status.adaptive.next, status.adaptive.reported) == (20, 4)
        await world.plans(session, 0, 60)
        records = list(read_records(world.store))
        assert_within_one_sample(records)
        known = made.known_from
        assert [len(carried(record)) for record in records] == [0] * known + [1] * (len(records) - known)
        assert carried(records[-1])[0]["learned"] == {"rule": "excess_loss", "before": 10, "memory": None}

    scenario(body, tmp_path, settings())


def test_whatever_is_reported_bounds_hold_for_ever(tmp_path):
    async def body(world: World) -> None:
        session = await started(world)
        for step in range(120):
            await world.plans(session, step, step)
            await tell_all(world, session, [step])
        await decided(world, 110)
        await world.plans(session, 120, 140)
        records = list(read_records(world.store))
        rows = [each for record in records for each in carried(record)]
        assert max(row["weights"]["a"] for row in rows) == pytest.approx(2 / 3), "b is at 0.5 / max_ratio"
        assert_within_one_sample(records)

    scenario(body, tmp_path, settings())


async def read_and_tell(world: World, session: int, stops: set[int], last: int = 70) -> list[bytes]:
    """Records of a job whose ranks tell of each step; before and after some the planner starts again."""
    for step in range(last):
        await world.plans(session, step, step)
        for dp in range(2):
            if step in stops:
                await world.stop()
                await world.start()
            await tell(world, lost(session, [step], dp=dp))
            if step in stops:
                await tell(world, lost(session, [step], dp=dp))  # unanswered: said again
        if step and step % EVERY == 0:  # a decision that comes after its lead takes effect later
            await decided(world, step)
    return [record.SerializeToString() for record in read_records(world.store)]


@pytest.mark.parametrize("rule", ["excess_loss", "learning_speed"])
def test_a_planner_that_starts_again_between_reports_and_decisions_plans_the_same(tmp_path, rule):
    found: list[list[bytes]] = []
    for number, stops in enumerate([set(), {0, 5, 9, 10, 11, 29, 45}]):
        folder = tmp_path / str(number)
        folder.mkdir()

        async def body(world: World, stops: set[int] = stops) -> None:
            session = await started(world)
            found.append(await read_and_tell(world, session, stops))
            assert (await show(world)).adaptive.decided == 60

        scenario(body, folder, settings(rule))
    undisturbed, restarted = found
    assert restarted[:60] == undisturbed[:60]
    last = plan_pb2.PlanRecord.FromString(undisturbed[-1])
    assert carried(last)[-1]["learned"]["before"] == 60


def test_a_state_alone_is_enough_to_go_on_with_its_weights_and_its_rule(tmp_path):
    states: list[str] = []

    async def first(world: World) -> None:
        session = await started(world)
        await read_and_tell(world, session, set(), last=64)
        states.append(list(read_records(world.store))[63].state_json)

    scenario(first, tmp_path, settings("learning_speed"))
    (state,) = states

    async def second(world: World) -> None:
        await world.add_loader()
        await world.start()
        await world.join(state=state)
        status = await show(world)
        assert status.adaptive.decided == 60
        rows = json.loads(state)["mixture"]
        assert rows[-1]["learned"]["memory"]["seen"]["a"], "what the rule remembers is in it"
        assert [row["learned"]["memory"] is None for row in rows] == [True] * (len(rows) - 1) + [False]
        assert dict(status.weights) == pytest.approx(rows[-1]["weights"], abs=0.1)

    other = tmp_path / "other"
    other.mkdir()
    scenario(second, other, settings("learning_speed"))


def test_what_is_of_no_use_is_left_aside(tmp_path):
    async def body(world: World) -> None:
        session = await started(world)
        await world.plans(session, 0, 5)
        planned = (await show(world)).next_step
        odd = [
            lost(session + 1, [1]),
            lost(0, [1]),
            lost(session, [planned]),
            lost(session, [2**63]),
            lost(session, [1], dp=2),
            lost(session, [1], cp_rank=1),
            lost(session, [1], source=[0, 7]),
            lost(session, [1], targets=[1.0]),
        ]
        for request in odd:
            assert await tell(world, request) == 0
        assert read_losses(world.store, "losses/1") == []
        assert (await show(world)).adaptive.reported == 0
        await tell(world, lost(session, [1], loss=[float("nan"), 2.0]))
        await tell(world, lost(session, [1]))  # it has been said
        status = await show(world)
        assert (status.adaptive.reported, status.adaptive.refused) == (1, 1)
        assert len(read_losses(world.store, "losses/1")) == 1

    scenario(body, tmp_path, settings())


def test_a_rank_that_says_nothing_holds_nothing_up_for_long(tmp_path):
    async def body(world: World) -> None:
        session = await started(world)
        await world.plans(session, 0, 16)
        await tell(world, lost(session, range(EVERY + LEAD // 2)))
        assert (await show(world)).adaptive.decided == 0
        await tell(world, lost(session, [EVERY + LEAD // 2]))
        status = await decided(world, EVERY)
        assert status.changes[0].at_step == EVERY + LEAD

    scenario(body, tmp_path, settings())


def test_reports_are_removed_once_they_are_decided_on(tmp_path):
    async def body(world: World) -> None:
        session = await started(world)
        for step in range(24):
            await world.plans(session, step, step)
            await tell_all(world, session, [step])
        await decided(world, 20)
        heard = Heard("mixture")
        await tell_all(world, session, range(24))  # late, and twice
        assert not heard.event.is_set()
        steps = {r.step for _, request in read_losses(world.store, "losses/1") for r in request.steps}
        assert min(steps) >= 19

    scenario(body, tmp_path, settings())


def test_a_store_that_refuses_a_report_is_asked_again(tmp_path):
    async def body(world: World) -> None:
        session = await started(world)
        await world.plans(session, 0, 5)
        append, errors = world.store.append, ["before", "after"]

        def failing(log: str, *rest, **more) -> None:
            if log.startswith("losses/") and errors:
                if errors.pop() == "after":
                    append(log, *rest, **more)
                raise StoreError("the disk is full")
            append(log, *rest, **more)

        world.store.append = failing
        for _ in range(2):
            with pytest.raises(StoreError, match="the disk is full"):
                await tell(world, lost(session, [3]))
        await tell(world, lost(session, [4]))
        await tell(world, lost(session, [3, 4]))
        rows = read_losses(world.store, "losses/1")
        assert [number for number, _ in rows] == list(range(len(rows)))
        assert {r.step for _, request in rows for r in request.steps} == {3, 4}
        assert (await show(world)).adaptive.reported == 2

    scenario(body, tmp_path, settings())


def test_reports_that_come_while_others_are_removed_stay(tmp_path):
    async def body(world: World) -> None:
        session = await started(world)
        await world.plans(session, 0, 20)
        truncate, began, go_on = world.store.truncate, threading.Event(), threading.Event()

        def slow(log: str, *rest, **more) -> None:
            if log.startswith("losses/"):
                began.set()
                assert go_on.wait(LIMIT_S)
            truncate(log, *rest, **more)

        world.store.truncate = slow
        for step in range(EVERY + 1):
            await tell_all(world, session, [step])
        assert await asyncio.to_thread(began.wait, LIMIT_S)
        await tell_all(world, session, [EVERY + 1])
        go_on.set()
        await tell_all(world, session, [EVERY + 2])
        while (rows := read_losses(world.store, "losses/1"))[0][0] == 0:
            await show(world)
        assert [number for number, _ in rows] == list(range(rows[0][0], rows[0][0] + len(rows)))
        assert {r.step for _, request in rows for r in request.steps} >= {EVERY, EVERY + 1, EVERY + 2}

    scenario(body, tmp_path, settings())


def test_a_person_s_weights_outside_of_the_bounds_hold_until_they_are_within(tmp_path):
    async def body(world: World) -> None:
        session = await started(world)
        await world.plans(session, 0, 5)
        await change(world, {"a": 0.95, "b": 0.05})
        await world.plans(session, 6, 14)
        await tell_all(world, session, range(11))
        status = await decided(world, EVERY)
        assert status.adaptive.problem.startswith("the weight of 'a' is 0.95, and bounds let it be")
        assert [each.id for each in status.changes] == ["one"]
        await change(world, EVEN, name="two")
        await world.plans(session, 15, 24)
        await tell_all(world, session, range(11, 21))
        status = await decided(world, 20)
        assert status.adaptive.problem == ""
        assert [each.id for each in status.changes] == ["one", "two", "adaptive/20"]
        assert status.changes[-1].weights["a"] == pytest.approx(0.58)

    scenario(body, tmp_path, settings())


def own_rule(folder: Path, text: str, name: str = "rules") -> str:
    """A rule in a file beside the configuration, as the YAML names it."""
    module = f"{folder.name}_{name}"
    (folder / f"{module}.py").write_text(f"def rule(told, memory, /):\n    {text}\n")
    return f"{module}:rule"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("return ({'a': 1.0}, 1 + (memory or 0))", ""),
        ("return (told.weights, None) if sum(told.losses.values()) == 2 else 1 / 0", "ZeroDivisionError"),
        (
            "return ({'a': 1.0} if sum(told.losses.values()) == 2 else {'c': 1.0}, None)",
            "'c', which is no source",
        ),
        (
            "return ({'a': 1.0}, None if sum(told.losses.values()) == 2 else {1, 2})",
            "what it remembers is no JSON",
        ),
    ],
)
def test_a_function_of_the_user_is_bound_too_and_can_not_stop_the_job(tmp_path, text, problem):
    # `check` tries it with a loss of 1 each; the job's are 4 and 2.
    rule = own_rule(tmp_path, text)

    async def body(world: World) -> None:
        session = await started(world)
        for step in range(22):
            await world.plans(session, step, step)
            await tell_all(world, session, [step])
        status = await decided(world, 20)
        assert problem in status.adaptive.problem
        assert bool(problem) == bool(status.adaptive.problem)
        assert len(status.changes) == (0 if problem else 2)
        await world.plans(session, 22, 40)
        if not problem:
            assert status.changes[-1].weights["a"] == pytest.approx(0.66), "two changes of 0.08"
            assert carried(list(read_records(world.store))[-1])[-1]["learned"]["memory"] == 2

    scenario(body, tmp_path, settings(rule))


def test_a_rule_that_is_no_use_is_found_when_the_planner_starts(tmp_path):
    good, number = own_rule(tmp_path, "return told.weights, None"), own_rule(tmp_path, "return 3", "number")

    async def body(world: World) -> None:
        for rule, text in (
            (good.replace("rules", "none"), "can't be imported"),
            (good.replace(":rule", ":no"), "has no function 'no'"),
            (number, "it gave int; a rule gives"),
        ):
            with pytest.raises(ConfigError, match=text):
                await world.start(settings(rule))

    scenario(body, tmp_path)


def test_a_function_that_does_not_return_ends_adaptation_and_nothing_else(tmp_path):
    """It hangs with the job's losses, not when it is tried; the test lets it go at the end."""
    rule = own_rule(
        tmp_path,
        "told.losses['a'] == 1 or (began.set(), go_on.wait(60))\n    return told.weights, None",
        "hangs",
    )
    module = rule.partition(":")[0]
    path = tmp_path / f"{module}.py"
    path.write_text(
        "import threading\n\nbegan, go_on = threading.Event(), threading.Event()\n\n" + path.read_text()
    )

    async def body(world: World) -> None:
        session = await started(world)
        hung = sys.modules[module]
        try:
            for step in range(31):
                await world.plans(session, step, step)
                await tell_all(world, session, [step])
            assert await asyncio.to_thread(hung.began.wait, LIMIT_S)
            await world.plans(session, 31, 50)
            await change(world, {"a": 0.6, "b": 0.4})
            status = await show(world)
            assert (status.adaptive.decided, status.adaptive.reported) == (0, 31)
        finally:
            hung.go_on.set()
        await decided(world, 20)

    scenario(body, tmp_path, settings(rule))


def test_ranks_that_report_nothing_leave_the_weights_as_they_are(tmp_path):
    """As clients of before this was there."""

    async def body(world: World) -> None:
        session = await started(world)
        await world.plans(session, 0, 50)
        status = await show(world)
        assert (status.adaptive.ranks, status.adaptive.expected, status.adaptive.next) == (0, 2, 60)
        assert dict(status.weights) == EVEN
        assert not any(carried(record) for record in read_records(world.store))

    scenario(body, tmp_path, settings())


def test_turned_off_weights_stay_and_reports_are_left_aside(tmp_path):
    async def body(world: World) -> None:
        session = await started(world)
        await world.plans(session, 0, 14)
        await tell_all(world, session, range(14))
        await decided(world, EVERY)
        await world.stop()
        await world.start(config(planner={"ahead": 2}))
        await tell_all(world, session, range(14))
        plans = await world.plans(session, 15, 40)
        assert len(plans) == 26, "the same session goes on"
        status = await show(world)
        assert not status.HasField("adaptive")
        assert status.weights["a"] == pytest.approx(0.58)

    scenario(body, tmp_path, settings())


async def _go_back(world: World, state: str, settled: Callable[[], Awaitable[None]]) -> None:
    response = await world.join(dp=1, state=state)
    await world.plans(response.session, 4, 14)
    await settled()
    for step in range(4, 15):
        await tell(world, lost(response.session, [step], loss=[20.0, 2.0], targets=[1.0, 1.0]))


def test_a_trainer_that_goes_back_is_the_one_that_counts(tmp_path):
    async def body(world: World) -> None:
        session = await started(world)
        await world.plans(session, 0, 8)
        await tell_all(world, session, range(8))
        state = list(read_records(world.store))[3].state_json

        async def refused() -> None:
            await tell_all(world, session, [8])

        await _go_back(world, state, refused)
        status = await decided(world, EVERY)
        sums = [
            sum(column)
            for column in zip(
                *((4 * (1 + d + s % 3), 1 + d + s % 3) for s in range(4) for d in range(2)), strict=True
            )
        ]
        assert status.adaptive.losses["a"] == pytest.approx((sums[0] + 6 * 20) / (sums[1] + 6))

    scenario(body, tmp_path, settings())


def test_a_history_that_is_left_takes_along_what_it_decided_later(tmp_path):
    async def body(world: World) -> None:
        session = await started(world)
        await world.plans(session, 0, 14)
        await tell_all(world, session, range(14))
        await decided(world, EVERY)
        state = list(read_records(world.store))[5].state_json
        skip = plan_pb2.SkippedSteps(first=7, stop=9, reason="spike")
        await world.join(state=state, skip=[skip], knows_skips=True)
        status = await show(world)
        assert list(status.changes) == [], "its losses are of steps that come again"
        assert status.adaptive.decided == 0

    scenario(body, tmp_path, settings())
