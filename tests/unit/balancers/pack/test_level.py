"""The floor of a packing, by hand."""

import numpy as np
import pytest

from dataloader_balancers.pack import level


def test_the_dearest_piece_is_the_floor():
    made = level([8, 4, 4, 8], [0, 1, 1, -1], 2, 10, costs=[6.0, 1.0, 1.0, 99.0])
    assert (made.fill, made.spread, made.floor, made.gap) == (0.8, 1.5, 1.5, 0.0)
    assert (made.range, made.range_floor) == (3.0, 3.0)


def test_the_mean_is_the_floor():
    made = level([4, 4, 2, 2], [0, 0, 1, 1], 2, 8)
    assert (made.spread, made.floor, made.range, made.range_floor) == (8 / 6, 1.0, 2.0, 1.0)
    assert made.gap == pytest.approx(1 / 3)


def test_free_and_empty_sequences():
    assert level([], [], 3, 8).spread == 1.0
    assert level([1], [0], 1, 8, costs=[0.0]).range == 1.0
    assert level([1], [0], 2, 8).range == np.inf


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"sequence": [0, 2]}, "piece 1 has 2 as its sequence; allowed are -1 to 1"),
        ({"sequence": [0]}, "sequence have shape"),
        ({"costs": [1.0, -1.0]}, "piece 1 costs -1"),
        ({"capacity": 0}, "at least one sequence"),
    ],
)
def test_impossible_arguments_are_named(arguments, found):
    with pytest.raises(ValueError, match=found):
        level(**{"lengths": [1, 2], "sequence": [0, 1], "num_sequences": 2, "capacity": 8} | arguments)
