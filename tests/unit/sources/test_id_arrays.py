"""Token ids from lists, .npy files, raw bytes and Arrow columns, against Python's own lists."""

import io

import numpy as np
import pyarrow as pa
import pytest

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.sources.id_arrays import numbers_column, numbers_value


def npy(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    "value",
    [
        [1, 2, 70000],
        np.array([1, 2, 70000]),
        npy(np.array([1, 2, 70000], np.uint32)),
        npy(np.array([1, 2, 70000], ">i8")),
        np.array([1, 2, 70000], "<u4").tobytes(),
    ],
)
def test_the_same_numbers(value):
    assert numbers_value(value, "x", "uint32").tolist() == [1, 2, 70000]


def test_booleans_are_a_mask():
    assert numbers_value([True, False], "x").tolist() == [True, False]
    assert numbers_value([], "x").tolist() == []


@pytest.mark.parametrize(
    ("value", "id_type", "reason", "words"),
    [
        (None, None, Reason.MISSING_FIELD, "is null"),
        ("1 2", None, Reason.WRONG_TYPE, "is a string"),
        ([1, 2.0], None, Reason.WRONG_TYPE, "'x[1]' must be a whole number, is 2.0"),
        ([1, None], None, Reason.WRONG_TYPE, "'x[1]' must be a whole number, is null"),
        ([1, True], None, Reason.WRONG_TYPE, "'x[1]' must be a whole number, is a boolean"),
        ([1, "2"], None, Reason.WRONG_TYPE, "is a string"),
        ([[1], [2]], None, Reason.WRONG_TYPE, "'x[0]' must be a whole number, is a list"),
        ([1, 10**30], None, Reason.WRONG_TYPE, "no 64-bit number"),
        (npy(np.array([1.5])), None, Reason.WRONG_TYPE, "is of float64"),
        (npy(np.array([[1]])), None, Reason.WRONG_TYPE, "has shape (1, 1)"),
        (npy(np.array([1, 2]))[:-1], None, Reason.BAD_RECORD, "no .npy array"),
        (npy(np.array([1, 2]))[:9], None, Reason.BAD_RECORD, "no .npy array"),
        (npy(np.array([{}]), allow_pickle=True), None, Reason.BAD_RECORD, "no .npy array"),
        (b"\1\0\2\0", None, Reason.WRONG_TYPE, "id_type: uint16"),
        (b"\1\0\2", "uint16", Reason.TRUNCATED, "3 bytes"),
    ],
)
def test_what_are_no_numbers(value, id_type, reason, words):
    with pytest.raises(BadSample) as caught:
        numbers_value(value, "x", id_type)
    assert caught.value.reason is reason
    assert words in caught.value.detail


ROWS = [[1, 2, 3], [], [4], None, [5, None], [6, 7]]


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.large_list(pa.uint16()), pa.list_(pa.int64())])
@pytest.mark.parametrize("first", [0, 1, 4])
def test_an_arrow_column(kind, first):
    """Also of a slice, whose offsets do not begin at zero, and of several chunks."""
    column = pa.chunked_array([pa.array(ROWS, kind), pa.array([[8, 9]], kind)]).slice(first)
    values, bad = numbers_column(column, "x")
    expected = [*ROWS, [8, 9]][first:]
    wrong = {row for row, value in enumerate(expected) if value is None or None in value}
    assert set(bad) == wrong
    for row, value in enumerate(expected):
        if row in wrong:
            assert values[row] is None
        else:
            assert values[row].tolist() == value
            assert values[row].dtype == np.dtype(kind.value_type.to_pandas_dtype())


def test_the_reasons_of_an_arrow_column():
    _, bad = numbers_column(pa.chunked_array([pa.array(ROWS, pa.list_(pa.int32()))]), "x")
    assert {row: problem.reason for row, problem in bad.items()} == {
        3: Reason.MISSING_FIELD,
        4: Reason.WRONG_TYPE,
    }


def test_lists_of_one_length_and_booleans():
    column = pa.chunked_array([pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32(), 2)).slice(1)])
    assert [value.tolist() for value in numbers_column(column, "x")[0]] == [[3, 4], [5, 6]]
    column = pa.chunked_array([pa.array([[True], [False, None]])])
    values, bad = numbers_column(column, "x")
    assert values[0].tolist() == [True]
    assert list(bad) == [1]


def test_arrow_numbers_are_not_copied():
    array = pa.array([[1, 2], [3]], pa.list_(pa.int32()))
    values, _ = numbers_column(pa.chunked_array([array]), "x")
    assert all(np.shares_memory(value, array.values.to_numpy()) for value in values)
