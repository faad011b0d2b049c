import pytest

from dataloader_balancers import Floor, floor, gap, imbalance, loads


def test_equal_shares_bind_where_no_item_is_dear():
    assert floor([3, 3, 3, 3, 2], 2) == Floor(7.0, "mean", 0)
    assert floor([5, 5], 2).binding == "mean"


def test_an_item_dearer_than_a_share_binds_and_is_named():
    bound = floor([1, 2, 9, 2], 4)
    assert bound == Floor(9.0, "item", 2)
    assert bound.imbalance(mean=14 / 4) == pytest.approx(36 / 14)


def test_nothing_to_do_has_no_gap():
    bound = floor([], 4)
    assert bound == Floor(0.0, "mean", -1)
    assert bound.imbalance(0.0) == 1.0
    assert imbalance([0.0, 0.0]) == imbalance([]) == 1.0
    assert gap([0.0, 0.0], bound) == 0.0


def test_gap_and_imbalance_of_a_placement():
    costs, rank = [4.0, 3.0, 2.0], [0, 1, 2]
    held = loads(costs, rank, 4)
    assert held.tolist() == [4, 3, 2, 0]
    assert imbalance(held) == pytest.approx(16 / 9)
    assert gap(held, floor(costs, 4)) == 0.0
    assert gap(loads(costs, [0, 0, 1], 4), floor(costs, 4)) == pytest.approx(0.75)


def test_a_mesh_without_ranks_is_refused():
    with pytest.raises(ValueError, match="num_ranks is 0"):
        floor([1.0], 0)
