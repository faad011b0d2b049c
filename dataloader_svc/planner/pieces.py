"""Documents into pieces: what becomes of one that is longer than a sequence, and where it may be cut.

`cut` turns the probe of a block into `BlockPieces`, once a block; selection then takes runs of it. Pieces are
columns (`Pieces`), never objects. Knows nothing of mixtures, steps or ranks. `select.py` goes on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.errors import Reason
from dataloader_svc.sample import BadRow, BlockId, ProbeColumns

Column = NDArray[np.int64]
Counts = NDArray[np.int64] | NDArray[np.int32]
TooLong = Literal["split", "truncate", "drop", "error"]

_COLUMNS = ("source", "epoch", "position", "start", "length", "patches", "block", "frames", "media")


@dataclass(frozen=True, slots=True)
class Room:
    """The most that a sequence holds: tokens, and of its media encoder patches, mel frames, and how many they
    are; None: any.
    """

    tokens: int
    patches: int | None = None
    frames: int | None = None
    media: int | None = None

    def lacks(self, tokens: Counts, patches: Counts, frames: Counts, media: Counts) -> NDArray[np.bool_]:
        """(n,) whether each, of so many tokens, patches, frames and media, is too much for a sequence."""
        over: NDArray[np.bool_] = tokens > self.tokens
        for values, most in ((patches, self.patches), (frames, self.frames), (media, self.media)):
            if most is not None:
                over = over | (values > most)
        return over

    def told(self, tokens: int, patches: int, frames: int, media: int) -> str:
        """What of a document that is too much is above which setting."""
        settings = (
            (tokens, self.tokens, "tokens, sequence_length"),
            (patches, self.patches, "patches, strategy.limits.patches"),
            (frames, self.frames, "frames, strategy.limits.frames"),
            (media, self.media, "media, strategy.limits.media"),
        )
        return "; ".join(
            f"{found} {name} {most}" for found, most, name in settings if most is not None and found > most
        )


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """n token ranges of documents, as int64 columns (n,).

    source    index into the sorted names of the job's sources
    epoch, position   name the sample; `block` holds it
    start, length     tokens of the document
    patches   encoder patches of the media inside the range
    frames    mel frames of the sound inside the range
    media     how many pictures, clips and sounds there are inside the range; 0 beside patches or frames: it
              was not counted, by an earlier version of the service
    """

    source: Column
    epoch: Column
    position: Column
    start: Column
    length: Column
    patches: Column
    block: Column
    frames: Column
    media: Column

    @classmethod
    def empty(cls) -> Self:
        return cls(*(np.empty(0, np.int64) for _ in _COLUMNS))

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """The parts one after the other."""
        if not parts:
            return cls.empty()
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS))

    def take(self, index: NDArray[np.integer] | NDArray[np.bool_]) -> Self:
        """The pieces at `index`, or where a mask is true."""
        return type(self)(*(getattr(self, name)[index] for name in _COLUMNS))

    def __len__(self) -> int:
        return len(self.length)

    @property
    def has_media(self) -> NDArray[np.bool_]:
        """(n,) whether there is any in the range: such a piece is never cut again."""
        return (self.patches > 0) | (self.frames > 0)

    @property
    def tokens(self) -> int:
        """Over all pieces."""
        return int(self.length.sum())

    @property
    def sample(self) -> Column:
        """(n,) which sample each piece is of, counted from 0 in their order: pieces of one stand together."""
        new = np.zeros(len(self), np.bool_)
        for column in (self.source, self.epoch, self.position):
            new[1:] |= np.diff(column) != 0
        return np.cumsum(new)

    @property
    def num_samples(self) -> int:
        """Samples that the pieces are of."""
        return int(self.sample[-1]) + 1 if len(self) else 0


@dataclass(frozen=True, slots=True)
class SkippedRow:
    """A position that is passed over; `shard` is "" where only the source's `too_long` rule objects."""

    position: int
    shard: str
    row: int
    reason: str
    detail: str


@dataclass(frozen=True, slots=True, eq=False)
class BlockPieces:
    """A probed block after the source's `too_long` rule. g usable samples, p pieces.

    start, stop     positions of the block
    position        (g,) of each usable sample, ascending
    ends            (g+1,) cumulative tokens of the usable samples, after the rule: what the mixture counts
    piece_offsets   (g+1,) pieces of each sample, index into the five below
    piece_start, piece_length, piece_patches, piece_frames, piece_media   (p,)
    skipped         what is passed over, ascending by position
    """

    block: BlockId
    start: int
    stop: int
    position: Column
    ends: Column
    piece_offsets: Column
    piece_start: Column
    piece_length: Column
    piece_patches: Column
    piece_frames: Column
    piece_media: Column
    skipped: tuple[SkippedRow, ...]

    def run(self, first: int, last: int, source: int) -> Pieces:
        """Pieces of the usable samples `first` to `last` - 1."""
        low, high = int(self.piece_offsets[first]), int(self.piece_offsets[last])
        counts = np.diff(self.piece_offsets[first : last + 1])
        size = high - low
        return Pieces(
            source=np.full(size, source, np.int64),
            epoch=np.full(size, self.block.epoch, np.int64),
            position=np.repeat(self.position[first:last], counts),
            start=self.piece_start[low:high],
            length=self.piece_length[low:high],
            patches=self.piece_patches[low:high],
            block=np.full(size, self.block.block, np.int64),
            frames=self.piece_frames[low:high],
            media=self.piece_media[low:high],
        )

    def skipped_between(self, first: int, stop: int) -> tuple[SkippedRow, ...]:
        """What is passed over at positions `first` to `stop` - 1."""
        low = bisect_left(self.skipped, first, key=_position)
        return self.skipped[low : bisect_left(self.skipped, stop, low, key=_position)]


def _position(row: SkippedRow) -> int:
    return row.position


class TooLongError(ValueError):
    """A document is too much for a sequence and its source's rule is `error`. `detail`: of what, and why."""

    def __init__(self, position: int, detail: str) -> None:
        super().__init__(f"position {position} has {detail}")
        self.position = position
        self.detail = detail


def _skipped(row: BadRow) -> SkippedRow:
    if row.reason == Reason.FILTERED:  # there may be more of these than of samples: records name no row
        return SkippedRow(row.position, "", 0, Reason.FILTERED, "")
    return SkippedRow(row.position, row.row.shard, row.row.row, row.reason, row.detail)


def cut(probe: ProbeColumns, rule: TooLong, room: Room, *, apart: bool = False) -> BlockPieces:
    """Apply a source's `too_long` rule to a block. Raises TooLongError where the rule is `error`.

    apart   each medium is a piece of its own, and so is the text between media, which may be cut again

    A cut never runs through a medium's placeholder span. A document with a medium that is too much for a
    sequence, or one that `truncate` would leave empty, is passed over with the reason `too_long`.
    """
    tokens = probe.tokens.astype(np.int64)
    skipped = {row.position: _skipped(row) for row in probe.bad}
    tokens[[position - probe.start for position in skipped]] = 0
    for index in np.flatnonzero(tokens <= 0).tolist():
        position = probe.start + index
        if position not in skipped:
            skipped[position] = SkippedRow(position, "", 0, Reason.BAD_RECORD, "its probe has no tokens")
    counts = (tokens > 0).astype(np.int64)
    held: tuple[Counts, ...] = (probe.patches, probe.frames, np.diff(probe.media_offsets))
    parts: dict[int, list[_Range]] = {}
    for index in np.flatnonzero(room.lacks(tokens, *held) & (tokens > 0)).tolist():
        detail = room.told(int(tokens[index]), *(int(column[index]) for column in held))
        if rule == "error":
            raise TooLongError(probe.start + index, detail)
        pieces = _ranges(probe, index, rule, room)
        parts[index] = pieces
        counts[index] = len(pieces)
        if not pieces:
            position = probe.start + index
            skipped[position] = SkippedRow(position, "", 0, Reason.TOO_LONG, detail)
        tokens[index] = sum(piece.length for piece in pieces)
    if apart:
        for index in np.flatnonzero((tokens > 0) & (held[2] > 0)).tolist():
            whole = _Range(0, int(tokens[index]), *(int(column[index]) for column in held))
            parts[index] = _apart(probe, index, parts.get(index, [whole]))
            counts[index] = len(parts[index])
    usable = np.flatnonzero(tokens > 0)
    offsets = np.concatenate([[0], np.cumsum(counts[usable])])
    columns = np.zeros((5, int(offsets[-1])), np.int64)  # as in `_Range`
    for row, column in enumerate((tokens, *held), 1):
        columns[row] = np.repeat(column[usable].astype(np.int64), counts[usable])
    first = dict(zip(usable.tolist(), offsets.tolist(), strict=False))
    for index, pieces in parts.items():
        if pieces:
            columns[:, first[index] : first[index] + len(pieces)] = np.array(pieces, np.int64).T
    start, length, patches, frames, media = columns
    return BlockPieces(
        block=probe.block,
        start=probe.start,
        stop=probe.stop,
        position=probe.start + usable,
        ends=np.concatenate([[0], np.cumsum(tokens[usable])]),
        piece_offsets=offsets,
        piece_start=start,
        piece_length=length,
        piece_patches=patches,
        piece_frames=frames,
        piece_media=media,
        skipped=tuple(skipped[position] for position in sorted(skipped)),
    )


class _Range(NamedTuple):
    """A piece, as in `Pieces`."""

    start: int
    length: int
    patches: int
    frames: int
    media: int


def _ranges(probe: ProbeColumns, index: int, rule: TooLong, room: Room) -> list[_Range]:
    """Each piece of a document that is too much for a sequence; none where it is passed over."""
    media = slice(int(probe.media_offsets[index]), int(probe.media_offsets[index + 1]))
    starts = probe.media_start[media].astype(np.int64)
    lengths = probe.media_tokens[media].astype(np.int64)
    patches, frames = probe.media_patches[media], probe.media_frames[media]
    held: list[Column] = [patches.astype(np.int64), frames.astype(np.int64), np.ones_like(starts)]
    total = int(probe.tokens[index])
    if rule == "drop" or (rule == "split" and bool(room.lacks(lengths, *held).any())):
        return []
    pieces = []
    at = 0
    while at < total:
        end = min(at + room.tokens, total)
        ahead = starts >= at
        lacking = room.lacks(np.zeros_like(starts), *(np.cumsum(column * ahead) for column in held))
        lacking |= starts + lengths > end
        lacking &= ahead & (starts < end)
        if lacking.any():
            end = int(starts[lacking.argmax()])  # before the first medium that has no room
        if end == at:  # `truncate` of a document that begins with a medium that no sequence has room for
            break
        inside = (starts >= at) & (starts < end)
        pieces.append(_Range(at, end - at, *(int(column[inside].sum()) for column in held)))
        if rule == "truncate":
            break
        at = end
    return pieces


def _apart(probe: ProbeColumns, index: int, ranges: list[_Range]) -> list[_Range]:
    """The same ranges of a document, parted before and behind each medium."""
    media = slice(int(probe.media_offsets[index]), int(probe.media_offsets[index + 1]))
    columns = (probe.media_start, probe.media_tokens, probe.media_patches, probe.media_frames)
    rows = list(zip(*(column[media].tolist() for column in columns), strict=True))
    result = []
    for piece in ranges:
        at, end = piece.start, piece.start + piece.length
        for start, length, patches, frames in rows:
            if not at <= start < end:
                continue
            if start > at:
                result.append(_Range(at, start - at, 0, 0, 0))
            result.append(_Range(start, length, patches, frames, 1))
            at = start + length
        if at < end:
            result.append(_Range(at, end - at, 0, 0, 0))
    return result
