"""Encoder work that stays with its tokens while that is level, and leaves for the nearest rank with room."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader_balancers.assign import near_home

NODES = np.arange(8) // 4


def loads(costs, rank, num_ranks):
    return np.bincount(rank, costs, num_ranks)


def test_nothing_moves_while_all_are_within_the_tolerance():
    costs, home = np.full(40, 1.0), np.arange(40) % 4
    assert near_home(costs, home, 4).tolist() == home.tolist()
    costs[0] = 1.4  # of one rank that has 10.4 then, a mean of 10.1
    assert near_home(costs, home, 4).tolist() == home.tolist()


def test_only_what_is_above_the_share_leaves():
    costs = np.full(40, 1.0)
    home = np.repeat([0, 1, 2, 3], [16, 8, 8, 8])
    rank = near_home(costs, home, 4)
    assert loads(costs, rank, 4).tolist() == [10, 10, 10, 10]
    assert np.count_nonzero(rank != home) == 6


def test_a_dear_item_stays_where_it_is_and_others_make_room():
    """It takes as long anywhere: what shares its rank goes instead."""
    rank = near_home([9.0, 1.0, 1.0, 1.0], [0, 0, 1, 2], 3)
    assert rank.tolist()[0] == 0
    assert rank.tolist()[1] != 0


def test_work_leaves_its_node_only_where_the_node_is_full():
    costs = np.ones(32)
    home = np.repeat(np.arange(8), [8, 4, 2, 2, 8, 4, 2, 2])
    rank = near_home(costs, home, 8, nodes=NODES)
    assert loads(costs, rank, 8).tolist() == [4] * 8
    assert (NODES[rank] == NODES[home]).all()
    full = np.repeat([0, 1, 4], [12, 12, 8])  # 24 of 32 on a node that has room for 16
    rank = near_home(costs, full, 8, nodes=NODES)
    assert loads(costs, rank, 8).tolist() == [4] * 8
    assert np.count_nonzero(NODES[rank] != NODES[full]) == 8


def test_the_ranks_of_a_home_share_its_work():
    costs, home = np.array([4.0, 3.0, 2.0, 1.0, 5.0, 5.0]), np.array([0, 0, 0, 0, 1, 1])
    rank = near_home(costs, home, 4, home_size=2)
    assert loads(costs, rank, 4).tolist() == [5.0] * 4
    assert (rank // 2 == home).all()


def test_ranks_that_are_not_alike_get_work_by_their_speed():
    costs, home = np.ones(40), np.zeros(40, int)
    rank = near_home(costs, home, 4, speeds=[1, 2, 0, 1])
    assert loads(costs, rank, 4).tolist() == [10, 20, 0, 10]
    rank = near_home(np.zeros(3), [0, 1, 2], 3, speeds=[1, 0, 0])
    assert rank.tolist() == [0, 0, 0]


@settings(deadline=None, max_examples=200)
@given(
    data=st.data(),
    homes=st.integers(1, 6),
    size=st.integers(1, 3),
    count=st.integers(0, 40),
    tolerance=st.sampled_from([0.0, 0.05, 0.5]),
)
def test_any_work_is_done_once_by_a_rank_that_may_and_the_slowest_is_bounded(
    data, homes, size, count, tolerance
):
    """Beside the definition: whole numbers, so sums are exact."""
    costs = np.array(data.draw(st.lists(st.integers(0, 20), min_size=count, max_size=count)), float)
    home = np.array(data.draw(st.lists(st.integers(0, homes - 1), min_size=count, max_size=count)), int)
    ranks = homes * size
    nodes = np.repeat(data.draw(st.lists(st.integers(0, 2), min_size=homes, max_size=homes)), size)
    rank = near_home(costs, home, ranks, home_size=size, nodes=nodes, tolerance=tolerance)
    assert rank.shape == (count,)
    assert ((rank >= 0) & (rank < ranks)).all()
    total, dearest = costs.sum(), costs.max(initial=0)
    allowed = max(total / ranks * (1 + tolerance), dearest)
    assert loads(costs, rank, ranks).max() <= max(allowed, total / ranks + dearest) + 1e-9
    if size == 1 and loads(costs, home, ranks).max() <= allowed:
        assert (rank == home).all()
    again = near_home(costs, home, ranks, home_size=size, nodes=nodes, tolerance=tolerance)
    assert again.tolist() == rank.tolist()


@settings(deadline=None, max_examples=100)
@given(data=st.data(), ranks=st.integers(1, 6), count=st.integers(1, 30))
def test_a_rank_at_zero_gets_nothing(data, ranks, count):
    speeds = data.draw(st.lists(st.sampled_from([0, 1, 1, 3]), min_size=ranks, max_size=ranks))
    speeds[0] = 1
    costs = data.draw(st.lists(st.integers(0, 20), min_size=count, max_size=count))
    home = data.draw(st.lists(st.integers(0, ranks - 1), min_size=count, max_size=count))
    rank = near_home(costs, home, ranks, speeds=speeds)
    assert all(speeds[r] > 0 for r in rank.tolist())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"home": [0, 9]}, "item 1 has home 9; 0 to 3"),
        ({"home": [0]}, r"home has shape \(1,\) for 2 items"),
        ({"home_size": 3}, "homes of 3 ranks do not divide 4 ranks"),
        ({"nodes": [0, 0]}, r"nodes has shape \(2,\) for 4 ranks"),
        ({"speeds": [0, 0, 0, 0]}, "one of them above"),
        ({"tolerance": float("nan")}, "tolerance is nan; from 0"),
    ],
)
def test_what_is_wrong_is_named(change, says):
    with pytest.raises(ValueError, match=says):
        near_home(**{"costs": [1.0, 2.0], "home": [0, 1], "num_ranks": 4} | change)


def test_costs_that_are_none_are_refused():
    with pytest.raises(ValueError, match="cost"):
        near_home([1.0, float("nan")], [0, 0], 2)
