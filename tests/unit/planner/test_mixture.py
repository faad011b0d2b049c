"""Weights by step against the schedule as written, and their sums ahead against adding them up."""

from __future__ import annotations

import numpy as np
import pytest

from dataloader_svc.config.schema import MixtureStep
from dataloader_svc.planner.mixture import Schedule

NAMES = ("a", "b", "c")


def schedule(*entries: dict) -> Schedule:
    return Schedule.of([MixtureStep.model_validate(entry) for entry in entries], NAMES)


RAMP = schedule(
    {"step": 0, "a": 3, "b": 1},
    {"step": 10, "b": 2, "c": 2, "ramp": "linear"},
    {"step": 14, "a": 1},
)


@pytest.mark.parametrize(
    ("step", "weights"),
    [
        (0, [0.75, 0.25, 0]),
        (4, [0.45, 0.35, 0.2]),  # 4/10 of the way, weights normalised before they are mixed
        (9, [0.075, 0.475, 0.45]),
        (10, [0, 0.5, 0.5]),
        (13, [0, 0.5, 0.5]),
        (14, [1, 0, 0]),
        (999, [1, 0, 0]),
    ],
)
def test_weights_of_a_step(step, weights):
    assert RAMP.weights(step) == pytest.approx(weights)


def test_what_is_gone_is_shared_in_proportion():
    gone = np.array([False, False, True])
    assert RAMP.weights(4, gone) == pytest.approx([0.45 / 0.8, 0.35 / 0.8, 0])


def test_where_all_that_remain_have_no_weight_the_next_entry_that_gives_one_counts():
    only_a = np.array([False, True, True])
    assert RAMP.weights(11, only_a) == pytest.approx([1, 0, 0])
    assert RAMP.weights(11, np.array([True, True, True])) == pytest.approx([0, 0, 0])


@pytest.mark.parametrize("step", [0, 3, 9, 10, 12, 14, 20])
def test_sums_ahead_are_the_weights_added_up(step):
    ahead = RAMP.ahead(step, np.zeros(3, bool))
    assert ahead.steps[0] == 0
    for offset, integral in zip(ahead.steps.tolist(), ahead.integral, strict=True):
        added = sum((RAMP.weights(step + i) for i in range(offset)), np.zeros(3))
        assert integral == pytest.approx(added)
    assert ahead.slope == pytest.approx(RAMP.weights(step + int(ahead.steps[-1])))


def test_weights_that_stay_are_one_part():
    assert RAMP.ahead(14, np.zeros(3, bool)).steps.tolist() == [0]
    far = schedule({"step": 0, "a": 1}, {"step": 100_000, "b": 1})
    assert far.ahead(0, np.zeros(3, bool)).steps.tolist() == [0]
    assert len(far.ahead(99_990, np.zeros(3, bool)).steps) > 1
