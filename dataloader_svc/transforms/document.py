"""The rows of a block to documents: `[bos] text and media placeholders eos`, with the mask of targets.

Everything is done for the block at once: rows are cut into parts, all text parts go through one call of the
tokenizer, and the parts' lengths place them. Python runs per row and per medium, never per token.

Rules. The n-th marker of a kind is the row's n-th medium of that kind; without markers media go in front of
the text; any other number of markers makes a bad sample. Markers count only where the source maps that kind
of medium: code that says `<image>` in a text source is text. Where a row has slots (`slots.py`), they are the
places of its media, and markers typed beside them are text. A row whose text is empty or blank, markers
aside, is a bad sample. A text needs its media; a chat may do without, it is text then. A medium is a run of
its kind's token, as long as its header says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.config.schema import Config, Source
from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.transforms.base import MEDIA_KINDS, Documents, Part, RowColumns
from dataloader_svc.transforms.encode import Segments, differences, encode
from dataloader_svc.transforms.placing import Cutter, Medium, ends_with, place_media
from dataloader_svc.transforms.plain_text import NO_TOKENS, NO_UNICODE, assemble_plain, blank, text_problem
from dataloader_svc.transforms.pretokenized import assemble_ids
from dataloader_svc.transforms.slots import chat_slots
from dataloader_svc.transforms.tokenizers import Tokenizer

if TYPE_CHECKING:
    from dataloader_svc.transforms.chat import ChatTemplate  # brings Jinja, which only chats need

_TEXT, _CONTROL, _MEDIUM = 0, 1, 2

_START, _BEHIND_TOKEN, _BEHIND_TEXT = 0, 1, 2
"""Where a text segment stands: at the document's start, behind a control token or medium, behind text."""


@dataclass(frozen=True, slots=True)
class DocumentRule:
    """How a source's rows become documents; token ids are resolved.

    bos            None: documents have no start token
    media_tokens   id of each kind's placeholder; -1 where there is none
    markers        string of each kind that the source maps, in a text
    chat           the template, where rows are messages
    control_words  control words typed in the data are control tokens, not text
    separator      between two texts of an interleaved document that no medium parts
    append_eos     token ids get `eos` at the end where they lack it
    """

    eos: int
    bos: int | None = None
    media_tokens: tuple[int, ...] = (-1,) * len(MEDIA_KINDS)
    markers: tuple[tuple[str, int], ...] = ()
    chat: ChatTemplate | None = None
    control_words: bool = False
    separator: str = ""
    append_eos: bool = True

    @classmethod
    def of(
        cls, config: Config, source: Source, tokenizer: Tokenizer, chat: ChatTemplate | None
    ) -> DocumentRule:
        """The rule of a configured source. Raises ConfigError for a token that the vocabulary lacks."""
        names = [getattr(config.media_tokens, kind) for kind in MEDIA_KINDS]
        mapped = [kind for kind, name in enumerate(MEDIA_KINDS) if getattr(source, name) is not None]
        return cls(
            eos=tokenizer.eos_id(config.eos),
            bos=tokenizer.bos_id(config.bos),
            media_tokens=tuple(-1 if name is None else tokenizer.token_id(name) for name in names),
            markers=tuple((getattr(config.markers, MEDIA_KINDS[kind]), kind) for kind in mapped),
            chat=chat,
            control_words=source.control_words,
            separator="" if source.interleaved is None else source.interleaved.between,
            append_eos=source.append_eos,
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
    places: list[int] = field(default_factory=list)

    def text(self, text: str, target: bool, place: int) -> None:
        self._add(_TEXT, len(self.segments), target)
        self.segments.append(text)
        self.places.append(place)

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
        del self.kind[length:], self.value[length:], self.target[length:]
        del self.segments[segments:], self.places[segments:]


@dataclass(frozen=True, slots=True)
class _PartColumns:
    kind: NDArray[np.uint8]
    value: NDArray[np.int64]
    target: NDArray[np.uint8]
    row_offsets: NDArray[np.int64]
    segments: list[str]
    places: NDArray[np.uint8]


def assemble(tokenizer: Tokenizer, rule: DocumentRule, rows: RowColumns) -> Documents:
    """Documents of a block's rows. A row that can't be one stands in `bad` of the result."""
    bad = dict(rows.bad)
    if rows.ids is not None:
        return assemble_ids(
            rows,
            vocab_size=tokenizer.vocab_size,
            eos=rule.eos if rule.append_eos else None,
            placeholders=[token for token in rule.media_tokens if token >= 0],
            bad=bad,
        )
    if rows.texts is not None and rows.prompts is None and not rule.markers and not rule.control_words:
        return assemble_plain(tokenizer, rule.eos, rule.bos, rows, bad)
    parts = _general_parts(tokenizer, rows, rule, bad)
    return _join(tokenizer, rule, rows, parts, bad)


def _general_parts(
    tokenizer: Tokenizer, rows: RowColumns, rule: DocumentRule, bad: dict[int, BadSample]
) -> _PartColumns:
    parts = _Parts()
    cutter = _cutter(rule, tokenizer)
    for row in range(rows.num_rows):
        before = len(parts.kind), len(parts.segments)
        if row not in bad:
            try:
                _row_parts(parts, rule, cutter, rows, row)
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
        np.array(parts.places, np.uint8),
    )


def _row_parts(out: _Parts, rule: DocumentRule, cutter: Cutter, rows: RowColumns, row: int) -> None:
    """Add the parts of one row. Raises BadSample."""
    first, last = rows.media.offsets[row], rows.media.offsets[row + 1]
    kinds = rows.media.kind[first:last]
    media = [[int(first + i) for i in np.flatnonzero(kinds == kind)] for kind in range(len(MEDIA_KINDS))]
    exact = False
    prompt = 0 if rows.prompts is None else rows.prompts[row]
    if rows.texts is not None:
        source = _text_parts(rows.texts[row], cutter, media, prompt)
    elif rows.interleaved is not None:
        source, exact = _interleaved_parts(rows.interleaved[row], rule.separator), True
    else:
        assert rows.messages is not None
        assert rule.chat is not None
        messages = rows.messages[row]
        source = rule.chat.parts(messages, prompt)
        exact = bool(chat_slots(messages))
    pieces = place_media(source, cutter, media, exact)
    if rule.bos is not None and not (pieces and pieces[0][0] == rule.bos):
        out.control(rule.bos, target=False)
    place = (
        _START  # our own start token does not count: the reference puts it there after it has cut the text
    )
    for piece, target in pieces:
        if isinstance(piece, str):
            out.text(piece, target, place)
        elif isinstance(piece, Medium):
            out.medium(piece.index)
        else:
            out.control(piece, target)
        place = _BEHIND_TEXT if isinstance(piece, str) else _BEHIND_TOKEN
    if not ends_with(pieces, rule.eos):
        # The end of a chat is learnt only where it ends the assistant's turn; of a text, always.
        out.control(rule.eos, target=rows.messages is None or pieces[-1][1])


def _cutter(rule: DocumentRule, tokenizer: Tokenizer) -> Cutter:
    split = tokenizer.split_control if rule.control_words else None
    return Cutter.of(rule.markers, rule.media_tokens, split)


def _text_parts(text: str | None, cutter: Cutter, media: list[list[int]], prompt: int) -> list[Part]:
    """Of a text with what media the row has; no target are its first `prompt` characters. BadSample."""
    for _, kind in cutter.markers:
        if not media[kind]:
            raise BadSample(Reason.MISSING_FIELD, f"the row has no {MEDIA_KINDS[kind]}")
    problem = text_problem(text)
    if problem or text is None:
        raise problem or AssertionError("a null text is a problem")
    if blank(cutter.pattern.sub("", text)):
        raise BadSample(Reason.EMPTY_TEXT, "text is blank but for markers")
    learnt = Part(text[prompt:], -1, typed=True, target=True)
    return [Part(text[:prompt], -1, typed=True, target=False), learnt] if prompt else [learnt]


def _interleaved_parts(document: Sequence[Mapping[str, Any]], separator: str) -> list[Part]:
    """Of typed parts. Raises BadSample where all text is blank."""
    parts: list[Part] = []
    for item in document:
        if item["type"] != "text":
            parts.append(Part(None, -1, True, False, slot=MEDIA_KINDS.index(item["type"])))
        elif item["text"]:
            text = separator + item["text"] if parts and parts[-1].slot < 0 else item["text"]
            parts.append(Part(text, -1, typed=True, target=True))
    if all(blank(part.text or "") for part in parts):
        raise BadSample(Reason.EMPTY_TEXT, "the document has no text, or only blank ones")
    return parts


def _join(
    tokenizer: Tokenizer, rule: DocumentRule, rows: RowColumns, parts: _PartColumns, bad: dict[int, BadSample]
) -> Documents:
    """One call of the tokenizer, and every array of the block from the parts' lengths."""
    segments = encode(tokenizer, parts.segments, _inner(tokenizer, parts))
    is_text, is_medium = parts.kind == _TEXT, parts.kind == _MEDIUM
    row_of = np.repeat(np.arange(rows.num_rows), np.diff(parts.row_offsets))
    length = np.ones(len(parts.kind), np.int64)
    length[is_text] = np.diff(segments.offsets)
    length[is_medium] = rows.media.tokens[parts.value[is_medium]]
    out = _rows_without_text(rows.num_rows, row_of[is_text], length[is_text], segments.broken, bad)
    out &= np.diff(parts.row_offsets) > 0
    length[out[row_of]] = 0

    ends = np.zeros(len(length) + 1, np.int64)
    np.cumsum(length, out=ends[1:])
    id_offsets = ends[parts.row_offsets]
    fill = np.where(is_medium, -1, parts.value)
    fill[is_medium] = np.array(rule.media_tokens)[rows.media.kind[parts.value[is_medium]]]
    ids = np.repeat(fill.astype(np.int32), length)
    kept = ~out[row_of[is_text]]
    tokens = segments.ids if kept.all() else segments.ids[np.repeat(kept, np.diff(segments.offsets))]
    ids[np.repeat(is_text, length)] = tokens

    media = np.flatnonzero(is_medium & (length > 0))
    media_row = np.searchsorted(parts.row_offsets, media, side="right") - 1
    media_offsets = np.searchsorted(media, parts.row_offsets).astype(np.int32)
    compared, differing = _compare(tokenizer, rows, segments, row_of[is_text], kept)
    return Documents(
        ids=ids,
        id_offsets=id_offsets,
        targets=np.repeat(parts.target, length),
        media_offsets=media_offsets,
        media_index=parts.value[media],
        media_start=(ends[media] - id_offsets[media_row]).astype(np.int32),
        bad=bad,
        compared=compared,
        differing=differing,
    )


def _inner(tokenizer: Tokenizer, parts: _PartColumns) -> NDArray[np.bool_] | None:
    """Segments that the reference would put no space in front of, were the document one text."""
    if tokenizer.prefix == "never":
        return None
    return parts.places > (_START if tokenizer.prefix == "first" else _BEHIND_TOKEN)


def _rows_without_text(
    num_rows: int,
    segment_row: NDArray[np.int64],
    segment_length: NDArray[np.int64],
    broken: tuple[int, ...],
    bad: dict[int, BadSample],
) -> NDArray[np.bool_]:
    """Rows whose text gave no token or is no Unicode, bool (num_rows,); the reason is added to `bad`."""
    out: NDArray[np.bool_] = np.bincount(segment_row, weights=segment_length, minlength=num_rows) == 0
    for row in np.flatnonzero(out).tolist():
        bad.setdefault(row, NO_TOKENS)
    for row in np.unique(segment_row[list(broken)]).tolist():
        out[row] = True
        bad[row] = NO_UNICODE
    return out


def _compare(
    tokenizer: Tokenizer,
    rows: RowColumns,
    segments: Segments,
    segment_row: NDArray[np.int64],
    kept: NDArray[np.bool_],
) -> tuple[int, dict[int, str]]:
    """Documents compared with the tokenizer's reference, and row -> difference."""
    if rows.compare is None:
        return 0, {}
    chosen = np.flatnonzero(rows.compare[segment_row] & kept)
    found = differences(tokenizer, segments, chosen)
    differing: dict[int, str] = {}
    for segment, what in found.items():
        differing.setdefault(int(segment_row[segment]), what)
    return len(np.unique(segment_row[chosen])), differing
