import numpy as np
import pytest

from dataloader_balancers.calibrate import fit_seconds


def work_of(rows, seed=0):
    """Two parts and an encoder, of different spread, as sequences that are not full have."""
    rng = np.random.default_rng(seed)
    return np.stack(
        [rng.uniform(50, 150, rows), rng.lognormal(3, 0.8, rows), rng.integers(0, 100, rows)], axis=1
    )


TRUE = np.array([2e-3, 7e-3, 1e-3])


def noisy(seconds, share, seed=1):
    return seconds * np.exp(np.random.default_rng(seed).normal(0, share, len(seconds)))


def test_exact_times_give_the_true_coefficients():
    work = work_of(200)
    fit = fit_seconds(work, 0.1 + work @ TRUE)
    assert fit.fixed == pytest.approx(0.1, rel=0.02)
    assert fit.per_unit == pytest.approx(TRUE, rel=0.01)
    assert fit.error < 1e-3
    assert fit.rows == 200


def test_noise_of_three_percent_costs_a_few_percent():
    work = work_of(800)
    fit = fit_seconds(work, noisy(0.1 + work @ TRUE, 0.03))
    assert fit.per_unit == pytest.approx(TRUE, rel=0.06)
    assert 0.01 < fit.error < 0.03  # the median of |normal| with 3 % is 2 %


@pytest.mark.parametrize("factor", [10.0, 0.05])
def test_a_tenth_of_the_times_may_be_anything(factor):
    work = work_of(800)
    seconds = noisy(0.1 + work @ TRUE, 0.02)
    seconds[::10] *= factor
    fit = fit_seconds(work, seconds)
    assert fit.per_unit == pytest.approx(TRUE, rel=0.1)
    assert fit.outliers >= 0.1
    # Least squares would have been led away.
    columns = np.hstack([np.ones((800, 1)), work])
    plain = np.linalg.lstsq(columns, seconds, rcond=None)[0][1:]
    assert np.abs(plain / TRUE - 1).max() > 0.15


def test_what_the_times_do_not_tell_is_as_the_model_says():
    """All ranks have as many tokens, always: nothing tells matrices from what is fixed."""
    rng = np.random.default_rng(0)
    work = np.stack([np.full(300, 100.0), rng.uniform(5, 50, 300)], axis=1)
    fit = fit_seconds(work, work @ [2e-3, 8e-3])
    assert fit.per_unit[1] == pytest.approx(8e-3, rel=0.02)
    assert fit.predict(work) == pytest.approx(work @ [2e-3, 8e-3], rel=1e-3)


def test_a_part_that_nobody_had_goes_at_the_speed_of_the_rest():
    work = np.stack([np.linspace(50, 150, 100), np.zeros(100)], axis=1)
    fit = fit_seconds(work, work[:, 0] * 3e-3)
    assert fit.per_unit == pytest.approx([3e-3, 3e-3], rel=0.01)


def test_no_work_makes_a_step_faster():
    work = work_of(200)
    fit = fit_seconds(work, 1.0 + work @ [2e-3, -1e-3, 0.0])
    assert min(fit.fixed, *fit.per_unit) >= 0


def test_one_time_is_enough_for_an_answer():
    fit = fit_seconds([[100.0, 10.0]], [1.1])
    assert fit.predict([[100.0, 10.0]])[0] == pytest.approx(1.1, rel=0.01)
    assert fit.per_unit[0] == pytest.approx(fit.per_unit[1], rel=0.2)


@pytest.mark.parametrize(
    ("work", "seconds", "message"),
    [
        (np.ones((2, 1)), [1.0], "do not fit"),
        (np.ones((0, 1)), [], "no times"),
        ([[-1.0]], [1.0], "work must be"),
        ([[np.inf]], [1.0], "work must be"),
        ([[1.0]], [0.0], "seconds must be"),
        ([[1.0]], [np.nan], "seconds must be"),
    ],
)
def test_what_is_no_measurement(work, seconds, message):
    with pytest.raises(ValueError, match=message):
        fit_seconds(work, seconds)
