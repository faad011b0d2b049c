"""Sequences on ranks of their own number: examples by hand, and how near the floor real lengths come."""

import numpy as np
import pytest

from dataloader_balancers import LlmCost, hybrid, imbalance, loads
from dataloader_balancers.assign import assign

LINEAR = LlmCost(1.0, 0.0)
COST = LlmCost(24576.0, 1.0)


def long_tail(seed, count, longest=200_000):
    return np.clip(np.random.default_rng(seed).lognormal(6.5, 1.9, count), 1, longest).astype(np.int64)


def test_a_long_sequence_gets_the_ranks_that_hold_it():
    plan = hybrid([20, 8, 8, 3, 1], 4, 8, LINEAR, mode="equal_tokens")
    assert plan.num_ranks.tolist() == [3, 1, 1, 1, 1]
    assert plan.first_rank.tolist() == [0, 3, 0, 1, 2]
    assert plan.tokens.tolist() == [15, 10, 8, 8]
    assert [[items.tolist() for items in plan.of_rank(rank)] for rank in range(4)] == [
        [[0], [2]],
        [[0], [3]],
        [[0], [4]],
        [[1]],
    ]
    assert plan.num_microbatches.tolist() == [2, 2, 2, 1]


def test_whole_sequences_share_microbatches_up_to_the_capacity():
    plan = hybrid([5, 4, 3, 3, 1], 1, 8, LINEAR)
    assert [items.tolist() for items in plan.of_rank(0)] == [[0, 2], [1, 3, 4]]
    assert plan.time == plan.floor == 16.0
    assert plan.gap == 0.0


def test_equal_time_widens_what_is_dear_though_it_would_fit_a_rank():
    square = LlmCost(0.0, 1.0)
    lengths = [8, 2, 2, 2, 2]
    assert hybrid(lengths, 4, 8, square, mode="equal_tokens").time == 64.0
    plan = hybrid(lengths, 4, 8, square, mode="equal_time")
    assert plan.num_ranks[0] == 4
    assert plan.time == plan.floor == 20.0


def test_what_the_ring_costs_keeps_groups_small():
    square = LlmCost(0.0, 1.0)
    plan = hybrid([8, 2, 2, 2, 2], 4, 8, square, ring=100.0)
    assert plan.num_ranks[0] == 1  # receiving 6 tokens takes ten times as long as it spares
    assert plan.time == 64.0


def test_a_group_that_fits_a_node_lies_in_one_and_a_larger_one_begins_at_one():
    plan = hybrid([24, 24, 24, 24, 88], 16, 8, LINEAR, mode="equal_tokens", ranks_per_node=4)
    assert plan.num_ranks.tolist() == [3, 3, 3, 3, 11]
    assert plan.first_rank[4] == 0
    assert plan.first_rank.tolist()[:2] == [12, 0]
    nodes = [(first // 4, (first + 2) // 4) for first in plan.first_rank.tolist()[:4]]
    assert all(low == high for low, high in nodes)


def test_the_ring_of_a_group_is_in_global_ranks():
    plan = hybrid([8, 24], 4, 8, LINEAR, mode="equal_tokens")
    assert plan.first_rank.tolist() == [3, 0]
    assert [plan.ring(1, rank) for rank in range(3)] == [(1, 2), (2, 0), (0, 1)]
    assert plan.ring(0, 3) == (3, 3)
    with pytest.raises(ValueError, match="rank 3 has no part in sequence 1, which is on 0 to 2"):
        plan.ring(1, 3)


def test_a_sequence_is_cut_over_its_group_within_the_capacity():
    plan = hybrid([23], 4, 8, LINEAR, mode="equal_tokens")
    parts = plan.cut(0)
    assert [len(part) for part in parts] == [8, 8, 7]
    assert sorted(np.concatenate(parts).tolist()) == list(range(23))


@pytest.mark.parametrize("seed", range(4))
def test_real_lengths_end_at_the_floor(seed):
    """64 ranks of 8 sequences: whole, the dearest is the floor, several times the mean."""
    lengths = long_tail(seed, 512)
    plan = hybrid(lengths, 64, 32_768, COST, ranks_per_node=8)
    whole = COST.of_documents(lengths)
    assert imbalance(loads(whole, assign("lpt", whole, 64), 64)) > 2.0
    assert plan.gap <= 0.01
    assert hybrid(lengths, 64, 32_768, COST, mode="equal_tokens").gap > plan.gap


def test_equal_tokens_are_equal_but_for_waiting():
    plan = hybrid(long_tail(5, 4096, 32_768), 64, 8192, COST, mode="equal_tokens")
    assert plan.tokens.max() / plan.tokens.mean() <= 1.03


def test_costs_may_be_given_where_sequences_are_packed():
    assert hybrid([8, 2, 2], 2, 8, [64.0, 4.0, 4.0]).time == hybrid([8, 2, 2], 2, 8, LlmCost(0.0, 1.0)).time
    assert hybrid([8, 8, 8], 2, 8, [30.0, 1.0, 29.0]).num_ranks.tolist() == [1, 1, 1]


def test_nothing_to_do():
    plan = hybrid([], 4, 8, LINEAR)
    assert (plan.time, plan.gap, plan.floor) == (0.0, 0.0, 0.0)
    assert plan.num_microbatches.tolist() == [0, 0, 0, 0]
    assert plan.of_rank(2) == ()


def test_free_sequences_are_spread():
    plan = hybrid([1] * 8, 4, 8, LlmCost(0.0, 0.0))
    assert np.bincount(plan.first_rank, minlength=4).tolist() == [2, 2, 2, 2]


def test_one_of_a_million_tokens_and_a_million_of_one():
    assert hybrid([1_000_000], 128, 8192, COST).gap <= 1e-9
    equal = hybrid(np.ones(100_000, np.int64), 64, 8192, COST)
    assert equal.end.max() / equal.end.min() <= 1563 / 1562 + 1e-9


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"lengths": [3, 0]}, "sequence 1 has 0 tokens; allowed are 1 to 32"),
        ({"lengths": [3, -4]}, "sequence 1 has -4"),
        ({"lengths": [33]}, "what 4 ranks of 8 hold: it needs 5 ranks, or a larger capacity"),
        ({"lengths": [1.5]}, "float64"),
        ({"lengths": [[1]]}, r"shape \(1, 1\)"),
        ({"num_ranks": 0}, "num_ranks is 0"),
        ({"capacity": 0}, "capacity 0"),
        ({"ranks_per_node": 3}, "4 ranks are no whole number of nodes of 3"),
        ({"ranks_per_node": 0}, "nodes of 0"),
        ({"ring": float("inf")}, "ring is inf"),
        ({"cost": [1.0]}, r"costs have shape \(1,\) for 2 sequences"),
        ({"cost": [1.0, float("nan")]}, "sequence 1 costs nan"),
        ({"mode": "fair"}, "unknown mode 'fair'; known: equal_time, equal_tokens"),
    ],
)
def test_impossible_arguments_are_named(arguments, found):
    with pytest.raises(ValueError, match=found):
        hybrid(**{"lengths": [1, 2], "num_ranks": 4, "capacity": 8, "cost": LINEAR} | arguments)
