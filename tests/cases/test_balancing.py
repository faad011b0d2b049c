"""Trouble cases 57 and 58: lengths that broke other packers. What is right stands beside each in data/."""

import json
from pathlib import Path

import numpy as np
import pytest

from dataloader_balancers import BALANCERS, PACKERS, loads

DATA = Path(__file__).parent / "data"
PACKING = json.loads((DATA / "57-pack-too-long-and-empty" / "lengths.json").read_text())
BALANCE = json.loads((DATA / "58-micro-batch-token-limit" / "balance.json").read_text())

packers = pytest.mark.parametrize("packer", PACKERS.values(), ids=PACKERS)
balancers = pytest.mark.parametrize("balancer", BALANCERS.values(), ids=BALANCERS)


def held(result, lengths, num_sequences):
    return np.bincount(result[result >= 0], np.asarray(lengths)[result >= 0], num_sequences)


@packers
class TestTooLongAndEmpty:
    """57: the rule for long samples is applied before; packers refuse what it should not have left."""

    cap = PACKING["seq_len"]

    def test_unruled_lengths_are_refused_in_a_short_message(self, packer):
        with pytest.raises(ValueError, match="piece 1 has 40 tokens; allowed are 1 to 32") as refused:
            packer(PACKING["lengths"], 4, self.cap)
        assert len(str(refused.value)) < 200

    def test_dropped(self, packer):
        kept = [length for length in PACKING["lengths"] if 0 < length <= self.cap]
        result = packer(kept, 2, self.cap)
        assert held(result, kept, 2).tolist() in ([32, 12], [12, 32])

    def test_truncated(self, packer):
        cut = [min(length, self.cap) for length in PACKING["lengths"] if length]
        result = packer(cut, 5, self.cap)
        assert sorted(held(result, cut, 5)) == [12, 32, 32, 32, 32]

    def test_split(self, packer):
        pieces = []
        for length in PACKING["lengths"]:
            pieces += [self.cap] * (length // self.cap) + [length % self.cap] * (length % self.cap > 0)
        assert sum(pieces) == 1_000_117
        count = -(-sum(pieces) // self.cap)
        load = held(packer(pieces, count, self.cap), pieces, count)
        assert load.sum() == 1_000_117
        assert load.max() <= self.cap


class TestTokenLimit:
    """58: balancing by the mean alone puts two samples where one fits, or leaves a rank with none."""

    @packers
    def test_eight_sevens_need_eight_places(self, packer):
        lengths, limit = BALANCE["a"]["lengths"], BALANCE["a"]["limit"]
        assert sorted(packer(lengths, 8, limit)) == list(range(8))
        result = packer(lengths, 7, limit)
        assert sorted(result) == [-1, *range(7)]

    @balancers
    def test_no_rank_is_left_without(self, balancer):
        ranks = BALANCE["b"]["ranks"]
        counts = np.bincount(balancer(BALANCE["b"]["lengths"], ranks), minlength=ranks)
        assert sorted(counts) == [2, 2, 2, 3]

    @packers
    def test_a_sample_over_the_limit_is_refused(self, packer):
        with pytest.raises(ValueError, match="piece 0 has 9 tokens; allowed are 1 to 8"):
            packer(BALANCE["c"]["lengths"], 3, BALANCE["c"]["limit"])

    def test_a_dear_sample_stands_alone(self):
        lengths = np.array(BALANCE["d"]["lengths"])
        result = BALANCERS["lpt"](lengths.astype(float) ** 2, BALANCE["d"]["ranks"])
        assert sorted(loads(lengths, result, 2)) == [7, 99]

    @balancers
    def test_fewer_samples_than_ranks(self, balancer):
        """One rank gets none; the plan gives it an empty sequence."""
        ranks = BALANCE["e"]["ranks"]
        counts = np.bincount(balancer(BALANCE["e"]["lengths"], ranks, 1), minlength=ranks)
        assert sorted(counts) == [0, 1, 1, 1]
