"""Cuts in multiples, what they load ranks with, and which of them is chosen."""

import numpy as np
import pytest

from dataloader_balancers import CUTS, Kernel, LlmCost, choose_cut, cut_load
from dataloader_balancers.context_parallel import per_document, per_sequence

COST = LlmCost(24576.0, 1.0)


def test_a_multiple_keeps_runs_whole():
    # two whole units are dealt; the 8 tokens that are left would be a third, but ranks are equal at 4 more
    first, second = per_document([0, 40], 2, 16)
    assert first.tolist() == [*range(16), *range(32, 36)]
    assert second.tolist() == [*range(16, 32), *range(36, 40)]


def test_a_document_that_divides_is_cut_at_multiples_only():
    for part in per_document([0, 64 * 8 * 3 + 64 * 4], 4, 64):
        begins = part[np.flatnonzero(np.diff(part, prepend=-2) != 1)]
        assert len(begins) <= 3  # two of the zig-zag, one of the four units in the middle
        assert not (begins % 64).any()


def test_a_multiple_of_a_sequence_is_asked_for_with_the_length_to_pad_to():
    assert [part[0] for part in per_sequence([0, 256], 2, 64)] == [0, 64]
    with pytest.raises(ValueError, match="4 equal chunks of a multiple of 64 tokens; pad it to 256"):
        per_sequence([0, 128], 2, 64)


@pytest.mark.parametrize("cut", [per_document, per_sequence])
def test_a_multiple_of_none_is_refused(cut):
    with pytest.raises(ValueError, match="multiple is 0; at least 1"):
        cut([0, 8], 2, 0)


def test_load_of_a_short_cut_by_hand():
    """Documents of 4 and 2 tokens; rank 0 has the first's ends and one of the second, in tiles of 2."""
    load = cut_load([0, 4, 6], ([0, 3, 4], [1, 2, 5]), LlmCost(10.0, 0.5), Kernel(tile=2, per_run=100.0))
    assert load.tokens.tolist() == [3, 3]
    assert load.pairs.tolist() == [1 + 4 + 1, 2 + 3 + 2]
    # rank 0: a tile of 2 x 2 keys for token 0, 2 x 4 for token 3, 2 x 2 for token 4;
    # rank 1: 2 x 4 for tokens 1 and 2, 2 x 2 for token 5
    assert load.tiles.tolist() == [4 + 8 + 4, 8 + 4]
    assert load.runs.tolist() == [3, 2]
    assert load.time.tolist() == [30 + 16 + 300, 30 + 12 + 200]
    assert load.dearest == 346


def test_a_single_document_is_cut_by_sequence_in_as_few_runs():
    chosen = choose_cut([0, 8192], 4, COST)
    assert chosen.name == "per_document"  # the same cut: of equal ones the first name
    assert chosen.load.time.tolist() == chosen.loads["per_sequence"].time.tolist()


def test_long_and_short_documents_are_cut_by_document():
    chosen = choose_cut([0, 60_000, *range(61_000, 65_536, 500), 65_536], 8, COST)
    assert chosen.name == "per_document"
    assert chosen.load.dearest < 0.92 * chosen.loads["per_sequence"].dearest


def test_many_short_documents_are_cut_by_sequence():
    """Cut by document each run is far below a tile, which is computed whole."""
    chosen = choose_cut(np.arange(0, 8193, 128), 8, COST)
    assert chosen.name == "per_sequence"
    assert chosen.load.runs.max() < chosen.loads["per_document"].runs.max() / 4
    ideal = Kernel(tile=1)
    by_document = cut_load(
        np.arange(0, 8193, 128), CUTS["per_document"](np.arange(0, 8193, 128), 8), COST, ideal
    )
    assert by_document.dearest <= cut_load(np.arange(0, 8193, 128), chosen.parts, COST, ideal).dearest


def test_the_name_for_configurations_chooses_alike():
    for bounds in ([0, 60_000, 65_536], np.arange(0, 8193, 128)):
        chosen = choose_cut(bounds, 8, COST)
        assert all(map(np.array_equal, CUTS["cheaper"](bounds, 8), chosen.parts))


def test_dear_launches_turn_the_choice():
    bounds = [0, 3000, 5000, 8192]
    assert choose_cut(bounds, 4, COST, Kernel(tile=1)).name == "per_document"
    assert choose_cut(bounds, 4, COST, Kernel(tile=1, per_run=1e8)).name == "per_sequence"


def test_a_sequence_that_does_not_divide_is_cut_by_document():
    chosen = choose_cut([0, 3, 13], 4, COST)
    assert list(chosen.loads) == ["per_document"]
    assert chosen.load.tokens.tolist() == [4, 3, 3, 3]
    with pytest.raises(ValueError, match="pad it to 16"):
        choose_cut([0, 3, 13], 4, COST, name="per_sequence")


def test_one_cut_can_be_asked_for():
    assert choose_cut([0, 60_000, 65_536], 8, COST, name="per_sequence").name == "per_sequence"
    with pytest.raises(ValueError, match="'zigzag'; known: per_document, per_sequence, cheaper"):
        choose_cut([0, 8], 2, COST, name="zigzag")


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"tile": 0}, "tile is 0"),
        ({"multiple": -1}, "multiple -1"),
        ({"per_run": float("nan")}, "per_run is nan"),
        ({"per_run": -1.0}, "per_run is -1"),
    ],
)
def test_an_impossible_kernel_is_named(arguments, found):
    with pytest.raises(ValueError, match=found):
        Kernel(**arguments)


@pytest.mark.parametrize(
    ("bounds", "cp", "found"),
    [([], 2, "begin with 0"), ([0, 8, 4], 2, "falls from 8"), ([0, 8], 0, "cp is 0")],
)
def test_impossible_bounds_are_named(bounds, cp, found):
    with pytest.raises(ValueError, match=found):
        choose_cut(bounds, cp, COST)


def test_a_million_tokens_are_cut_and_loaded():
    chosen = choose_cut([0, 1_000_000], 8, COST, Kernel(multiple=128))
    assert chosen.load.tokens.sum() == 1_000_000
    assert int(chosen.load.pairs.sum()) == 1_000_000 * 1_000_001 // 2
    assert chosen.load.pairs.max() / chosen.load.pairs.mean() < 1.001
