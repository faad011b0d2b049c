"""The floor by hand: each reason that can bind it."""

import numpy as np
import pytest

from dataloader_balancers import Floor, floor, gap, imbalance, judge, loads, step_floor


def test_equal_shares_bind_where_no_item_is_dear():
    assert floor([3, 3, 2, 2, 2, 2], 2) == Floor(7.0, "mean", 0)
    assert floor([5, 5], 2).binding == "mean"


def test_an_item_dearer_than_a_share_binds_and_is_named():
    bound = floor([1, 2, 9, 2], 4)
    assert bound == Floor(9.0, "item", 2)
    assert bound.imbalance(mean=14 / 4) == pytest.approx(36 / 14)


def test_more_dear_items_than_ranks_bind():
    assert floor([3, 3, 3, 3, 2], 2) == Floor(8.0, "crowd", 0)  # one rank has three: at least 3 + 3 + 2
    assert floor([7] * 9, 8) == Floor(14.0, "crowd", 0)


def test_equal_counts_bind_the_rank_of_the_dearest():
    assert floor([6, 2, 2, 2], 2).value == 6
    assert floor([6, 2, 2, 2], 2, per_rank=2) == Floor(8.0, "caps", 0)
    assert floor([6, 2, 2], 2, per_rank=2).value == 6  # it may be alone


def test_tokens_that_others_cannot_hold_bind():
    costs, tokens = [9.0, 4.0, 2.0], [2, 4, 4]
    assert floor(costs, 2).value == 9
    # 10 tokens, and the other holds 6: beside the dearest's 2 there are at least 2 more, half of the last
    assert floor(costs, 2, weights=tokens, capacity=6) == Floor(10.0, "caps", 0)
    assert floor(costs, 2, weights=tokens, capacity=[6, 8]).value == 9


def test_slow_ranks_share_less():
    assert floor([4, 4, 4], 2, speeds=[2, 1]) == Floor(4.0, "mean", 0)
    assert floor([9, 1], 2, speeds=[2, 1]) == Floor(4.5, "item", 0)
    # two items keep two ranks busy at most: 12 at a speed of 3, whatever else there is
    assert floor([6, 6], 3, speeds=[2, 1, 1]) == Floor(4.0, "crowd", 0)
    assert floor([6, 6], 2, speeds=[1, 0]).value == 12


def test_a_rank_without_speed_holds_nothing():
    assert floor([3, 3], 2, speeds=[0, 1], per_rank=2).value == 6
    with pytest.raises(ValueError, match="2 items do not fit 2 ranks, which hold 1"):
        floor([3, 3], 2, speeds=[0, 1], per_rank=1)
    with pytest.raises(ValueError, match="2 items for ranks that all have speed 0"):
        floor([3, 3], 2, speeds=[0, 0])


def test_two_phases_follow_each_other():
    bound = step_floor([6, 2, 2, 2], [0, 4, 4], 2, per_rank=2)
    assert (bound.llm.binding, bound.encoder.binding) == ("caps", "mean")
    assert bound.value == 8 + 4
    assert bound.gap([8, 4], [4, 4]) == 0.0
    assert bound.gap([8, 4], [8, 0]) == pytest.approx(4 / 12)
    assert step_floor([], [], 2).gap([0, 0], [0, 0]) == 0.0


def test_a_placement_is_judged_by_its_loads():
    judged = judge([4.0, 3.0, 2.0], [0, 0, 1], 2)
    assert judged.load.tolist() == [7, 2]
    assert judged.imbalance == pytest.approx(14 / 9)
    assert judged.gap == pytest.approx(7 / 5 - 1)  # the dearest two of three: 3 + 2
    assert judged.floor.binding == "crowd"
    timed = judge([4.0, 3.0, 2.0], [0, 1, 1], 2, speeds=[2.0, 1.0])
    assert timed.load.tolist() == [2, 5]
    with pytest.raises(ValueError, match="rank 1 has speed 0, and work that costs 3"):
        judge([4.0, 3.0], [0, 1], 2, speeds=[2.0, 0.0])


def test_nothing_to_do_has_no_gap():
    bound = floor([], 4)
    assert bound == Floor(0.0, "mean", -1)
    assert bound.imbalance(0.0) == 1.0
    assert imbalance([0.0, 0.0]) == imbalance([]) == 1.0
    assert gap([0.0, 0.0], bound) == 0.0
    assert floor([0.0, 0.0], 4) == Floor(0.0, "mean", 0)


def test_gap_and_imbalance_of_a_placement():
    costs, rank = [4.0, 3.0, 2.0], [0, 1, 2]
    held = loads(costs, rank, 4)
    assert held.tolist() == [4, 3, 2, 0]
    assert imbalance(held) == pytest.approx(16 / 9)
    assert gap(held, floor(costs, 4)) == 0.0
    assert gap(loads(costs, [0, 0, 1], 4), floor(costs, 4)) == pytest.approx(0.75)


def test_a_million_items_have_a_floor():
    costs = np.random.default_rng(0).lognormal(7, 1, 1_000_000)
    bound = floor(costs, 12_288, per_rank=100)
    assert bound.value == pytest.approx(costs.sum() / 12_288)
    assert bound.binding == "mean"
    costs[77] = 1e6
    assert floor(costs, 12_288, per_rank=1000) == Floor(1e6, "item", 77)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"num_ranks": 0}, "num_ranks is 0"),
        ({"costs": [1.0, np.nan]}, "item 1 is nan"),
        ({"costs": [np.inf]}, "item 0 is inf"),
        ({"costs": [1.0, -2.0]}, "item 1 is -2"),
        ({"costs": [[1.0]]}, r"shape \(1, 1\)"),
        ({"speeds": [1.0]}, "1 speeds for 2 ranks"),
        ({"speeds": [1.0, -1.0]}, "speed of rank 1 is -1"),
        ({"weights": [1, 2]}, "weights and capacity belong together"),
        ({"weights": [1], "capacity": 3}, "1 weights for 2 items"),
        ({"weights": [1, 9], "capacity": 3}, "item 1 has weight 9; no rank holds more than 3"),
        ({"weights": [1, -1], "capacity": 3}, "weight of item 1 is -1"),
        ({"per_rank": 0}, "item 0 has items 1; no rank holds more than 0"),
    ],
)
def test_what_cannot_be_is_named(arguments, found):
    with pytest.raises(ValueError, match=found):
        floor(**{"costs": [1.0, 2.0], "num_ranks": 2} | arguments)
