"""Reports in, factors out: what is taken for an observation, and when placement should change."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import pytest

from dataloader_client._pb import planner_service_pb2
from dataloader_svc.planner.calibration import (
    KEPT_STEPS,
    PATIENCE_STEPS,
    Calibration,
    Factors,
    factors_at,
    factors_log,
    read_factors,
)
from dataloader_svc.planner.place import MeshSize
from dataloader_svc.store import MemoryStore

MESH = MeshSize(dp=4)
TRUE = np.array([1e-6, 5e-6, 2e-6])


def work_of(step: int, dp: int = 4) -> np.ndarray:
    rng = np.random.default_rng(step)
    return np.stack([rng.uniform(5e5, 9e5, dp), rng.lognormal(12, 1, dp), rng.uniform(0, 3e5, dp)], axis=1)


def reports(
    step: int, ranks: Sequence[int], step_time: Sequence[float], own: Sequence[float], session: int = 1
) -> planner_service_pb2.StepTimes:
    return planner_service_pb2.StepTimes(
        session=session,
        step=[step] * len(ranks),
        dp_rank=ranks,
        step_time=step_time,
        compute_time=own,
    )


def feed(
    calibration: Calibration, steps: range, slow: Sequence[float] = (1, 1, 1, 1), own: bool = True
) -> None:
    for step in steps:
        work = work_of(step)
        calibration.placed(1, step, MESH, work)
        noise = np.exp(np.random.default_rng(step).normal(0, 0.01, 4))
        seconds = (0.1 + work @ TRUE) * noise * slow
        whole = [float(seconds.max())] * 4
        calibration.reported(reports(step, range(4), whole, seconds if own else [0.0] * 4))


@pytest.mark.parametrize("own", [True, False])
def test_factors_are_those_of_the_hardware(own: bool) -> None:
    calibration = Calibration()
    assert calibration.proposal(None) is None
    feed(calibration, range(200), own=own)
    proposal = calibration.proposal(None)
    assert proposal is not None
    factors, error = proposal
    assert error < 0.02
    assert factors[1] / factors[0] == pytest.approx(5, rel=0.1)
    if own:
        assert factors[2] / factors[0] == pytest.approx(2, rel=0.1)


def test_factors_that_hold_are_not_proposed_again() -> None:
    calibration = Calibration()
    feed(calibration, range(60))
    proposal = calibration.proposal(None)
    assert proposal is not None
    held = Factors(60, *proposal)
    feed(calibration, range(60, 120))
    assert calibration.proposal(held) is None
    assert calibration.proposal(Factors(60, (), 0.0)) is not None, "none are the configured costs"
    assert calibration.proposal(Factors(60, (1.0, 1.0, 1.0), 0.0)) is not None


def test_costs_that_are_right_propose_nothing() -> None:
    calibration = Calibration()
    for step in range(60):
        work = work_of(step)
        calibration.placed(1, step, MESH, work)
        calibration.reported(reports(step, range(4), [0.0] * 4, work.sum(axis=1) * 3e-6))
    assert calibration.calibrator is not None
    assert calibration.calibrator.fit is not None
    assert calibration.proposal(None) is None


def test_the_slow_rank_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    calibration = Calibration()
    with caplog.at_level(logging.INFO):
        feed(calibration, range(60), slow=(1, 1, 1.5, 1))
        message = calibration.to_message(None)
        assert list(message.slow) == [2]
        assert message.slow[2] == pytest.approx(1.5, rel=0.05)
        feed(calibration, range(60, 90))
    said = [record.message for record in caplog.records]
    assert [text.split(":")[1].strip()[:18] for text in said if "slow" in text] == [
        "dp rank 2 is slow",
        "dp rank 2 is no lo",
    ]


def test_reports_in_any_order_and_pieces_are_one_observation_a_step() -> None:
    calibration = Calibration()
    for step in (0, 1):
        calibration.placed(1, step, MESH, work_of(step))
        calibration.placed(1, step, MESH, work_of(step))  # a second constructor asks
    for rank in (3, 1, 0):
        for step in (1, 0):
            calibration.reported(reports(step, [rank], [0.0], [1.0]))
    assert calibration.to_message(None).steps == 0
    calibration.reported(reports(1, [2], [0.0], [1.0]))
    calibration.reported(reports(0, [2], [0.0], [1.0]))
    assert calibration.to_message(None).steps == 2


def test_of_ranks_that_share_sequences_the_slowest_counts() -> None:
    calibration = Calibration()
    mesh = MeshSize(dp=1, cp=2)
    for step in range(40):
        calibration.placed(1, step, mesh, np.array([[100.0 + step]]))
        calibration.reported(reports(step, [0, 0], [0, 0], [1.0, 2.0 * (100 + step)]))
    assert calibration.to_message(None).per_unit[0] == pytest.approx(2.0, rel=0.05)


def test_a_rank_that_reports_nothing_holds_nothing_up() -> None:
    calibration = Calibration()
    for step in range(10):
        calibration.placed(1, step, MESH, work_of(step))
        calibration.reported(reports(step, [0, 1, 2], [0.0] * 3, [1.0] * 3))
    assert calibration.to_message(None).steps == 10 - PATIENCE_STEPS


def test_what_belongs_to_nothing_is_ignored() -> None:
    calibration = Calibration()
    calibration.reported(reports(0, [0], [1.0], [1.0]))
    calibration.placed(1, 0, MeshSize(dp=1), np.array([[1.0, 2.0, 3.0]]))
    calibration.reported(reports(0, [0], [1.0], [1.0], session=2))
    calibration.reported(reports(5, [0], [1.0], [1.0]))
    calibration.reported(reports(0, [7], [1.0], [1.0]))
    assert calibration.to_message(None).steps == 0


def test_steps_that_nobody_reports_are_forgotten() -> None:
    calibration = Calibration()
    for step in range(KEPT_STEPS + 1):
        calibration.placed(1, step, MeshSize(dp=1), np.array([[1.0]]))
    for step in (0, 1):
        calibration.reported(reports(step, [0], [1.0], [1.0]))
    assert calibration.to_message(None).steps == 1


def test_another_mesh_begins_a_new_fit() -> None:
    calibration = Calibration()
    feed(calibration, range(40))
    calibration.placed(2, 40, MeshSize(dp=2), work_of(40, dp=2))
    assert calibration.to_message(None).steps == 0
    assert calibration.proposal(None) is None


def test_factors_hold_from_their_step_on() -> None:
    store = MemoryStore()
    entries = [Factors(4, (1.0, 2.0), 0.01), Factors(9, (1.0, 3.0), 0.02), Factors(9, (), 0.0)]
    fence = store.acquire("planner", "p", 10.0)
    assert fence is not None
    for number, entry in enumerate(entries):
        store.append(factors_log(7), number, entry.to_json(), fence=fence.token)
    read = read_factors(store, 7)
    assert read == tuple(entries)
    assert factors_at(read, 3) is None
    assert factors_at(read, 4) == factors_at(read, 8) == entries[0]
    assert factors_at(read, 9) == entries[2]
    assert read_factors(store, 6) == ()
