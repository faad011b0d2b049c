import numpy as np
import pytest

from dataloader_balancers import BALANCERS, imbalance, loads
from dataloader_balancers.assign.groups import by_groups

COSTS = np.random.default_rng(0).lognormal(0, 1, 1024)


@pytest.mark.parametrize("name", BALANCERS)
@pytest.mark.parametrize("between", ["arrival", "balanced"])
def test_each_item_has_a_rank_and_counts_hold(name, between):
    rank = by_groups(BALANCERS[name], COSTS, 32, 8, 32, between=between)
    assert np.bincount(rank, minlength=32).tolist() == [32] * 32


def test_items_stay_in_the_group_where_they_arrived():
    rank = by_groups(BALANCERS["lpt"], COSTS, 32, 8)
    assert np.array_equal(rank // 8, np.arange(1024) % 32 // 8)


def test_items_stay_in_the_group_they_are_given():
    group = np.random.default_rng(1).integers(0, 4, 1024)
    assert np.array_equal(by_groups(BALANCERS["lpt"], COSTS, 32, 8, between=group) // 8, group)


def test_wider_groups_come_nearer_to_equal_work():
    reached = [
        imbalance(loads(COSTS, by_groups(BALANCERS["lpt"], COSTS, 32, size), 32)) for size in (1, 4, 16, 32)
    ]
    assert reached == sorted(reached, reverse=True)
    arrival = loads(COSTS, BALANCERS["arrival"](COSTS, 32), 32)
    assert reached[0] == imbalance(arrival)
    assert reached[-1] == imbalance(loads(COSTS, BALANCERS["lpt"](COSTS, 32), 32))


def test_groups_balanced_first_come_as_near_as_all_at_once():
    found = by_groups(BALANCERS["local_search"], COSTS, 32, 8, between="balanced")
    assert imbalance(loads(COSTS, found, 32)) <= 1.001


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"group_size": 5}, "groups of 5 do not divide 32 ranks: use 2 or 4"),
        ({"group_size": 0}, "groups of 0 do not divide"),
        ({"per_rank": 31}, "1024 items do not fit 32 ranks of at most 31"),
        ({"between": "luck"}, "'luck'; known: arrival, balanced"),
        ({"between": [0, 1]}, r"\(2,\) groups for 1024 items"),
        ({"between": np.full(1024, 4)}, "item 0 is in group 4; groups are 0 to 3"),
        ({"between": np.full(1024, 1), "per_rank": 32}, "group 1 has 1024 items; its 8 ranks take 32 each"),
    ],
)
def test_what_is_impossible_is_named(arguments, found):
    given = {"balancer": BALANCERS["lpt"], "costs": COSTS, "num_ranks": 32, "group_size": 8} | arguments
    with pytest.raises(ValueError, match=found):
        by_groups(**given)
