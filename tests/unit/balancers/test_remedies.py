"""Which remedy pays most, on steps where the answer is plain."""

import numpy as np
import pytest

from dataloader_balancers import floor, remedies


def named(found):
    return {each.name: each for each in found}


def test_a_balanced_step_needs_none():
    assert remedies([1.0] * 8, 4) == ()
    assert remedies([], 4) == ()
    assert remedies([0.0, 0.0], 4) == ()


def test_one_dear_item_is_cut():
    costs = [12.0, *[1.0] * 12]
    best = remedies(costs, 4)[0]
    assert best.name == "cut"
    assert (best.items.tolist(), best.ranks.tolist()) == ([0], [2])
    assert best.time == 6.0
    assert best.gain == pytest.approx(0.5)


def test_a_cut_that_costs_more_is_worth_less():
    costs = [12.0, *[1.0] * 12]
    assert remedies(costs, 4, cut_overhead=0.5)[0].time == 7.5
    assert remedies(costs, 4, max_cut=1) == ()


def test_many_middling_items_are_cut_though_none_is_above_the_mean_by_much():
    best = remedies([7.0] * 9, 8)[0]  # one rank has two: the crowd binds
    assert (best.name, len(best.items)) == ("cut", 9)
    assert best.time < 9.0


def test_microbatches_that_are_unequal_are_balanced_together():
    """Each microbatch has one dear item: on ranks of their own they are no harm."""
    costs = [8.0, 1, 1, 1, 8.0, 1, 1, 1, 8.0, 1, 1, 1, 8.0, 1, 1, 1]
    best = remedies(costs, 4, microbatch=np.repeat(np.arange(4), 4), max_cut=1)[0]
    assert best.name == "widen"
    assert best.time == 11.0  # in place of 4 x 8
    assert best.keeps_set


def test_equal_counts_are_given_up_where_they_bind():
    found = remedies([9.0, 3, 3, 3, 3, 3], 3, per_rank=2, max_cut=1)
    assert [each.name for each in found] == ["unequal"]
    assert found[0].time == 9.0
    assert found[0].gain == pytest.approx(0.25)


def test_waiting_is_for_relaxed_mode_and_says_how_long():
    costs = [12.0, *[1.0] * 12]
    assert "wait" not in named(remedies(costs, 4))
    wait = named(remedies(costs, 4, strict=False))["wait"]
    # Two steps without it take 3; the third has three of 12 on four ranks, and the 12 of 1.
    assert wait.steps == 3
    assert wait.time == (2 * 3.0 + 12.0) / 3
    assert wait.mean_age == pytest.approx(0.5 * 1.0)
    assert not wait.keeps_set
    assert named(remedies(costs, 4, strict=False, max_age=1))["wait"].steps == 2
    assert "wait" not in named(remedies(costs, 4, strict=False, max_age=0))


def test_long_tailed_samples_of_eight_a_rank_are_mended_by_a_cut():
    lengths = np.clip(np.random.default_rng(0).lognormal(6.5, 1.4, 512), 1, 32_768)
    costs = 24_576 * lengths + lengths**2
    assert floor(costs, 64).binding == "item"
    found = remedies(costs, 64, strict=False)
    assert found[0].name == "cut"
    assert found[0].time <= 1.01 * costs.sum() / 64
    assert set(named(found)) == {"cut", "wait"}


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"max_cut": 0}, "max_cut is 0"),
        ({"max_age": -1}, "max_age -1"),
        ({"cut_overhead": float("nan")}, "cut_overhead nan"),
        ({"microbatch": [0]}, r"\(1,\) microbatches for costs of shape \(2,\)"),
        ({"microbatch": [0, -1]}, "item 1 is in microbatch -1"),
        ({"costs": [1.0, -1.0]}, "item 1 is -1"),
        ({"num_ranks": 0}, "num_ranks is 0"),
        ({"per_rank": 0}, "no rank holds more than 0"),
    ],
)
def test_impossible_arguments_are_named(arguments, found):
    with pytest.raises(ValueError, match=found):
        remedies(**{"costs": [1.0, 2.0], "num_ranks": 2} | arguments)
