"""Cut instead of fitted: no gap, but where a picture would be cut."""

import numpy as np
import pytest

from dataloader_balancers.pack import Spans, concatenate


def rows(made):
    columns = (made.document, made.start, made.length, made.sequence)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_documents_are_cut_where_a_sequence_is_full():
    assert rows(concatenate([3, 5, 10], 6)) == [
        (0, 0, 3, 0),
        (1, 0, 3, 0),
        (1, 3, 2, 1),
        (2, 0, 4, 1),
        (2, 4, 6, 2),
    ]


def test_a_picture_is_not_cut_and_leaves_a_gap_before_it():
    spans = Spans(document=[1, 2], start=[2, 3], length=[3, 4])
    assert rows(concatenate([3, 5, 10], 6, protected=spans)) == [
        (0, 0, 3, 0),
        (1, 0, 2, 0),  # five tokens in the first sequence
        (1, 2, 3, 1),
        (2, 0, 3, 1),
        (2, 3, 6, 2),  # the picture begins where a cut falls
        (2, 9, 1, 3),
    ]


def test_what_is_beyond_the_sequences_of_a_step_waits():
    assert rows(concatenate([3, 5, 10], 6, num_sequences=2)) == [
        (0, 0, 3, 0),
        (1, 0, 3, 0),
        (1, 3, 2, 1),
        (2, 0, 4, 1),
        (2, 4, 6, -1),
    ]
    assert rows(concatenate([4], 6, num_sequences=9)) == [(0, 0, 4, 0)]
    assert rows(concatenate([], 6)) == []


def test_a_million_tokens_in_one_document_and_a_million_documents():
    made = concatenate([1_000_000], 4096)
    assert made.length.tolist() == [4096] * 244 + [1_000_000 % 4096]
    made = concatenate(np.full(1_000_000, 7), 4096)
    assert np.bincount(made.sequence, made.length)[:-1].tolist() == [4096] * (7_000_000 // 4096)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"lengths": [4, 0]}, "piece 1 has 0 tokens"),
        ({"lengths": [4.0]}, "float64"),
        ({"capacity": 0}, "at least one sequence"),
        ({"num_sequences": 0}, "at least one sequence"),
        ({"protected": Spans([2], [0], [1])}, "span 0 is in document 2; allowed are 0 to 1"),
        ({"protected": Spans([0], [0], [0])}, "span 0 has length 0"),
        ({"protected": Spans([1], [0], [7])}, "span 0 has length 7; allowed are 1 to 6"),
        ({"protected": Spans([0], [2], [3])}, r"span 0 is \[2, 5\) of document 0, which has 4 tokens"),
        ({"protected": Spans([1, 0], [0, 0], [2, 2])}, "span 1 begins before the end"),
        ({"protected": Spans([0, 0], [0, 1], [2, 2])}, "span 1 begins before the end"),
        ({"protected": Spans([0], [0, 1], [2])}, "starts of spans"),
    ],
)
def test_impossible_arguments_are_named(arguments, found):
    with pytest.raises(ValueError, match=found):
        concatenate(**{"lengths": [4, 9], "capacity": 6} | arguments)
