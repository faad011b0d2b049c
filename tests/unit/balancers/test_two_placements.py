"""Two placements and their dispatch table, beside independent sums."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader_balancers import BALANCERS, imbalance, loads
from dataloader_balancers.assign.two_placements import two_placements


def job(seed=0, count=2048):
    """(LLM cost, encoder cost): half texts, half pictures; no item dearer than an equal share of 64 ranks."""
    rng = np.random.default_rng(seed)
    encoder = np.where(rng.random(count) < 0.5, rng.integers(1, 13, count), 0).astype(float)
    return 300 * encoder + np.minimum(rng.lognormal(6, 1, count), 8192), encoder


def test_both_phases_are_at_their_floor():
    llm, encoder = job()
    found = two_placements(llm, encoder, 64, ranks_per_node=8)
    assert imbalance(loads(llm, found.llm, 64)) <= 1.01
    assert imbalance(loads(encoder, found.encoder, 64)) <= 1.03


def test_hardly_anything_crosses_nodes():
    """Two placements made without regard to nodes send 7 of 8 bytes across them."""
    llm, encoder = job()
    near = two_placements(llm, encoder, 64, ranks_per_node=8)
    source = BALANCERS["lpt"](encoder, 64)
    far = encoder[source // 8 != BALANCERS["lpt"](llm, 64) // 8].sum()
    assert far > 0.8 * encoder.sum()
    assert near.dispatch.between_nodes(8) <= 0.01 * encoder.sum()


def test_tokens_that_lie_unevenly_leave_only_full_nodes():
    llm, encoder = job()
    llm_rank = np.where(np.arange(2048) < 1024, np.arange(2048) % 8, np.arange(2048) % 64)
    found = two_placements(llm, encoder, 64, ranks_per_node=8, llm_rank=llm_rank)
    assert np.array_equal(found.llm, llm_rank)
    assert imbalance(loads(encoder, found.encoder, 64)) <= 1.05
    here = encoder[llm_rank // 8 == 0].sum()
    least = here - encoder.sum() / 8 * 1.01
    assert least <= found.dispatch.between_nodes(8) <= least * 1.05
    assert set(found.dispatch.source[found.dispatch.destination >= 8] // 8) <= set(range(1, 8))


def test_of_equal_work_the_small_ones_are_sent():
    encoder = np.ones(8)
    size = np.array([9.0, 1, 9, 1, 9, 1, 9, 1])
    found = two_placements(encoder, encoder, 2, ranks_per_node=1, num_bytes=size, llm_rank=np.zeros(8, int))
    assert found.dispatch.item.tolist() == [1, 3, 5, 7]
    assert found.dispatch.between_nodes(1) == 4
    assert found.dispatch.matrix(2).tolist() == [[0, 0], [4, 0]]


def test_pictures_of_one_document_may_be_encoded_apart():
    found = two_placements([5.0, 1.0], [4.0, 4.0], 2, owner=[0, 0])
    assert sorted(found.encoder) == [0, 1]
    assert len(found.dispatch.item) == 1
    assert found.dispatch.destination.tolist() == [found.llm[0]]


@settings(deadline=None)
@given(st.data())
def test_every_item_is_encoded_once_and_arrives_where_its_tokens_are(data):
    size, nodes = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    llm = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=20))
    pictures = st.tuples(st.integers(0, 9), st.integers(0, len(llm) - 1), st.integers(0, 5))
    encoder, owner, num_bytes = zip(*data.draw(st.lists(pictures, min_size=1, max_size=20)), strict=True)
    per_rank = data.draw(st.one_of(st.none(), st.just(-(-len(llm) // (size * nodes)))))
    found = two_placements(
        llm, encoder, size * nodes, ranks_per_node=size, owner=owner, num_bytes=num_bytes, per_rank=per_rank
    )
    ranks = range(size * nodes)
    assert all(rank in ranks for rank in (*found.llm, *found.encoder))
    assert per_rank is None or max(found.llm.tolist().count(rank) for rank in ranks) <= per_rank
    where = dict(enumerate(found.encoder.tolist()))
    table = found.dispatch
    rows = list(zip(table.source.tolist(), table.destination.tolist(), table.item.tolist(), strict=True))
    assert rows == sorted(rows)
    for source, destination, item in rows:
        assert where[item] == source != destination
        where[item] = destination
    assert [where[item] for item in range(len(owner))] == found.llm[list(owner)].tolist()
    assert table.num_bytes.tolist() == [num_bytes[item] for item in table.item]
    assert table.matrix(len(ranks)).sum() == sum(table.num_bytes)
    crossing = sum(
        num_bytes[item] for source, destination, item in rows if source // size != destination // size
    )
    assert table.between_nodes(size) == crossing


def test_nothing_to_encode():
    found = two_placements([1.0, 2.0, 3.0], [0.0, 0, 0], 2)
    assert len(found.dispatch.item) == 0
    assert found.dispatch.between_nodes(1) == 0
    assert np.array_equal(found.llm, found.encoder)
    assert two_placements([], [], 4, ranks_per_node=2).llm.tolist() == []


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"ranks_per_node": 3}, "nodes of 3 ranks do not divide 4 ranks"),
        ({"encoder_costs": [1.0]}, "2 LLM costs for 1 encoder costs; say the owner"),
        ({"owner": [0, 2]}, "encoder item 1 belongs to item 2; 0 to 1"),
        ({"owner": [0]}, r"owner has shape \(1,\)"),
        ({"num_bytes": [1.0]}, r"num_bytes has shape \(1,\)"),
        ({"num_bytes": [1.0, np.nan]}, "encoder item 1 has nan bytes"),
        ({"llm_rank": [0, 4]}, "2 ranks from 0 to 3"),
        ({"tolerance": -1}, "tolerance is -1"),
        ({"encoder_costs": [1.0, -1.0]}, "item 1 costs -1.0"),
    ],
)
def test_what_is_impossible_is_named(arguments, found):
    with pytest.raises(ValueError, match=found):
        two_placements(**{"llm_costs": [1.0, 2.0], "encoder_costs": [1.0, 2.0], "num_ranks": 4} | arguments)
