import json

import numpy as np
import pytest

from dataloader_balancers import LlmCost
from dataloader_balancers.calibrate import Calibrator

COST = LlmCost.preset("qwen3-30b-a3b")
TRUE = np.array([3e-6, 9e-6, 8e-6])
FIXED = 0.2


def step(rng, num_ranks):
    """Work of a step: documents of up to 128K tokens, and pictures."""
    rows = []
    for _ in range(num_ranks):
        lengths = np.clip(rng.lognormal(7, 1.6, 32), 16, 131_072)
        rows.append([*COST.parts(lengths).sum(axis=0), float(rng.integers(0, 60_000))])
    return np.array(rows)


def times(work, rng, noise=0.02):
    return (FIXED + work @ TRUE) * np.exp(rng.normal(0, noise, len(work)))


def run(calibrator, steps, *, seed=0, own=True, change=lambda seconds: seconds):
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        work = step(rng, calibrator.num_ranks)
        seconds = change(times(work, rng))
        if own:
            calibrator.observe_own(work, seconds)
        else:
            calibrator.observe_step(work, float(seconds.max()))
    return calibrator


@pytest.mark.parametrize("num_ranks", [1, 4, 64])
def test_own_times_give_the_true_coefficients(num_ranks):
    calibrator = run(Calibrator(num_ranks, 3), 300 if num_ranks == 1 else 80)
    assert calibrator.fit.per_unit == pytest.approx(TRUE, rel=0.06)
    assert calibrator.fit.error < 0.02
    assert calibrator.drifts == 0
    assert calibrator.ranks.factors() == {}


@pytest.mark.parametrize("num_ranks", [2, 8])
def test_times_of_whole_steps_do_too_though_nobody_says_who_was_waited_for(num_ranks):
    calibrator = run(Calibrator(num_ranks, 3), 400, own=False)
    # The rank that is waited for is the one with long documents: attention is what such times tell of.
    assert calibrator.fit.per_unit[1] == pytest.approx(TRUE[1], rel=0.03)
    work = step(np.random.default_rng(9), num_ranks)
    dearest = (FIXED + work @ TRUE).max()
    assert calibrator.fit.predict(work).max() == pytest.approx(dearest, rel=0.05)
    assert calibrator.fit.error < 0.02


def test_there_is_no_fit_before_there_is_something_to_fit():
    calibrator = run(Calibrator(4, 3, least=32), 7)
    assert calibrator.fit is None
    assert run(Calibrator(4, 3, least=32), 8).fit is not None


def test_a_slow_rank_is_named_and_does_not_spoil_the_fit():
    slow = np.array([1.0, 1.0, 1.5, 1.0])
    calibrator = run(Calibrator(4, 3), 150, change=lambda seconds: seconds * slow)
    assert list(calibrator.ranks.factors()) == [2]
    assert calibrator.ranks.factors()[2] == pytest.approx(1.5, rel=0.05)
    assert calibrator.fit.per_unit == pytest.approx(TRUE, rel=0.1)


def test_hardware_that_changed_is_noticed_and_fitted_anew():
    calibrator = run(Calibrator(4, 3), 60)
    run(calibrator, 60, seed=1, change=lambda seconds: 1.3 * seconds)
    assert calibrator.drifts == 1
    work = step(np.random.default_rng(9), 4)
    assert calibrator.fit.predict(work) == pytest.approx(1.3 * (FIXED + work @ TRUE), rel=0.03)


@pytest.mark.parametrize("own", [True, False])
def test_silence_and_nonsense_are_no_times(own):
    calibrator = Calibrator(3, 3)
    work = step(np.random.default_rng(0), 3)
    for value in (np.nan, np.inf, -1.0, 0.0):
        if own:
            calibrator.observe_own(work, np.full(3, value))
        else:
            calibrator.observe_step(work, value)
    assert calibrator.steps == 0


def test_ranks_that_report_are_enough():
    def silent(seconds):
        seconds[1:] = np.nan
        return seconds

    calibrator = run(Calibrator(4, 3), 300, change=silent)
    assert calibrator.fit.per_unit == pytest.approx(TRUE, rel=0.08)


def test_history_is_bounded():
    calibrator = run(Calibrator(64, 3, capacity=100), 30)
    assert len(calibrator.to_dict()["history"]) == 100


@pytest.mark.parametrize("own", [True, False])
def test_it_goes_on_from_its_state_as_it_would_have(own):
    one = run(Calibrator(4, 3), 45, own=own)
    other = Calibrator.from_dict(json.loads(json.dumps(one.to_dict())))
    for calibrator in (one, other):
        run(calibrator, 21, seed=5, own=own)
    assert one.to_dict() == other.to_dict()


def test_what_does_not_fit_is_refused():
    calibrator = Calibrator(2, 3)
    with pytest.raises(ValueError, match=r"work has shape \(3, 3\); expected \(2, 3\)"):
        calibrator.observe_own(np.ones((3, 3)), np.ones(2))
    with pytest.raises(ValueError, match=r"seconds has shape \(3,\)"):
        calibrator.observe_own(np.ones((2, 3)), np.ones(3))
    with pytest.raises(ValueError, match="work must be finite"):
        calibrator.observe_step(np.full((2, 3), np.nan), 1.0)
    with pytest.raises(ValueError, match="at least 1"):
        Calibrator(0, 3)
