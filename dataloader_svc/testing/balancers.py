"""The exam of packers, balancers and cuts. Each suite runs over every name in its registry.

    PACKERS["mine"] = my_packer

    class TestPackers(PackerContract):
        pass

pytest then runs each test below against each name, yours among them. To examine one function that stands in
no registry, override the fixture of that class. What is promised is written in the modules of
`dataloader_balancers`; this holds them to it. Instances here are fixed; random ones and oracles are in
tests/property.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dataloader_balancers import BALANCERS, CUTS, PACKERS, Limit
from dataloader_balancers.assign import ORDERED, Balancer
from dataloader_balancers.context_parallel import Cut
from dataloader_balancers.pack import Packer

Ints = NDArray[np.int64]


def _skewed(count: int, capacity: int, seed: int = 0) -> Ints:
    """Lengths as texts have them: lognormal, mostly short, some cut at the capacity."""
    drawn = np.random.default_rng(seed).lognormal(np.log(capacity / 16), 1.2, count)
    return np.clip(drawn, 1, capacity).astype(np.int64)


# name -> (lengths, number of sequences, capacity)
_PACKING: dict[str, tuple[Ints, int, int]] = {
    "nothing": (np.empty(0, np.int64), 3, 8),
    "one": (np.array([8]), 1, 8),
    "fewer than sequences": (np.array([3, 5]), 7, 8),
    "eight sevens": (np.full(8, 7), 8, 8),
    "eight sevens, one place short": (np.full(8, 7), 7, 8),
    "all full": (np.full(9, 16), 4, 16),
    "just over half": (np.full(40, 33), 16, 64),
    "ones": (np.ones(1000, np.int64), 3, 100),
    "halves and quarters": (np.array([8, 8, 8, 4, 4, 4, 4, 4]), 3, 16),
    "capacity of one": (np.ones(5, np.int64), 3, 1),
    "skewed": (_skewed(900, 8192), 64, 8192),
    "skewed, too little": (_skewed(60, 4096), 64, 4096),
    "one sequence": (_skewed(200, 512), 1, 512),
}


def held(result: NDArray[np.int32], weights: Ints, num_sequences: int) -> Ints:
    """Sum of `weights` in each sequence."""
    total = np.zeros(num_sequences, np.int64)
    np.add.at(total, result[result >= 0], weights[result >= 0])
    return total


class PackerContract:
    """What every packer does."""

    @pytest.fixture(params=list(PACKERS))
    def packer(self, request: pytest.FixtureRequest) -> Packer:
        return PACKERS[request.param]

    @pytest.fixture(params=list(_PACKING))
    def instance(self, request: pytest.FixtureRequest) -> tuple[Ints, int, int]:
        return _PACKING[request.param]

    def test_each_piece_has_a_sequence_or_waits_and_no_cap_is_breached(
        self, packer: Packer, instance: tuple[Ints, int, int]
    ) -> None:
        lengths, count, capacity = instance
        result = packer(lengths, count, capacity)
        assert result.dtype == np.int32
        assert result.shape == lengths.shape
        assert result.min(initial=-1) >= -1
        assert result.max(initial=-1) < count
        assert held(result, lengths, count).max() <= capacity

    def test_a_piece_waits_only_where_no_sequence_has_room(
        self, packer: Packer, instance: tuple[Ints, int, int]
    ) -> None:
        lengths, count, capacity = instance
        result = packer(lengths, count, capacity)
        room = capacity - held(result, lengths, count)
        assert not np.any(lengths[result < 0] <= room.max())

    def test_an_older_piece_is_placed_before_all_younger(self, packer: Packer) -> None:
        lengths = _skewed(1200, 1024)
        age = np.random.default_rng(1).integers(0, 4, len(lengths))
        result = packer(lengths, 64, 1024, age)
        waiting = np.flatnonzero(result < 0)
        assert len(waiting)
        for piece in waiting:
            as_old = np.where(age >= age[piece], lengths, 0)
            assert lengths[piece] > (1024 - held(result, as_old, 64)).max()

    def test_the_oldest_piece_never_waits(self, packer: Packer) -> None:
        lengths = np.full(50, 100)
        for oldest, length in ((49, 1), (0, 100), (25, 60)):
            lengths[oldest] = length
            age = np.zeros(50, np.int64)
            age[oldest] = 7
            assert packer(lengths, 4, 100, age)[oldest] >= 0

    def test_further_limits_are_as_hard(self, packer: Packer, instance: tuple[Ints, int, int]) -> None:
        lengths, count, capacity = instance
        patches = np.random.default_rng(2).integers(0, 11, len(lengths))
        patches[::3] = 0
        pictures = (patches > 0).astype(np.int64)
        limits = (Limit("patches", patches, 20), Limit("pictures", pictures, 3))
        result = packer(lengths, count, capacity, limits=limits)
        caps = ((lengths, capacity), (patches, 20), (pictures, 3))
        room = [cap - held(result, weights, count) for weights, cap in caps]
        assert min(left.min() for left in room) >= 0
        for piece in np.flatnonzero(result < 0):
            fits = [left >= weights[piece] for (weights, _), left in zip(caps, room, strict=True)]
            assert not np.logical_and.reduce(fits).any()

    def test_a_million_tokens_and_a_million_alike(self, packer: Packer) -> None:
        assert packer(np.array([1_000_000, 1]), 2, 1_000_000).min() >= 0
        alike = packer(np.full(1_000_000, 4), 1000, 4000)
        assert np.bincount(alike, minlength=1000).tolist() == [1000] * 1000

    def test_skewed_lengths_fill_sequences(self, packer: Packer) -> None:
        for seed in range(5):
            lengths = _skewed(2000, 8192, seed)
            enough = int(np.searchsorted(np.cumsum(lengths), 1.05 * 64 * 8192))
            result = packer(lengths[:enough], 64, 8192)
            assert held(result, lengths[:enough], 64).sum() >= 0.99 * 64 * 8192

    def test_the_result_is_a_function_of_the_arguments(
        self, packer: Packer, instance: tuple[Ints, int, int]
    ) -> None:
        lengths, count, capacity = instance
        age = np.arange(len(lengths)) % 3
        costs = lengths.astype(np.float64) ** 2
        copies = lengths.copy(), age.copy(), costs.copy()
        first = packer(lengths, count, capacity, age, costs)
        second = packer(lengths.astype(np.int32), count, capacity, age.tolist(), costs)
        assert first.tolist() == second.tolist()
        for array, copy in zip((lengths, age, costs), copies, strict=True):
            assert np.array_equal(array, copy)

    def test_order_of_arrival_does_not_matter(self, packer: Packer, instance: tuple[Ints, int, int]) -> None:
        lengths, count, capacity = instance

        def contents(pieces: Ints) -> list[list[int]]:
            result = packer(pieces, count, capacity)
            return [sorted(pieces[result == place].tolist()) for place in range(-1, count)]

        shuffled = np.random.default_rng(3).permutation(lengths)
        assert contents(shuffled) == contents(lengths)

    @pytest.mark.parametrize(
        ("lengths", "found"),
        [
            ([4, 0, 1], r"piece 1 has 0 tokens"),
            ([4, 7, -2], r"piece 2 has -2 tokens"),
            ([9, 1, 1], r"piece 0 has 9 tokens; allowed are 1 to 8"),
            ([4, 40, 7, 0], r"piece 1 has 40 tokens; .*\(and 1 more"),
            ([2.5, 1.0], r"float64"),
            ([4.0, float("nan")], r"float64"),
            ([4, 2**62], r"piece 1 has 4611686018427387904 tokens"),
            ([[1, 2]], r"shape \(1, 2\)"),
        ],
    )
    def test_an_impossible_piece_is_named(self, packer: Packer, lengths: list[Any], found: str) -> None:
        with pytest.raises(ValueError, match=found):
            packer(lengths, 4, 8)

    @pytest.mark.parametrize(
        ("arguments", "found"),
        [
            ({"num_sequences": 0}, "at least one sequence"),
            ({"capacity": 0}, "at least one sequence"),
            ({"capacity": 2**50}, "1125899906842624 tokens; at most"),
            ({"num_sequences": 2**40}, "1099511627776 sequences"),
            ({"limits": [Limit("patches", [0, 0, 0], -1)]}, "the cap on patches is -1"),
            ({"costs": [1.0, np.inf, 1.0]}, "piece 1 costs inf"),
            ({"priority": [1]}, r"priority .* 3 pieces"),
            ({"costs": [1.0]}, r"costs .* 3 pieces"),
            ({"costs": [1.0, np.nan, 1.0]}, "piece 1 costs nan"),
            ({"costs": [1.0, 1.0, -1.0]}, "piece 2 costs -1"),
            ({"limits": [Limit("patches", [0, 9, 0], 8)]}, "piece 1 has 9 patches; allowed are 0 to 8"),
            ({"limits": [Limit("patches", [0, 9], 8)]}, r"patches .* 3 pieces"),
        ],
    )
    def test_impossible_arguments_are_named(
        self, packer: Packer, arguments: dict[str, Any], found: str
    ) -> None:
        with pytest.raises(ValueError, match=found):
            packer(**dict[str, Any](lengths=[1, 2, 3], num_sequences=2, capacity=8) | arguments)


# name -> costs
_WORK: dict[str, NDArray[np.float64]] = {
    "nothing": np.empty(0),
    "one": np.array([3.0]),
    "equal": np.full(12, 5.0),
    "nine fives": np.full(9, 5.0),
    "free": np.zeros(12),
    "one dear, the others free": np.array([0.0, 0, 0, 9, 0, 0, 0, 0]),
    "one dear": np.array([99.0, 1, 1, 1, 1, 1, 1, 1]) ** 2,
    "ties": np.array([3.0, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2]),
    "tiny": np.linspace(1e-290, 1e-280, 16),
    "huge": np.linspace(1e280, 1e290, 16),
    "skewed": _skewed(256, 8192).astype(np.float64) ** 2,
    "many": _skewed(4096, 8192).astype(np.float64),
}


class BalancerContract:
    """What every balancer does."""

    @pytest.fixture(params=list(BALANCERS))
    def balancer(self, request: pytest.FixtureRequest) -> Balancer:
        return BALANCERS[request.param]

    @pytest.fixture(params=[name for name in BALANCERS if name not in ORDERED])
    def sorting_balancer(self, request: pytest.FixtureRequest) -> Balancer:
        return BALANCERS[request.param]

    @pytest.fixture(params=list(_WORK))
    def costs(self, request: pytest.FixtureRequest) -> NDArray[np.float64]:
        return _WORK[request.param]

    @pytest.mark.parametrize("num_ranks", [1, 3, 4, 64])
    def test_each_item_has_a_rank_and_none_is_idle_without_need(
        self, balancer: Balancer, costs: NDArray[np.float64], num_ranks: int
    ) -> None:
        result = balancer(costs, num_ranks)
        assert result.dtype == np.int32
        assert result.shape == costs.shape
        assert result.min(initial=0) >= 0
        counts = np.bincount(result, minlength=num_ranks)
        assert len(counts) == num_ranks
        assert np.count_nonzero(counts) == min(num_ranks, len(costs))

    @pytest.mark.parametrize("num_ranks", [1, 2, 4, 64])
    def test_equal_counts_are_equal(
        self, balancer: Balancer, costs: NDArray[np.float64], num_ranks: int
    ) -> None:
        per_rank = -(-len(costs) // num_ranks)
        counts = np.bincount(balancer(costs, num_ranks, per_rank), minlength=num_ranks)
        assert counts.max() <= per_rank
        if len(costs) == per_rank * num_ranks:
            assert counts.tolist() == [per_rank] * num_ranks

    def test_many_items_on_many_ranks(self, balancer: Balancer) -> None:
        costs = _skewed(20_480, 8192).astype(np.float64)
        for num_ranks, per_rank in ((1024, 20), (2, 10_240), (1, 20_480)):
            counts = np.bincount(balancer(costs, num_ranks, per_rank), minlength=num_ranks)
            assert counts.tolist() == [per_rank] * num_ranks

    def test_the_result_is_a_function_of_the_ratios(
        self, balancer: Balancer, costs: NDArray[np.float64]
    ) -> None:
        before = costs.copy()
        for per_rank in (None, -(-len(costs) // 4)):
            first = balancer(costs, 4, per_rank).tolist()
            assert balancer(costs.tolist(), 4, per_rank).tolist() == first
            assert balancer(costs * 2.0, 4, per_rank).tolist() == first
        assert np.array_equal(costs, before)

    def test_order_of_arrival_does_not_matter(
        self, sorting_balancer: Balancer, costs: NDArray[np.float64]
    ) -> None:
        def contents(items: NDArray[np.float64], per_rank: int | None) -> list[list[float]]:
            result = sorting_balancer(items, 4, per_rank)
            return [sorted(items[result == rank].tolist()) for rank in range(4)]

        shuffled = np.random.default_rng(4).permutation(costs)
        for per_rank in (None, -(-len(costs) // 4)):
            assert contents(shuffled, per_rank) == contents(costs, per_rank)

    @pytest.mark.parametrize(
        ("arguments", "found"),
        [
            ({"costs": [1.0, np.nan]}, "item 1 costs nan"),
            ({"costs": [1.0, np.inf]}, "item 1 costs inf"),
            ({"costs": [-1.0, 2.0]}, "item 0 costs -1"),
            ({"costs": [[1.0]]}, r"shape \(1, 1\)"),
            ({"num_ranks": 0}, "num_ranks is 0"),
            ({"per_rank": 1}, "3 items do not fit 2 ranks of at most 1"),
        ],
    )
    def test_impossible_arguments_are_named(
        self, balancer: Balancer, arguments: dict[str, Any], found: str
    ) -> None:
        with pytest.raises(ValueError, match=found):
            balancer(**dict[str, Any](costs=[1.0, 2.0, 3.0], num_ranks=2) | arguments)


_BOUNDS: dict[str, Callable[[int], list[int]]] = {
    "nothing": lambda _: [0],
    "empty documents": lambda _: [0, 0, 0],
    "one document": lambda cp: [0, 6 * cp],
    "short documents": lambda cp: [0, 1, 2, 3, 2 * cp + 3, 2 * cp + 3, 8 * cp],
    "uneven documents": lambda cp: [0, 5 * cp + 1, 7 * cp, 20 * cp],
}


class CutContract:
    """What every cut of a sequence over cp ranks does, where the sequence is a multiple of 2 cp."""

    @pytest.fixture(params=list(CUTS))
    def cut(self, request: pytest.FixtureRequest) -> Cut:
        return CUTS[request.param]

    @pytest.mark.parametrize("cp", [1, 2, 3, 8])
    @pytest.mark.parametrize("bounds", _BOUNDS.values(), ids=_BOUNDS)
    def test_ranks_share_the_tokens_equally(
        self, cut: Cut, bounds: Callable[[int], list[int]], cp: int
    ) -> None:
        cu_seqlens = np.array(bounds(cp), np.int32)
        parts = cut(cu_seqlens, cp)
        total = int(cu_seqlens[-1])
        assert [part.dtype for part in parts] == [np.dtype(np.int32)] * cp
        assert [len(part) for part in parts] == [total // cp] * cp
        assert sorted(np.concatenate(parts).tolist()) == list(range(total))
        assert all(np.all(np.diff(part) > 0) for part in parts)

    @pytest.mark.parametrize(
        ("cu_seqlens", "cp", "found"),
        [
            ([0, 8], 0, "cp is 0"),
            ([], 2, "begin with 0"),
            ([1, 8], 2, "begin with 0"),
            ([0, 8, 4], 2, "falls from 8 to 4 after document 1"),
        ],
    )
    def test_bounds_that_are_none_are_named(
        self, cut: Cut, cu_seqlens: list[int], cp: int, found: str
    ) -> None:
        with pytest.raises(ValueError, match=found):
            cut(np.array(cu_seqlens, np.int32), cp)
