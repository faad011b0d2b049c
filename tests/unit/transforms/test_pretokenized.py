"""Pre-tokenized rows against a builder that goes through them number by number."""

import numpy as np
import pytest

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.transforms.base import MediaSizes, RowColumns
from dataloader_svc.transforms.pretokenized import assemble_ids

EOS, VOCAB, IMAGE = 2, 100, 50


def made(ids, masks=None, *, eos=EOS, bad=None):
    rows = RowColumns(len(ids), MediaSizes.none(len(ids)), ids=ids, masks=masks)
    return assemble_ids(rows, vocab_size=VOCAB, eos=eos, placeholders=[IMAGE], bad={} if bad is None else bad)


def row(documents, number):
    part = slice(documents.id_offsets[number], documents.id_offsets[number + 1])
    return documents.ids[part].tolist(), documents.targets[part].tolist()


def slow(ids, mask, eos):
    mask = [1] * len(ids) if mask is None else list(mask)
    if eos is not None and ids[-1] != eos:
        return [*ids, eos], [*mask, mask[-1]]
    return list(ids), mask


@pytest.mark.parametrize("eos", [EOS, None])
@pytest.mark.parametrize("dtypes", [["uint16"], ["int64", "uint64", "int32", "<u4"]])
@pytest.mark.parametrize("masked", [True, False])
def test_against_the_slow_builder(eos, dtypes, masked):
    random = np.random.default_rng(4)
    ids, masks = [], []
    for number in range(40):
        length = int(random.integers(1, 9))
        ids.append(random.integers(0, IMAGE, length).astype(dtypes[number % len(dtypes)]))
        masks.append(random.integers(0, 2, length))
        masks[-1][0] = 1
        if number % 3 == 0:
            ids[-1][-1] = EOS
    documents = made(ids, masks if masked else None, eos=eos)
    assert not documents.bad
    assert documents.ids.dtype == np.int32
    assert documents.targets.dtype == np.uint8
    for number in range(40):
        mask = masks[number].tolist() if masked else None
        assert row(documents, number) == slow(ids[number].tolist(), mask, eos)
    assert documents.media_offsets.tolist() == [0] * 41


@pytest.mark.parametrize(
    ("ids", "mask", "reason", "words"),
    [
        ([1, 7, 100, 300], None, Reason.BAD_RECORD, "token 2 is 100: not in 0 to 99"),
        ([1, -1], None, Reason.BAD_RECORD, "token 1 is -1"),
        ([1, IMAGE], None, Reason.BAD_RECORD, "token 1 is 50: a medium's place"),
        ([], None, Reason.EMPTY_TEXT, "no token ids"),
        ([True, False], None, Reason.WRONG_TYPE, "booleans"),
        ([1, 2], [1], Reason.BAD_RECORD, "1 values of the loss mask for 2 token ids"),
        ([1, 2], [0, 2], Reason.BAD_RECORD, "value 1 of the loss mask is 2"),
        ([1, 2], [0, -1], Reason.BAD_RECORD, "value 1 of the loss mask is -1"),
        ([1, 2], [0, 0], Reason.BAD_RECORD, "nothing to learn"),
    ],
)
def test_a_bad_row_takes_no_other_with_it(ids, mask, reason, words):
    good, good_mask = np.array([3, 4]), np.array([0, 1])
    mask = [1] * len(ids) if mask is None else mask
    known = BadSample(Reason.BAD_RECORD, "known")
    all_ids = [good, np.array(ids), None, good]
    masks = [good_mask, np.array(mask), None, good_mask]
    documents = made(all_ids, masks, bad={2: known})
    assert set(documents.bad) == {1, 2}
    assert documents.bad[1].reason is reason
    assert words in documents.bad[1].detail
    assert row(documents, 1) == row(documents, 2) == ([], [])
    assert row(documents, 0) == row(documents, 3) == ([3, 4, EOS], [0, 1, 1])


def test_numbers_that_no_type_holds_are_no_ids():
    documents = made([np.array([2**63 + 5], np.uint64), np.array([1], np.int64)])
    assert list(documents.bad) == [0]


def test_no_rows_and_only_bad_rows():
    assert made([]).id_offsets.tolist() == [0]
    documents = made([np.array([-1]), np.array([], np.int32)], [np.array([1]), np.array([])])
    assert documents.id_offsets.tolist() == [0, 0, 0]
    assert set(documents.bad) == {0, 1}


def test_a_mask_says_of_the_added_end_what_it_says_of_the_last_token():
    documents = made([np.array([3, 4]), np.array([3, 4])], [np.array([1, 0]), np.array([0, 1])])
    assert row(documents, 0) == ([3, 4, EOS], [1, 0, 0])
    assert row(documents, 1) == ([3, 4, EOS], [0, 1, 1])
