"""An order is a permutation of all rows, made of whole extents, and the same for ever."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader_svc.sources.order import Order

extents = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 5000)), max_size=60)
blocks = st.integers(1, 20_000)


def make(table, *, seed=17, source="web", epoch=0, block_bytes=4000):
    rows = np.array([rows for rows, _ in table], np.int64)
    sizes = np.array([size for _, size in table], np.int64)
    return Order(rows, sizes, seed=seed, source=source, epoch=epoch, block_bytes=block_bytes)


def rows_of(order):
    """Every position's (extent, row), by blocks."""
    found = []
    for number in range(order.num_blocks):
        block = order.block(number)
        found += list(zip(block.extents[block.extent_index].tolist(), block.row.tolist(), strict=True))
    return found


@given(extents, blocks | st.none(), st.integers(0, 3))
def test_every_row_once(table, block_bytes, epoch):
    order = make(table, block_bytes=block_bytes, epoch=epoch)
    expected = [(extent, row) for extent, (rows, _) in enumerate(table) for row in range(rows)]
    found = rows_of(order)
    assert sorted(found) == expected
    assert order.num_rows == len(expected)
    if block_bytes is None:
        assert found == expected


@given(extents, blocks)
def test_blocks_are_whole_extents_within_the_limit(table, block_bytes):
    order = make(table, block_bytes=block_bytes)
    seen = []
    for number in range(order.num_blocks):
        block = order.block(number)
        sizes = [table[extent][1] for extent in block.extents]
        assert sum(sizes) <= block_bytes or len(sizes) == 1
        assert len(block.row) == sum(table[extent][0] for extent in block.extents)
        assert len(block.row) == order.block_starts[number + 1] - order.block_starts[number]
        assert block.extents.tolist() == sorted(block.extents.tolist())
        seen += block.extents.tolist()
    assert sorted(seen) == list(range(len(table)))


@given(extents.filter(bool), blocks, st.data())
def test_locate_agrees_with_the_blocks(table, block_bytes, data):
    order = make(table, block_bytes=block_bytes)
    position = data.draw(st.integers(0, order.num_rows - 1))
    block, offset = order.locate(position)
    assert order.block_starts[block] + offset == position
    assert 0 <= offset < len(order.block(block).row)
    for outside in (-1, order.num_rows):
        with pytest.raises(IndexError, match="web"):
            order.locate(outside)
    for outside in (-1, order.num_blocks):
        with pytest.raises(IndexError, match="web"):
            order.block(outside)


@given(extents, blocks)
def test_pure_whatever_others_draw(table, block_bytes):
    before = rows_of(make(table, block_bytes=block_bytes))
    np.random.seed(1)
    np.random.random(5)
    order = make(table, block_bytes=block_bytes)
    for number in reversed(range(order.num_blocks)):  # blocks in any order, and twice
        order.block(number)
    assert rows_of(order) == before


@settings(max_examples=30)
@given(st.integers(0, 1000), st.integers(0, 5))
def test_epochs_seeds_and_sources_differ(seed, epoch):
    table = [(10, 100)] * 40
    base = rows_of(make(table, seed=seed, epoch=epoch, block_bytes=1000))
    assert base != rows_of(make(table, seed=seed, epoch=epoch + 1, block_bytes=1000))
    assert base != rows_of(make(table, seed=seed + 1, epoch=epoch, block_bytes=1000))
    assert base != rows_of(make(table, seed=seed, epoch=epoch, source="other", block_bytes=1000))


def test_pinned_values():
    """A change here renames every sample of every running job: a breaking change with a label of its own."""
    order = make([(3, 1000), (2, 1000), (4, 1000), (1, 5000), (2, 1000)], block_bytes=3000)
    assert order.block_starts.tolist() == PINNED_STARTS
    assert rows_of(order) == PINNED_ROWS
    assert rows_of(make([(6, 10)], epoch=3)) == PINNED_EPOCH_3


PINNED_STARTS = [0, 1, 8, 12]
PINNED_ROWS = [(3, 0), (0, 2), (4, 0), (1, 1), (4, 1), (0, 1), (1, 0), (0, 0), (2, 2), (2, 0), (2, 1), (2, 3)]
PINNED_EPOCH_3 = [(0, 5), (0, 3), (0, 2), (0, 4), (0, 0), (0, 1)]


def test_rows_are_mixed_over_the_whole_block_and_extents_over_the_source():
    """Uniformity, coarsely: each of 10 extents stands equally often in each tenth of the epoch."""
    counts = np.zeros((10, 10))
    for epoch in range(200):
        order = make([(20, 1000)] * 10, epoch=epoch, block_bytes=5000)
        where = np.array([extent for extent, _ in rows_of(order)]).reshape(10, 20)
        counts += [[np.sum(tenth == extent) for extent in range(10)] for tenth in where]
    expected = 200 * 20 / 10
    assert np.abs(counts - expected).max() < 5 * np.sqrt(200 * 5.5)  # 5.5: variance of a cell an epoch


def test_ten_million_rows_in_a_hundred_thousand_extents():
    order = Order(
        np.full(100_000, 100),
        np.full(100_000, 2**20),
        seed=1,
        source="big",
        epoch=0,
        block_bytes=2**24,
    )
    assert (order.num_rows, order.num_blocks) == (10_000_000, 6250)
    block, offset = order.locate(9_999_999)
    assert (block, offset) == (6249, 1599)
    assert len(order.block(block).row) == 1600


def test_no_extents():
    order = make([])
    assert (order.num_rows, order.num_blocks) == (0, 0)
