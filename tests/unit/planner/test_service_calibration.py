"""The planner's service with reports: what is learned is placed by, and a restart places as before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from dataloader_balancers import loads, segment_sum
from dataloader_client import methods
from dataloader_client._pb import common_pb2, plan_pb2, planner_service_pb2
from dataloader_svc.config.schema import Config
from dataloader_svc.planner.calibration import Factors, read_factors
from dataloader_svc.testing.planning import plan_config

from .planner_world import LIMIT_S, World, scenario

DP = 4
LINEAR, SQUARE = 1e-3, 4e-3
"""Seconds a token and a squared length."""
CONFIGURED_SQUARE = 0.001  # against 1.0 a token: the configuration believes that squares are free


def settings(*, calibrate: bool = True) -> Config:
    base = plan_config({"a": 1, "b": 1}, sequences=16)
    cost = base.strategy.cost.model_copy(
        update={
            "llm": base.strategy.cost.llm.model_copy(update={"linear": 1.0, "quadratic": CONFIGURED_SQUARE})
        }
    )
    strategy = base.strategy.model_copy(update={"cost": cost, "calibrate": calibrate})
    return base.model_copy(update={"strategy": strategy})


def seconds(plan: plan_pb2.PlacedPlan) -> np.ndarray:
    """What each dp rank's work really takes."""
    lengths = np.array(plan.record.length, np.float64)
    costs = segment_sum(LINEAR * lengths + SQUARE * lengths**2, np.array(plan.record.sequence_offsets))
    return loads(costs, np.array(plan.dp_rank)[: len(costs)], DP)


async def report(world: World, session: int, plans: Sequence[plan_pb2.PlacedPlan]) -> None:
    for plan in plans:
        times = planner_service_pb2.StepTimes(
            session=session,
            step=[plan.step] * DP,
            dp_rank=range(DP),
            step_time=[0.0] * DP,
            compute_time=seconds(plan),
        )
        await world.peer.call(methods.PLANNER_REPORT, times, timeout_s=LIMIT_S)


async def calibration(world: World) -> planner_service_pb2.Calibration:
    status = await world.peer.call(methods.PLANNER_STATUS, common_pb2.Empty(), timeout_s=LIMIT_S)
    return status.calibration


def test_steps_are_placed_by_the_fit_and_again_after_a_restart(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.add_loader()
        await world.start()
        session = (await world.join(dp=DP)).session
        before = await world.plans(session, 0, 11)
        await report(world, session, before)
        await world.plans(session, 12, 13)  # the factors are written before another step is
        found = await calibration(world)
        assert found.steps == 12
        # All ranks have as many tokens: what these take can't be told from what a step takes anyway.
        assert found.per_unit[1] == pytest.approx(SQUARE / CONFIGURED_SQUARE, rel=0.05)
        assert found.from_step in (12, 13)
        after = await world.plans(session, 14, 30)
        waits = [float(seconds(plan).max() / seconds(plan).mean()) for plan in (*before, *after)]
        assert np.mean(waits[12:]) < np.mean(waits[:12]), "squares are reckoned with now"
        await world.stop()

        await world.start()
        again = await world.plans(session, 0, 30)
        for plan in (*before, *after):
            assert again[plan.step].dp_rank == plan.dp_rank
            assert again[plan.step].microbatch == plan.microbatch
        assert (await calibration(world)).factors == found.factors
        # Packing knows nothing of it.
        await world.stop()
        plain = World(world.folder, settings(calibrate=False))
        await plain.add_loader()
        await plain.start()
        joined = (await plain.join(dp=DP)).session
        reference = await plain.plans(joined, 0, 30)
        await plain.end()
        assert [plan.record for plan in reference] == [plan.record for plan in again]
        assert [plan.dp_rank for plan in reference[14:]] != [plan.dp_rank for plan in again[14:]]

    scenario(body, tmp_path, settings())


def test_turned_off_it_ends_with_the_steps_that_are_there(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.add_loader()
        await world.start()
        session = (await world.join(dp=DP)).session
        await report(world, session, await world.plans(session, 0, 11))
        placed = await world.plans(session, 12, 20)
        await world.stop()
        await world.start(settings(calibrate=False))
        entries = read_factors(world.store, 1)
        assert entries[-1] == Factors(21, (), 0.0)
        again = await world.plans(session, 12, 22)
        assert [plan.dp_rank for plan in again[:9]] == [plan.dp_rank for plan in placed]
        await world.stop()
        await world.start(settings(calibrate=False))
        assert read_factors(world.store, 1) == entries, "once is enough"

    scenario(body, tmp_path, settings())


def test_off_nothing_is_learned(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.add_loader()
        await world.start()
        session = (await world.join(dp=DP)).session
        await report(world, session, await world.plans(session, 0, 11))
        status = await world.peer.call(methods.PLANNER_STATUS, common_pb2.Empty(), timeout_s=LIMIT_S)
        assert not status.HasField("calibration")
        assert read_factors(world.store, 1) == ()

    scenario(body, tmp_path, settings(calibrate=False))
