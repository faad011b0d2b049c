"""The records that transforms hand on: parts of a document, media and documents of a block. Data only.

Rows become documents in two moves. A row is first cut into parts (`text.py` splits control words, `chat.py`
renders messages, `document.py` finds media markers); then the parts of a whole block become columns at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.errors import BadSample

IMAGE, VIDEO, AUDIO = 0, 1, 2
"""Kinds of media, as in the `media_kind` columns here and on the wire."""

MEDIA_KINDS = ("image", "video", "audio")
"""Role of each kind; the index is the kind."""


class Part(NamedTuple):
    """A stretch of a document: `text`, or one control token (`text` is None and `token` its id), or a slot.

    typed     from the data, so its words are plain text and markers in it may count; else from the template
    target    whether the model learns to produce it
    slot      kind of the medium that goes here; -1: no slot
    """

    text: str | None
    token: int
    typed: bool
    target: bool
    slot: int = -1


@dataclass(frozen=True, slots=True)
class MediaSizes:
    """What the headers of a block's media say. Row i has media `offsets[i]:offsets[i+1]`, in row order.

    offsets int64 (n+1,); kind uint8 (m,); tokens int32 (m,): placeholders that the medium takes, > 0
    """

    offsets: NDArray[np.int64]
    kind: NDArray[np.uint8]
    tokens: NDArray[np.int32]

    @classmethod
    def none(cls, num_rows: int) -> MediaSizes:
        """Of rows without media."""
        return cls(np.zeros(num_rows + 1, np.int64), np.empty(0, np.uint8), np.empty(0, np.int32))


@dataclass(frozen=True, slots=True)
class RowColumns:
    """What `document.assemble` needs of a block's n rows: one of texts, messages, interleaved and ids.

    interleaved  lists of typed parts, as in `slots.py`
    ids, masks   arrays of whole numbers, a row each
    prompts      of texts or messages: how many of a row's first characters or messages are no targets
    bad          rows that are out already; their values are ignored
    compare      bool (n,), or None for none: rows whose text is encoded again by the tokenizer's reference
    """

    num_rows: int
    media: MediaSizes
    texts: Sequence[str | None] | None = None
    messages: Sequence[object] | None = None
    interleaved: Sequence[Any] | None = None
    ids: Sequence[Any] | None = None
    masks: Sequence[Any] | None = None
    prompts: Sequence[int] | None = None
    bad: Mapping[int, BadSample] = field(default_factory=dict)
    compare: NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of a block as columns. A bad row has no tokens and no media, and stands in `bad`.

    ids            int32 (t,)    document i is `ids[id_offsets[i]:id_offsets[i+1]]`
    id_offsets     int64 (n+1,)
    targets        uint8 (t,)    1 where the model may learn to produce the token
    media_offsets  int32 (n+1,)  ragged index into the two below, in the order of the tokens
    media_index    int64 (k,)    which medium of `MediaSizes`
    media_start    int32 (k,)    its first placeholder, in the document
    second         int32 (n,), or None for none: of samples that are two documents (`pairs.py`), the first
                   token of the second; 0 in bad ones
    bad            row -> why; those of `RowColumns.bad` and the ones found here
    compared       documents that were encoded a second time, by the reference
    differing      row -> what is different, of those
    """

    ids: NDArray[np.int32]
    id_offsets: NDArray[np.int64]
    targets: NDArray[np.uint8]
    media_offsets: NDArray[np.int32]
    media_index: NDArray[np.int64]
    media_start: NDArray[np.int32]
    bad: Mapping[int, BadSample]
    compared: int = 0
    differing: Mapping[int, str] = field(default_factory=dict)
    second: NDArray[np.int32] | None = None
