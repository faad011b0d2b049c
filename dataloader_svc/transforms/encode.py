"""All text of a block through the tokenizer at once, and the share of it that is encoded a second time.

A segment is a stretch of text between control tokens and media. Some hold half a surrogate pair, which no
tokenizer takes: those get no tokens and are named. Knows nothing of rows but which segments are theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.transforms.tokenizers import Tokenizer
from dataloader_svc.transforms.tokenizers.choose import first_difference
from dataloader_svc.transforms.unicode import is_unicode

_MOST_COMPARED = 2048
"""Characters of a segment that are compared. The reference may be 300 times slower than what it is held
against: with whole documents one in a thousand would cost a fifth of a loader's time, and a book minutes."""


@dataclass(frozen=True, slots=True)
class Segments:
    """The text segments of a block in order, encoded.

    inner     bool (s,), or None for none: segments that the reference puts no space in front of
    ids       int32 (t,)    segment i is `ids[offsets[i]:offsets[i+1]]`
    offsets   int64 (s+1,)
    broken    segments that are no Unicode; without tokens
    """

    texts: Sequence[str]
    inner: NDArray[np.bool_] | None
    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    broken: tuple[int, ...]


def encode(tokenizer: Tokenizer, texts: list[str], inner: NDArray[np.bool_] | None = None) -> Segments:
    """Ids of all segments."""
    try:
        return Segments(texts, inner, *tokenizer.encode_batch(texts, inner), ())
    except (UnicodeEncodeError, TypeError):
        broken = tuple(i for i, text in enumerate(texts) if not is_unicode(text))
        if not broken:
            raise
    texts = texts.copy()
    for i in broken:
        texts[i] = ""
    return Segments(texts, inner, *tokenizer.encode_batch(texts, inner), broken)


def differences(tokenizer: Tokenizer, segments: Segments, chosen: NDArray[np.int64]) -> dict[int, str]:
    """Segments, of those chosen, whose ids are not what the reference gives -> the difference, in words.

    Of a longer segment the first `_MOST_COMPARED` characters are compared, encoded by themselves.
    """
    if not len(chosen):
        return {}
    numbers = chosen.tolist()
    texts = [segments.texts[i][:_MOST_COMPARED] for i in numbers]
    inner = None if segments.inner is None else segments.inner[chosen]
    expected, ends = tokenizer.encode_reference(texts, inner)
    found: dict[int, str] = {}
    for at, i in enumerate(numbers):
        theirs = expected[ends[at] : ends[at + 1]]
        if len(texts[at]) == len(segments.texts[i]):
            ours = segments.ids[segments.offsets[i] : segments.offsets[i + 1]]
        else:
            ours, _ = tokenizer.encode_batch(
                texts[at : at + 1], None if inner is None else inner[at : at + 1]
            )
        if not np.array_equal(ours, theirs):
            what = first_difference(ours.tolist(), theirs.tolist(), tokenizer.library)
            found[i] = f"{tokenizer.backend_used} gives {what} for {texts[at][:40]!r}"
    return found
