import numpy as np
import pytest

from dataloader_balancers.calibrate import Cusum, SlowRanks


def steps_until_alarm(shift, limit=10_000, seed=0):
    rng, cusum = np.random.default_rng(seed), Cusum()
    for step in range(limit):
        if cusum.add(shift + rng.normal()):
            return step + 1
    return None


def test_noise_raises_no_alarm():
    assert steps_until_alarm(0.0) is None


@pytest.mark.parametrize("shift", [3.0, -3.0])
def test_a_shift_of_three_deviations_is_found_in_a_dozen_steps(shift):
    assert all(steps_until_alarm(shift, seed=seed) <= 12 for seed in range(20))


def test_one_wild_step_is_no_shift():
    cusum = Cusum()
    assert not any(cusum.add(residual) for residual in [0.0, 1e9, 0.0, 0.0, -1e9, 0.0])


def test_after_an_alarm_it_starts_afresh():
    cusum = Cusum()
    alarms = [cusum.add(3.0) for _ in range(12)]
    assert alarms == [False] * 5 + [True] + [False] * 5 + [True]


def observed(ranks, steps, factor, slow, *, first=0, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(first, steps):
        ratio = rng.normal(0, 0.02, ranks.num_ranks)
        ratio[slow] += np.log(factor)
        ranks.add(ratio, 0.02)


@pytest.mark.parametrize("num_ranks", [2, 3, 8, 512])
def test_the_slow_rank_is_named_with_its_factor(num_ranks):
    ranks = SlowRanks(num_ranks)
    observed(ranks, 40, 1.4, 1)
    assert list(ranks.factors()) == [1]
    # Of two ranks nobody knows which of them is the usual one: the middle lies between them.
    expected = 1.4**0.5 if num_ranks == 2 else 1.4
    assert ranks.factors()[1] == pytest.approx(expected, rel=0.05)


def test_the_slowest_comes_first():
    ranks = SlowRanks(8)
    for _ in range(30):
        ranks.add(np.log([1, 1.2, 1, 1, 1, 2.0, 1, 1]), 0.02)
    assert list(ranks.factors()) == [5, 1]


def test_a_rank_that_is_well_again_is_forgotten():
    ranks = SlowRanks(8)
    observed(ranks, 20, 1.5, 3)
    assert list(ranks.factors()) == [3]
    observed(ranks, 20, 1.0, 3)
    assert ranks.factors() == {}


def test_what_all_share_is_no_ranks_own():
    ranks = SlowRanks(4)
    for _ in range(50):
        ranks.add(np.full(4, np.log(2.0)), 0.01)
    assert ranks.factors() == {}


def test_ranks_that_say_nothing_are_not_judged():
    ranks = SlowRanks(3)
    for _ in range(50):
        ranks.add([np.nan, 0.5, np.nan], 0.01)  # alone: no one to hold it against
        ranks.add([np.nan, 0.0, 0.5], 0.01)
    assert list(ranks.factors()) == [2]


def test_state_is_kept():
    one = SlowRanks(5)
    observed(one, 7, 1.3, 2)
    other = SlowRanks.from_dict(one.to_dict())
    for ranks in (one, other):
        observed(ranks, 9, 1.3, 2, seed=4)
    assert one.factors() == other.factors() != {}
