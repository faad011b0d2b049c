"""The rows of a block to documents: `[bos] text and media placeholders eos`, with the mask of targets.

Everything is done for the block at once: rows are cut into parts, all text parts go through one call of the
tokenizer, and the parts' lengths place them. Python runs per row and per medium, never per token.

Rules. The n-th marker of a kind is the row's n-th medium of that kind; without markers media go in front of
the text; any other number of markers makes a bad sample. Markers count only where the source maps that kind
of medium: code that says `<image>` in a text source is text. A row whose text is empty or blank, markers
aside, is a bad sample. A medium is a run of its kind's token, as long as its header says.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.config.schema import Config, Source
from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.transforms.base import IMAGE, MEDIA_KINDS, VIDEO, Documents, Part, RowColumns
from dataloader_svc.transforms.chat import ChatTemplate
from dataloader_svc.transforms.text import Tokenizer

_TEXT, _CONTROL, _MEDIUM = 0, 1, 2


@dataclass(frozen=True, slots=True)
class DocumentRule:
    """How a source's rows become documents; token ids are resolved.

    bos            None: documents have no start token
    media_tokens   id of the image and of the video placeholder; -1 where there is none
    markers        string of each kind that the source maps, in a text
    chat           the template, where rows are messages
    """

    eos: int
    bos: int | None = None
    media_tokens: tuple[int, int] = (-1, -1)
    markers: tuple[tuple[str, int], ...] = ()
    chat: ChatTemplate | None = None

    @classmethod
    def of(
        cls, config: Config, source: Source, tokenizer: Tokenizer, chat: ChatTemplate | None
    ) -> DocumentRule:
        """The rule of a configured source. Raises ConfigError for a token that the vocabulary lacks."""
        names = (config.media_tokens.image, config.media_tokens.video)
        markers = (config.markers.image, config.markers.video)
        mapped = [kind for kind in (IMAGE, VIDEO) if getattr(source, MEDIA_KINDS[kind]) is not None]
        image, video = (-1 if name is None else tokenizer.token_id(name) for name in names)
        return cls(
            eos=tokenizer.eos_id(config.eos),
            bos=tokenizer.bos_id(config.bos),
            media_tokens=(image, video),
            markers=tuple((markers[kind], kind) for kind in mapped),
            chat=chat,
        )


@dataclass(slots=True)
class _Parts:
    """Parts of all rows as columns under construction.

    value: of a text part the number of its segment, of a control part the id, of a medium its index
    """

    kind: list[int] = field(default_factory=list)
    value: list[int] = field(default_factory=list)
    target: list[int] = field(default_factory=list)
    row_ends: list[int] = field(default_factory=list)
    segments: list[str] = field(default_factory=list)

    def text(self, text: str, target: bool) -> None:
        self._add(_TEXT, len(self.segments), target)
        self.segments.append(text)

    def control(self, token: int, target: bool) -> None:
        self._add(_CONTROL, token, target)

    def medium(self, index: int) -> None:
        self._add(_MEDIUM, index, False)

    def _add(self, kind: int, value: int, target: bool) -> None:
        self.kind.append(kind)
        self.value.append(value)
        self.target.append(target)

    def cut(self, length: int, segments: int) -> None:
        """Forget what was added beyond these sizes: the row turned out bad."""
        del self.kind[length:], self.value[length:], self.target[length:], self.segments[segments:]


@dataclass(frozen=True, slots=True)
class _PartColumns:
    kind: NDArray[np.uint8]
    value: NDArray[np.int64]
    target: NDArray[np.uint8]
    row_offsets: NDArray[np.int64]
    segments: list[str]


def assemble(tokenizer: Tokenizer, rule: DocumentRule, rows: RowColumns) -> Documents:
    """Documents of a block's rows. A row that can't be one stands in `bad` of the result."""
    bad = dict(rows.bad)
    if rows.texts is not None and not rule.markers:
        parts = _plain_parts(rows.texts, rule, bad)
    else:
        parts = _general_parts(rows, rule, bad)
    return _join(tokenizer, rule, rows, parts, bad)


def _blank(text: str) -> bool:
    return not text or text.isspace()


def _check_text(text: object) -> BadSample | None:
    if text is None:
        return BadSample(Reason.MISSING_FIELD, "text is null")
    if not isinstance(text, str):
        return BadSample(Reason.WRONG_TYPE, f"text is {type(text).__name__}, not a string")
    return BadSample(Reason.EMPTY_TEXT, "text is empty or blank") if _blank(text) else None


def _plain_parts(texts: Sequence[Any], rule: DocumentRule, bad: dict[int, BadSample]) -> _PartColumns:
    """Of texts without media: [bos] text eos for each good row, laid out without a loop over parts."""
    # The one loop over rows: blocks of short texts have some 100,000, so it asks as little as it can.
    odd = [row for row, text in enumerate(texts) if not isinstance(text, str) or not text or text.isspace()]
    for row in odd:
        if row not in bad and (problem := _check_text(texts[row])):
            bad[row] = problem
    segments = [text for row, text in enumerate(texts) if row not in bad] if bad else list(texts)
    good = np.ones(len(texts), bool)
    good[list(bad)] = False
    has_bos = rule.bos is not None
    # axes: (good rows, parts of a row)
    shape = (len(segments), 2 + has_bos)
    kind = np.full(shape, _CONTROL, np.uint8)
    value = np.full(shape, rule.eos, np.int64)
    target = np.ones(shape, np.uint8)
    kind[:, -2] = _TEXT
    value[:, -2] = np.arange(len(segments))
    if rule.bos is not None:
        value[:, 0] = rule.bos
        target[:, 0] = 0
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(good * shape[1], out=offsets[1:])
    return _PartColumns(kind.reshape(-1), value.reshape(-1), target.reshape(-1), offsets, segments)


def _general_parts(rows: RowColumns, rule: DocumentRule, bad: dict[int, BadSample]) -> _PartColumns:
    parts = _Parts()
    pattern = re.compile("|".join(f"({re.escape(marker)})" for marker, _ in rule.markers) or r"(?!)")
    for row in range(rows.num_rows):
        before = len(parts.kind), len(parts.segments)
        if row not in bad:
            try:
                _row_parts(parts, pattern, rule, rows, row)
            except BadSample as problem:
                bad[row] = problem
                parts.cut(*before)
        parts.row_ends.append(len(parts.kind))
    return _PartColumns(
        np.array(parts.kind, np.uint8),
        np.array(parts.value, np.int64),
        np.array(parts.target, np.uint8),
        np.array([0, *parts.row_ends], np.int64),
        parts.segments,
    )


def _row_parts(out: _Parts, pattern: re.Pattern[str], rule: DocumentRule, rows: RowColumns, row: int) -> None:
    """Add the parts of one row. Raises BadSample."""
    first, last = rows.media.offsets[row], rows.media.offsets[row + 1]
    kinds = rows.media.kind[first:last]
    media = [[int(first + i) for i in np.flatnonzero(kinds == kind)] for kind in (IMAGE, VIDEO)]
    for _, kind in rule.markers:
        if not media[kind]:
            raise BadSample(Reason.MISSING_FIELD, f"the row has no {MEDIA_KINDS[kind]}")
    if rows.texts is not None:
        text = rows.texts[row]
        problem = _check_text(text)
        if problem or text is None:
            raise problem or AssertionError("a null text is a problem")
        if _blank(pattern.sub("", text)):
            raise BadSample(Reason.EMPTY_TEXT, "text is blank but for markers")
        source = [Part(text, -1, typed=True, target=True)]
    else:
        assert rows.messages is not None
        assert rule.chat is not None
        source = rule.chat.parts(rows.messages[row])
    pieces = _place_media(source, pattern, rule, media)
    if rule.bos is not None and not (pieces and pieces[0] == (rule.bos, False)):
        out.control(rule.bos, target=False)
    for piece, target in pieces:
        if isinstance(piece, str):
            out.text(piece, target)
        elif isinstance(piece, _Medium):
            out.medium(piece.index)
        else:
            out.control(piece, target)
    if not _ends_with(pieces, rule.eos):
        # The end of a chat is learnt only where it ends the assistant's turn; of a text, always.
        out.control(rule.eos, target=rows.texts is not None or pieces[-1][1])


@dataclass(frozen=True, slots=True)
class _Medium:
    index: int


_Piece = tuple[str | int | _Medium, bool]
"""Text, control token or medium; and whether it is a target."""


def _place_media(
    source: list[Part], pattern: re.Pattern[str], rule: DocumentRule, media: list[list[int]]
) -> list[_Piece]:
    """`source` with media in place of their markers, or in front of the first typed text."""
    pieces: list[_Piece] = []
    markers = [0, 0]
    front = 0
    seen_typed = False
    for part in source:
        if part.typed and not seen_typed:
            front, seen_typed = len(pieces), True
        for piece in _cut(part, pattern, rule):
            if isinstance(piece, _Medium):
                kind = piece.index
                number, markers[kind] = markers[kind], markers[kind] + 1
                if number < len(media[kind]):
                    pieces.append((_Medium(media[kind][number]), False))
            else:
                pieces.append((piece, part.target))
    unplaced: list[_Piece] = []
    for kind, wanted in enumerate(map(len, media)):
        if markers[kind] == 0:
            unplaced += [(_Medium(index), False) for index in media[kind]]
        elif markers[kind] != wanted:
            name = MEDIA_KINDS[kind]
            raise BadSample(Reason.MARKER_MISMATCH, f"{markers[kind]} {name} markers for {wanted} {name}s")
    pieces[front:front] = unplaced
    return _merged(pieces)


def _cut(part: Part, pattern: re.Pattern[str], rule: DocumentRule) -> list[str | int | _Medium]:
    """A part at its markers; here a `_Medium` holds the kind. A template may write a medium's own token."""
    if part.text is None:
        if part.token in rule.media_tokens:
            return [_Medium(rule.media_tokens.index(part.token))]
        return [part.token]
    if not part.typed:
        return [part.text]
    found: list[str | int | _Medium] = []
    at = 0
    for match in pattern.finditer(part.text):
        if match.start() > at:
            found.append(part.text[at : match.start()])
        assert match.lastindex is not None
        found.append(_Medium(rule.markers[match.lastindex - 1][1]))
        at = match.end()
    if at < len(part.text):
        found.append(part.text[at:])
    return found


def _merged(pieces: list[_Piece]) -> list[_Piece]:
    """Neighbouring texts joined where both are targets or both are not.

    A model that is asked sees its prompt tokenized in one piece and makes its answer from there; so must the
    documents that it learns from be.
    """
    merged: list[_Piece] = []
    for piece, target in pieces:
        if merged and isinstance(piece, str) and isinstance(merged[-1][0], str) and merged[-1][1] == target:
            merged[-1] = (merged[-1][0] + piece, target)
        else:
            merged.append((piece, target))
    return merged


def _ends_with(pieces: list[_Piece], token: int) -> bool:
    """Whether `token` is last, white space aside."""
    for piece, _ in reversed(pieces):
        if not (isinstance(piece, str) and piece.isspace()):
            return piece == token
    return False


def _join(
    tokenizer: Tokenizer, rule: DocumentRule, rows: RowColumns, parts: _PartColumns, bad: dict[int, BadSample]
) -> Documents:
    """One call of the tokenizer, and every array of the block from the parts' lengths."""
    tokens, segment_offsets, broken = _encode(tokenizer, parts.segments)
    is_text, is_medium = parts.kind == _TEXT, parts.kind == _MEDIUM
    length = np.ones(len(parts.kind), np.int64)
    length[is_text] = np.diff(segment_offsets)
    length[is_medium] = rows.media.tokens[parts.value[is_medium]]
    _drop_broken(rows.num_rows, parts, length, is_text, broken, bad)

    ends = np.zeros(len(length) + 1, np.int64)
    np.cumsum(length, out=ends[1:])
    id_offsets = ends[parts.row_offsets]
    fill = np.where(is_medium, -1, parts.value)
    fill[is_medium] = np.array(rule.media_tokens)[rows.media.kind[parts.value[is_medium]]]
    ids = np.repeat(fill.astype(np.int32), length)
    ids[np.repeat(is_text, length)] = tokens

    media = np.flatnonzero(is_medium & (length > 0))
    media_row = np.searchsorted(parts.row_offsets, media, side="right") - 1
    media_offsets = np.searchsorted(media, parts.row_offsets).astype(np.int32)
    return Documents(
        ids=ids,
        id_offsets=id_offsets,
        targets=np.repeat(parts.target, length),
        media_offsets=media_offsets,
        media_index=parts.value[media],
        media_start=(ends[media] - id_offsets[media_row]).astype(np.int32),
        bad=bad,
    )


def _encode(
    tokenizer: Tokenizer, segments: list[str]
) -> tuple[NDArray[np.int32], NDArray[np.int64], list[int]]:
    """Ids and offsets of all segments, and the segments that no tokenizer takes (given no tokens)."""
    try:
        return *tokenizer.encode_batch(segments), []
    except (UnicodeEncodeError, TypeError):
        broken = [i for i, segment in enumerate(segments) if not _is_unicode(segment)]
        if not broken:
            raise
    segments = segments.copy()
    for i in broken:
        segments[i] = ""
    return *tokenizer.encode_batch(segments), broken


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _drop_broken(
    num_rows: int,
    parts: _PartColumns,
    length: NDArray[np.int64],
    is_text: NDArray[np.bool_],
    broken: list[int],
    bad: dict[int, BadSample],
) -> None:
    """Take rows out whose text is no Unicode or gave no token: their parts' lengths become 0, in place."""
    row_of = np.repeat(np.arange(num_rows), np.diff(parts.row_offsets))
    text_tokens = np.bincount(row_of[is_text], weights=length[is_text], minlength=num_rows)
    has_parts = np.diff(parts.row_offsets) > 0
    out = has_parts & (text_tokens == 0)
    for row in np.flatnonzero(out).tolist():
        bad[row] = BadSample(Reason.EMPTY_TEXT, "the tokenizer makes nothing of the text")
    if broken:
        in_broken = is_text & np.isin(parts.value, broken)
        for row in np.unique(row_of[in_broken]).tolist():
            out[row] = True
            bad[row] = BadSample(Reason.BAD_RECORD, "text holds half a surrogate pair: it is no Unicode")
    length[out[row_of]] = 0
