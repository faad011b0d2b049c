"""Rows of one width, for those who don't pack."""

import numpy as np
import pytest

from dataloader_balancers.pack import LAYOUTS

layouts = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


def texts(count, seed=0):
    return np.clip(np.random.default_rng(seed).lognormal(6, 1.2, count), 1, 8192).astype(np.int64)


def test_padded_rows_keep_the_order():
    made = LAYOUTS["padded"]([3, 3, 5, 1, 9, 2], 12)
    assert made.batch.tolist() == [0, 0, 1, 1, 2, 3]
    assert made.width.tolist() == [3, 5, 9, 2]
    assert made.count.tolist() == [2, 2, 1, 1]
    assert made.padding == pytest.approx(1 - 23 / 27)


def test_bucketed_rows_put_like_with_like():
    made = LAYOUTS["bucketed"]([3, 3, 5, 1, 9, 2], 12, most_rows=3)
    assert made.batch.tolist() == [1, 2, 1, 2, 0, 2]
    assert made.width.tolist() == [9, 5, 3]


def test_bucketed_rows_hold_little_padding():
    lengths = texts(4096)
    assert LAYOUTS["padded"](lengths, 65_536).padding > 0.5
    assert LAYOUTS["bucketed"](lengths, 65_536).padding < 0.05


@layouts
@pytest.mark.parametrize(("most_rows", "multiple"), [(None, 1), (7, 1), (None, 64), (1, 8192)])
def test_no_batch_is_larger_than_allowed(layout, most_rows, multiple):
    lengths = texts(1000)
    made = layout(lengths, 16_384, most_rows=most_rows, multiple=multiple)
    assert np.array_equal(np.bincount(made.batch), made.count)
    assert (made.width * made.count).max() <= 16_384
    assert made.count.max() <= (most_rows or 1000)
    assert not np.any(made.width % multiple)
    longest = np.zeros(len(made.width), np.int64)
    np.maximum.at(longest, made.batch, lengths)
    assert np.array_equal(-(-longest // multiple) * multiple, made.width)
    assert made.padding == pytest.approx(1 - lengths.sum() / (made.width * made.count).sum())


@layouts
def test_nothing_and_a_million_alike(layout):
    made = layout([], 8)
    assert (len(made.batch), len(made.width), made.padding) == (0, 0, 0.0)
    made = layout(np.full(1_000_000, 8), 80)
    assert made.count.tolist() == [10] * 100_000
    assert made.padding == 0.0


@layouts
@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"lengths": [1, 0]}, "piece 1 has 0 tokens"),
        ({"lengths": [9]}, "piece 0 has 9 tokens; allowed are 1 to 8"),
        ({"lengths": [8], "multiple": 3}, "allowed are 1 to 6"),
        ({"capacity": 0}, "need a batch"),
        ({"most_rows": 0}, "need a batch"),
        ({"multiple": 0}, "multiple 0"),
    ],
)
def test_impossible_arguments_are_named(layout, arguments, found):
    with pytest.raises(ValueError, match=found):
        layout(**{"lengths": [1, 2], "capacity": 8} | arguments)
