"""How well balancers do on work as training has it; what they promise is in tests/contract."""

import numpy as np
import pytest

from dataloader_balancers import (
    BALANCERS,
    LlmCost,
    floor,
    gap,
    imbalance,
    loads,
    sequence_cost,
    two_phase_lpt,
)
from dataloader_balancers.assign import assign
from dataloader_balancers.assign.lpt import _lpt_heap, _lpt_rounds
from dataloader_balancers.pack import pack


def packed_step(seed, packer="best_fit"):
    """Cost of 64 packed sequences of 8,192 tokens."""
    lengths = np.clip(np.random.default_rng(seed).lognormal(6.4, 1.4, 1500), 4, 8192).astype(np.int64)
    lengths = lengths[: np.searchsorted(np.cumsum(lengths), 1.02 * 64 * 8192)]
    place = pack(packer, lengths, 64, 8192)
    order = np.argsort(place, kind="stable")[np.count_nonzero(place < 0) :]
    offsets = np.searchsorted(place[order], np.arange(65))
    return sequence_cost(lengths[order], offsets, LlmCost.preset("1b"))


def test_equal_counts_of_packed_sequences_balance():
    for seed in range(5):
        costs = packed_step(seed)
        held = loads(costs, assign("lpt", costs, 4, per_rank=16), 4)
        assert imbalance(held) <= 1.02
        assert imbalance(held) <= imbalance(loads(costs, assign("arrival", costs, 4, per_rank=16), 4))


def test_swaps_mend_what_equal_counts_break():
    """Greedy: 9 8 2 | 7 6 5 with three places each; an exchange makes 9 7 2 | 8 6 5."""
    costs = [9, 8, 7, 6, 5, 2]
    held = loads(costs, assign("lpt", costs, 2, per_rank=3), 2)
    assert sorted(held) == [18, 19]


def test_each_balancer_beats_arrival_on_skewed_work():
    costs = np.random.default_rng(1).lognormal(0, 1, 512)
    arrival = imbalance(loads(costs, assign("arrival", costs, 16, per_rank=32), 16))
    reached = {
        name: imbalance(loads(costs, assign(name, costs, 16, per_rank=32), 16))
        for name in set(BALANCERS) - {"arrival"}
    }
    assert max(reached.values()) < 1 + (arrival - 1) * 2 / 3
    assert reached["lpt"] <= 1.001


def test_the_dearest_item_is_the_floor():
    costs = np.array([1000.0, *np.ones(63)])
    held = loads(costs, assign("lpt", costs, 4), 4)
    assert floor(costs, 4).binding == "item"
    assert gap(held, floor(costs, 4)) == 0.0


def test_rounds_are_as_good_as_one_by_one():
    """The published scale: 100,000 samples on 12,288 ranks."""
    values = np.sort(np.minimum(np.random.default_rng(2).lognormal(7, 1, 100_000), 8192))[::-1]
    rounds = imbalance(loads(values, _lpt_rounds(values, 12_288, len(values)), 12_288))
    heap = imbalance(loads(values, _lpt_heap(values, 12_288, len(values)), 12_288))
    assert rounds <= heap + 5e-4


def test_differencing_is_nearest_to_equal_where_items_are_many():
    costs = np.random.default_rng(3).uniform(1, 2, 4096)
    reached = {name: imbalance(loads(costs, assign(name, costs, 8, per_rank=512), 8)) for name in BALANCERS}
    assert reached["karmarkar_karp"] <= 1.0001
    assert reached["karmarkar_karp"] < reached["snake"] < reached["arrival"]


def test_two_phases_are_balanced_at_once():
    """Pictures are short and dear to the encoder, texts long and free: LLM cost alone leaves the encoder."""
    rng = np.random.default_rng(4)
    pictures = rng.random(2048) < 0.5
    llm = LlmCost.preset("1b").of_documents(np.clip(rng.lognormal(6, 1, 2048), 8, 8192))
    encoder = np.where(pictures, rng.integers(256, 4096, 2048), 0)

    def reached(rank):
        return [imbalance(loads(phase, rank, 64)) for phase in (llm, encoder)]

    one_phase = reached(assign("lpt", llm, 64, per_rank=32))
    both = reached(two_phase_lpt(llm, encoder, 64, per_rank=32))
    assert one_phase[1] > 1.3
    assert max(both) <= 1.05


def test_a_phase_without_work_is_ignored():
    costs = np.array([5.0, 4, 3, 3, 3])
    both = two_phase_lpt(costs, np.zeros(5), 2)
    assert loads(costs, both, 2).tolist() == loads(costs, assign("lpt", costs, 2), 2).tolist()
    assert np.bincount(two_phase_lpt(np.zeros(6), np.zeros(6), 3)).tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (([1.0, 2.0], [1.0], 2), "2 LLM costs for 1 encoder costs"),
        (([1.0, 2.0], [1.0, -2.0], 2), "item 1 costs -2.0"),
        (([1.0, 2.0, 3.0], [0.0, 0.0, 0.0], 2, 1), "3 items do not fit 2 ranks of at most 1"),
    ],
)
def test_impossible_phases_are_named(arguments, found):
    with pytest.raises(ValueError, match=found):
        two_phase_lpt(*arguments)


def test_an_unknown_name_is_answered_with_the_known():
    with pytest.raises(ValueError, match=r"'ltp'; known: lpt, local_search, karmarkar_karp, snake, arrival"):
        assign("ltp", [1.0], 1)
