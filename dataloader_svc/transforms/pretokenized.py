"""Rows of token ids to documents, `ids [eos]`: no text is tokenized, and no token is touched in Python.

Rules. An id outside the vocabulary makes a bad sample that names it; so does a placeholder of a picture or
video, for which there would be no pixels. `eos` is put at the end where the source says so and it isn't there
already. A loss mask has a 0 or 1 for each token, 1 where the model learns to produce it; of an `eos` put
there it says what it says of the last token. No start token is added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.transforms.base import Documents, RowColumns

_Rows = dict[int, NDArray[Any]]
"""Row -> its numbers, of rows that are still good, ascending."""


def assemble_ids(
    rows: RowColumns,
    *,
    vocab_size: int,
    eos: int | None,
    placeholders: Sequence[int],
    bad: dict[int, BadSample],
) -> Documents:
    """Documents of `rows.ids`, with `rows.masks` as their targets. Rows that can't be one are added to `bad`.

    eos            appended where a row does not end with it; None: rows stay as they are
    placeholders   ids that stand for media
    """
    assert rows.ids is not None
    good = {row: ids for row, ids in enumerate(rows.ids) if row not in bad}
    masks = None if rows.masks is None else {row: rows.masks[row] for row in good}
    for row, ids in list(good.items()):
        if (problem := _row_problem(ids, None if masks is None else masks[row])) is not None:
            bad[row] = problem
            del good[row]
    _leave_out(good, bad, lambda ids: (ids < 0) | (ids >= vocab_size), f"not in 0 to {vocab_size - 1}")
    if placeholders:
        reserved = np.array(placeholders)
        _leave_out(good, bad, lambda ids: np.isin(ids, reserved), "a medium's place, and there is no medium")
    if masks is not None:
        masks = {row: masks[row] for row in good}
        _leave_out_masks(good, masks, bad)
    return _documents(rows.num_rows, good, masks, eos, bad)


def _row_problem(ids: NDArray[Any], mask: NDArray[Any] | None) -> BadSample | None:
    """What the sizes and types of one row say."""
    if ids.dtype.kind == "b":
        return BadSample(Reason.WRONG_TYPE, "token ids are booleans")
    if not len(ids):
        return BadSample(Reason.EMPTY_TEXT, "no token ids")
    if mask is not None and len(mask) != len(ids):
        return BadSample(Reason.BAD_RECORD, f"{len(mask)} values of the loss mask for {len(ids)} token ids")
    return None


def _leave_out(
    good: _Rows, bad: dict[int, BadSample], is_bad: Callable[[NDArray[Any]], NDArray[np.bool_]], what: str
) -> None:
    """Move rows that hold a number with `is_bad` from `good` to `bad`."""
    for row, at in _first_bad(good, is_bad):
        token = int(good.pop(row)[at])
        bad[row] = BadSample(Reason.BAD_RECORD, f"token {at} is {token}: {what}")


def _leave_out_masks(good: _Rows, masks: _Rows, bad: dict[int, BadSample]) -> None:
    for row, at in _first_bad(masks, lambda mask: (mask != 0) & (mask != 1)):
        value = int(masks.pop(row)[at])
        bad[row] = BadSample(Reason.BAD_RECORD, f"value {at} of the loss mask is {value}, not 0 or 1")
        del good[row]
    for row in [row for row, mask in masks.items() if not mask.any()]:
        bad[row] = BadSample(Reason.BAD_RECORD, "the loss mask is all 0: nothing to learn")
        del masks[row], good[row]


def _first_bad(rows: _Rows, is_bad: Callable[[NDArray[Any]], NDArray[np.bool_]]) -> list[tuple[int, int]]:
    """(row, index in it) of the first bad number of each row that has one. One pass over the numbers."""
    numbers = list(rows)
    found = np.flatnonzero(is_bad(_joined(rows)))
    if not len(found):
        return []
    ends = np.cumsum([len(values) for values in rows.values()])
    which, first = np.unique(np.searchsorted(ends, found, side="right"), return_index=True)
    starts = np.concatenate([[0], ends])
    return [
        (numbers[i], int(found[k] - starts[i])) for i, k in zip(which.tolist(), first.tolist(), strict=True)
    ]


def _joined(rows: _Rows) -> NDArray[Any]:
    """All numbers; int64 where the rows' types differ (numpy would join uint64 and int64 as floats)."""
    values = list(rows.values())
    if len({value.dtype for value in values}) > 1:
        values = [value.astype(np.int64) for value in values]
    return np.concatenate(values) if values else np.empty(0, np.int64)


def _documents(
    num_rows: int, good: _Rows, masks: _Rows | None, eos: int | None, bad: dict[int, BadSample]
) -> Documents:
    lengths = np.zeros(num_rows, np.int64)
    ended = np.zeros(num_rows, np.bool_)
    for row, ids in good.items():
        lengths[row] = len(ids)
        ended[row] = eos is not None and ids[-1] != eos
    id_offsets = np.zeros(num_rows + 1, np.int64)
    np.cumsum(lengths + ended, out=id_offsets[1:])
    ends = id_offsets[1:][ended] - 1
    is_given = np.ones(int(id_offsets[-1]), np.bool_)
    is_given[ends] = False
    ids_out = np.empty(len(is_given), np.int32)
    ids_out[is_given] = _joined(good)
    ids_out[ends] = -1 if eos is None else eos
    targets = np.ones(len(is_given), np.uint8)
    if masks is not None:
        targets[is_given] = _joined(masks)
        targets[ends] = targets[ends - 1]
    return Documents(
        ids=ids_out,
        id_offsets=id_offsets,
        targets=targets,
        media_offsets=np.zeros(num_rows + 1, np.int32),
        media_index=np.empty(0, np.int64),
        media_start=np.empty(0, np.int32),
        bad=bad,
    )
