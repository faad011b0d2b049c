"""How well packers do on lengths as texts have them; what they promise is in tests/contract."""

import numpy as np
import pytest

from dataloader_balancers import PACKERS, Limit, LlmCost, floor, imbalance, loads
from dataloader_balancers.pack import best_fit, pack, pack_all

packers = pytest.mark.parametrize("name", PACKERS)
CAPACITY = 8192


def drawn(num_sequences, sigma=1.2, longest=CAPACITY, overdraw=1.02, seed=0):
    """Lognormal lengths around 600 tokens, a little more than the sequences hold."""
    lengths = np.random.default_rng(seed).lognormal(6.4, sigma, 60 * num_sequences)
    lengths = np.clip(lengths, 4, longest).astype(np.int64)
    enough = int(np.searchsorted(np.cumsum(lengths), overdraw * num_sequences * CAPACITY))
    assert enough < len(lengths)
    return lengths[:enough]


def fill(lengths, result, num_sequences):
    return lengths[result >= 0].sum() / (num_sequences * CAPACITY)


@packers
@pytest.mark.parametrize("sigma", [0.8, 1.2, 1.8])
def test_sequences_of_a_step_are_full(name, sigma):
    for seed in range(4):
        lengths = drawn(64, sigma, seed=seed)
        assert fill(lengths, pack(name, lengths, 64, CAPACITY), 64) >= 0.99


def test_balanced_packing_levels_cost_at_the_fill_of_best_fit():
    """Documents of up to a quarter of a sequence: the floor is the mean, the spread the packer's doing."""
    cost = LlmCost(linear=1.0, quadratic=1 / 4096)  # attention as dear as the rest at 4,096 tokens
    spreads = {"balanced": [], "best_fit": []}
    for seed in range(4):
        lengths = drawn(64, 1.8, longest=CAPACITY // 4, seed=seed)
        costs = cost.of_documents(lengths)
        fills = {}
        for name, spread in spreads.items():
            result = pack(name, lengths, 64, CAPACITY, costs=costs)
            placed = result >= 0
            assert floor(costs[placed], 64).binding == "mean"
            spread.append(imbalance(loads(costs[placed], result[placed], 64)))
            fills[name] = fill(lengths, result, 64)
        assert fills["balanced"] >= 0.995 * fills["best_fit"]
    assert max(spreads["balanced"]) <= 1.02
    assert min(spreads["best_fit"]) >= 1.06


def test_balanced_packing_levels_a_step_that_is_not_full():
    lengths = drawn(64, overdraw=0.7, longest=2000)
    result = pack("balanced", lengths, 64, CAPACITY)
    assert result.min() >= 0
    assert imbalance(loads(lengths, result, 64)) <= 1.01


def test_balanced_packing_falls_back_to_best_fit():
    """Levelling puts 6 | 5 and leaves no room for the third; best fit places all three."""
    lengths, costs = [6, 5, 5], [6.0, 5.0, 1.0]
    assert pack("best_fit", lengths, 2, 10, costs=costs).tolist() == [0, 1, 1]
    assert pack("balanced", lengths, 2, 10, costs=costs).tolist() == [0, 1, 1]
    lengths = [5, 5, 4, 4, 2]  # 10 + 10 only as 5+5, 4+4+2
    assert (pack("balanced", lengths, 2, 10) >= 0).all()


@packers
def test_a_hundred_thousand_pieces(name):
    lengths = np.clip(np.random.default_rng(9).lognormal(5.2, 1.2, 100_000), 1, CAPACITY).astype(np.int64)
    assert lengths.sum() > 1.02 * 4096 * CAPACITY
    result = pack(name, lengths, 4096, CAPACITY)
    assert np.bincount(result[result >= 0], lengths[result >= 0]).max() <= CAPACITY
    assert fill(lengths, result, 4096) >= 0.99


@packers
def test_a_million_tokens_in_equal_pieces(name):
    result = pack(name, np.full(2000, 512), 125, CAPACITY)
    assert np.bincount(result, minlength=125).tolist() == [16] * 125


@packers
def test_a_full_limit_stops_pictures_but_not_text(name):
    """Two sequences, one picture each at most: the third picture waits, all text fits."""
    pictures = [1, 1, 1, 0, 0]
    result = pack(name, [3, 3, 3, 2, 2], 2, 10, limits=[Limit("pictures", pictures, 1)])
    assert sorted(result[:3]) == [-1, 0, 1]
    assert (result[3:] >= 0).all()


def test_an_unknown_name_is_answered_with_the_known():
    with pytest.raises(ValueError, match=r"'worst_fit'; known: best_fit, first_fit, balanced, variable"):
        pack("worst_fit", [1], 1, 8)


@packers
def test_all_pieces_in_as_few_sequences_as_it_takes(name):
    """Against the naive count of best fit, longest first, that opens a sequence where none has room."""
    for seed in range(6):
        lengths = drawn(12, 1.6, seed=seed)
        room: list[int] = []
        for length in sorted(lengths.tolist(), reverse=True):
            fits = [space for space in room if space >= length]
            if fits:
                room[room.index(min(fits))] -= length
            else:
                room.append(CAPACITY - length)
        result = pack_all(name, lengths, CAPACITY)
        assert result.min() == 0
        used = np.bincount(result, lengths)
        assert used.min() > 0
        assert used.max() <= CAPACITY
        assert len(room) - 1 <= len(used) <= len(room) + 1
        if name == "best_fit":
            assert sorted((CAPACITY - used).tolist()) == sorted(room)


def test_a_packer_that_leaves_pieces_over_gets_more_sequences_and_then_gives_way(monkeypatch):
    lengths = np.full(200, CAPACITY // 2)
    asked = []

    def greedy(lengths, num_sequences, capacity, priority=None, costs=None, *, limits=()):
        asked.append(num_sequences)
        result = best_fit(lengths, num_sequences, capacity, priority, costs, limits=limits)
        result[0] = -1 if num_sequences < enough else result[0]
        return result

    monkeypatch.setitem(PACKERS, "greedy", greedy)
    enough = 101
    assert pack_all("greedy", lengths, CAPACITY).max() + 1 == 100  # of 101, the one left empty is none
    assert asked == [100, 101]
    asked.clear()
    enough = 1000
    assert np.bincount(pack_all("greedy", lengths, CAPACITY)).tolist() == [2] * 100
    assert asked == [100, 101, 102]


def test_all_pieces_under_limits_and_none_at_all():
    pictures = [1, 1, 1, 0, 0]
    result = pack_all("best_fit", [3, 3, 3, 2, 2], 10, limits=[Limit("pictures", pictures, 1)])
    assert sorted(result[:3].tolist()) == [0, 1, 2]
    assert pack_all("balanced", [], 10).tolist() == []
    with pytest.raises(ValueError, match="unknown packer 'worst_fit'"):
        pack_all("worst_fit", [1], 8)
