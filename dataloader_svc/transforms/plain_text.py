"""Documents of text alone, `[bos] text eos`: most tokens of most jobs, so it asks little of each row.

The same documents as the general way in `document.py`, which takes over where there are media, messages or
control words. Per block: one loop over rows, one call of the tokenizer, one copy of the ids to make room for
the ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.transforms.base import Documents, RowColumns
from dataloader_svc.transforms.encode import differences, encode
from dataloader_svc.transforms.tokenizers import Tokenizer

NO_TOKENS = BadSample(Reason.EMPTY_TEXT, "the tokenizer makes nothing of the text")
NO_UNICODE = BadSample(Reason.BAD_RECORD, "text holds half a surrogate pair: it is no Unicode")


def blank(text: str) -> bool:
    """Empty, or nothing but white space."""
    return not text or text.isspace()


def text_problem(text: object) -> BadSample | None:
    """Why a value of a text field can't be a document."""
    if text is None:
        return BadSample(Reason.MISSING_FIELD, "text is null")
    if not isinstance(text, str):
        return BadSample(Reason.WRONG_TYPE, f"text is {type(text).__name__}, not a string")
    return BadSample(Reason.EMPTY_TEXT, "text is empty or blank") if blank(text) else None


def assemble_plain(
    tokenizer: Tokenizer, eos: int, bos: int | None, rows: RowColumns, bad: dict[int, BadSample]
) -> Documents:
    """Documents of `rows.texts`; rows that can't be one are added to `bad`."""
    assert rows.texts is not None
    texts = _texts(rows.texts, bad)
    good = np.ones(rows.num_rows, bool)
    good[list(bad)] = False
    row_of = np.flatnonzero(good)
    segments = encode(tokenizer, texts)
    length = np.diff(segments.offsets)
    for i in np.flatnonzero(length == 0).tolist():
        bad[int(row_of[i])] = NO_UNICODE if i in segments.broken else NO_TOKENS

    kept = length > 0
    around = 1 if bos is None else 2
    row_length = np.zeros(rows.num_rows, np.int64)
    row_length[row_of[kept]] = length[kept] + around
    id_offsets = np.zeros(rows.num_rows + 1, np.int64)
    np.cumsum(row_length, out=id_offsets[1:])
    full = row_length > 0
    ids, targets = _framed(segments.ids, id_offsets[:-1][full], id_offsets[1:][full] - 1, eos, bos)
    compared = _compared(rows, row_of, kept)
    differing = differences(tokenizer, segments, compared)
    return Documents(
        ids=ids,
        id_offsets=id_offsets,
        targets=targets,
        media_offsets=np.zeros(rows.num_rows + 1, np.int32),
        media_index=np.empty(0, np.int64),
        media_start=np.empty(0, np.int32),
        bad=bad,
        compared=len(compared),
        differing={int(row_of[i]): what for i, what in differing.items()},
    )


def _texts(texts: Sequence[Any], bad: dict[int, BadSample]) -> list[str]:
    """The texts of good rows; the others are added to `bad`."""
    # Blocks of short texts have some 100,000 rows, so this asks as little as it can.
    odd = [row for row, text in enumerate(texts) if not isinstance(text, str) or not text or text.isspace()]
    for row in odd:
        if row not in bad and (problem := text_problem(texts[row])):
            bad[row] = problem
    return [text for row, text in enumerate(texts) if row not in bad] if bad else list(texts)


def _framed(
    tokens: NDArray[np.int32], starts: NDArray[np.int64], ends: NDArray[np.int64], eos: int, bos: int | None
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Ids and targets with room made for `eos` at `ends` and, unless None, `bos` at `starts`."""
    total = int(ends[-1]) + 1 if len(ends) else 0
    ids = np.empty(total, np.int32)
    targets = np.ones(total, np.uint8)
    is_text = np.ones(total, bool)
    is_text[ends] = False
    if bos is not None:
        is_text[starts] = False
        targets[starts] = 0
    ids[is_text] = tokens
    ids[ends] = eos
    if bos is not None:
        ids[starts] = bos
    return ids, targets


def _compared(rows: RowColumns, row_of: NDArray[np.int64], kept: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Segments to compare with the reference."""
    if rows.compare is None:
        return np.empty(0, np.int64)
    return np.flatnonzero(rows.compare[row_of] & kept)
