import numpy as np
import pytest

from dataloader_balancers import CUTS


def attention(parts, bounds):
    """Earlier tokens of its document, and itself, that each rank's tokens attend to."""
    bounds = np.asarray(bounds)
    start = bounds[np.searchsorted(bounds, np.arange(bounds[-1]), side="right") - 1]
    work = np.arange(bounds[-1]) - start + 1
    return [int(work[part].sum()) for part in parts]


def test_one_document_is_cut_alike_by_both():
    expected = [[0, 1, 6, 7], [2, 3, 4, 5]]
    for cut in CUTS.values():
        assert [part.tolist() for part in cut([0, 8], 2)] == expected


def test_what_is_left_of_a_document_lies_in_its_middle():
    first, second = CUTS["per_document"]([0, 7, 12], 2)
    #  0 | 1 | 2 3 4 | 5 | 6 and 7 | 8 | 9 | 10 | 11; the four in the middles are dealt 0 1 0 1
    assert first.tolist() == [0, 2, 4, 6, 7, 11]
    assert second.tolist() == [1, 3, 5, 8, 9, 10]


def test_cut_by_document_every_rank_attends_alike():
    bounds = np.cumsum([0, *np.random.default_rng(0).integers(1, 3000, 12)])
    bounds[-1] += -bounds[-1] % 16
    work = attention(CUTS["per_document"](bounds, 8), bounds)
    assert max(work) - min(work) <= 2 * bounds[-1]  # two tokens a document
    assert max(work) / min(work) < 1.01


def test_cut_by_sequence_only_a_single_document_is_even():
    one = attention(CUTS["per_sequence"]([0, 8192], 4), [0, 8192])
    assert len(set(one)) == 1
    bounds = [0, 5000, 5200, 6100, 8192]
    several = attention(CUTS["per_sequence"](bounds, 4), bounds)
    assert max(several) / (sum(several) / 4) > 1.2


def test_a_sequence_that_does_not_divide_is_refused_with_the_length_to_pad_to():
    with pytest.raises(
        ValueError, match="30 tokens does not divide into 2 x cp = 8 equal chunks; pad it to 32"
    ):
        CUTS["per_sequence"]([0, 30], 4)


def test_a_total_that_does_not_divide_differs_by_one():
    sizes = [len(part) for part in CUTS["per_document"]([0, 3, 3, 10], 4)]
    assert sizes == [3, 3, 2, 2]
