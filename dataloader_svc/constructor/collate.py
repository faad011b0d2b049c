"""Sequences of a step -> one rank's microbatches as contiguous arrays, uncut.

Pure. Both layouts are one algorithm: a rank's tokens are a run of *segments* (pieces of samples, padding
documents, fillers), laid out sequence after sequence; a padded batch is the same run with every sequence
filled up to one length and seen as rows. Fields and shapes: `dataloader_client/batch.py`. What a cp rank
gets of it: `slice.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataloader_client.batch import IGNORED_LABEL, PAD_ID, Layout
from dataloader_svc.constructor.dispatch import PIXELS, Awaited, Table
from dataloader_svc.constructor.ragged import ragged
from dataloader_svc.constructor.sound import Clips
from dataloader_svc.constructor.step import AUDIO, KINDS, Samples, StepPlan

Empty = Callable[[Any, Any], NDArray[Any]]
"""(shape, dtype) -> an array to be filled: `numpy.empty`, or one in shared memory."""

_PAD_DOCUMENT = -1  # attended to: every row and every flash-attention call needs a token
_FILLER = -2  # masked by attention_mask; only in the padded layout


@dataclass(frozen=True, slots=True)
class Form:
    """What all batches of a session have in common.

    `merge`^2 patches are one token; a patch is `pixel_width` = 3*patch*patch bytes. `pairs`: a source of the
    job has preference pairs, so all batches have their fields. `frames_per_token` mel frames are one token; a
    frame is `mel_bins` float32. `to_longest`: padded rows are as long as the longest of their microbatch,
    not as `sequence_length`. `ensure_modality`: a slice without media of a kind that the step has elsewhere
    gets a placeholder. `encoder_ranks`: with `encoder_placement: dispatch` all ranks along dp and cp, else 0.
    """

    layout: Layout
    sequence_length: int
    cp: int
    pixel_width: int
    merge: int
    pairs: bool = False
    mel_bins: int = 128
    frames_per_token: int = 4
    to_longest: bool = False
    ensure_modality: bool = False
    encoder_ranks: int = 0

    @property
    def multiple(self) -> int:
        """Sequences are padded to a multiple of this, so that a zig-zag cut gives equal halves."""
        return 1 if self.cp == 1 else 2 * self.cp

    def padded(self, tokens: int, longest: int = 0) -> int:
        """Length of a sequence of that many tokens, with its padding; `longest`: most of its microbatch's."""
        if self.layout == "padded":
            tokens = max(tokens, longest if self.to_longest else self.sequence_length)
        return -(-max(tokens, 1) // self.multiple) * self.multiple


@dataclass(frozen=True, slots=True, eq=False)
class Microbatch:
    """One rank's microbatch before the cp cut.

    arrays      fields of `dataloader_client.batch.FIELDS`; token fields are flat (T,) in both layouts
    cu_seqlens  int32 (D+1,) bounds of all segments; rows int64 (B+1,): bounds of sequences, in tokens
    """

    arrays: dict[str, NDArray[Any]]
    cu_seqlens: NDArray[np.int32]
    rows: NDArray[np.int64]
    max_seqlen: int
    num_tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class _Segments:
    """Columns: piece (or _PAD_DOCUMENT, _FILLER), first token in the piece, length, sequence inside the
    microbatch; and, by microbatch, where its segments begin (`bounds`) and the bounds of its rows, in
    segments.

    A piece is one segment; a preference pair is two, one behind the other.
    """

    piece: NDArray[np.int64]
    start: NDArray[np.int64]
    length: NDArray[np.int64]
    sequence: NDArray[np.int64]
    bounds: list[int]
    row_bounds: list[list[int]]

    @property
    def first_of_piece(self) -> NDArray[np.bool_]:
        """Which segments a piece begins with."""
        first: NDArray[np.bool_] = (self.piece >= 0) & (self.start == 0)
        return first


def collate(
    plan: StepPlan,
    samples: Samples,
    dp_rank: int,
    form: Form,
    empty: Empty = np.empty,
    table: Table | None = None,
) -> list[Microbatch]:
    """A dp rank's microbatches of the step, the same number on every rank. Arrays are views of one
    allocation a field; those of the large fields are made by `empty`.

    table   of the step's media, where they may be encoded elsewhere: they are left out then (`dispatch.py`)
    """
    segments = _lay_out(plan, samples.second.tolist(), dp_rank, form)
    ends = np.cumsum(segments.length)
    starts = ends - segments.length
    tokens = _token_fields(segments, samples, starts, int(ends[-1]), empty)
    if form.layout == "padded":
        tokens |= _mask_fields(segments)
    pairs = _Pairs(segments, samples, starts) if form.pairs else None
    spans = _span_fields(plan, segments, starts)
    media: dict[str, _Media | Clips | Awaited]
    if table is None:
        media = {
            kind: _Media(number, segments, samples, starts, form, empty)
            for number, kind in enumerate(KINDS)
            if kind in PIXELS
        }
        media["audio"] = _clips(segments, samples, starts, form)
    else:
        media = {
            kind: Awaited(kind, table, *_media_of(number, segments, samples, starts))
            for number, kind in enumerate(KINDS)
        }
    presence = samples.presence
    out = []
    for number, (low, high) in enumerate(zip(segments.bounds, segments.bounds[1:], strict=False)):
        first, last = int(starts[low]), int(ends[high - 1])
        arrays = {name: array[first:last] for name, array in tokens.items()}
        cu_seqlens = np.append(starts[low:high], last).astype(np.int32) - np.int32(first)
        if form.layout == "packed":
            arrays["cu_seqlens"] = cu_seqlens
        if pairs is not None:
            arrays |= pairs.between(first, last)
        for kind in KINDS:
            if presence[kind]:
                arrays |= media[kind].between(first, last)
        real = (spans["offset"] >= first) & (spans["offset"] < last)
        arrays |= {f"span_{name}": column[real] for name, column in spans.items()}
        arrays["span_offset"] -= first
        arrays["span_offset"] = arrays["span_offset"].astype(np.int32)
        documents = segments.piece[low:high] != _FILLER
        out.append(
            Microbatch(
                arrays=arrays,
                cu_seqlens=cu_seqlens,
                rows=np.append(starts, ends[-1])[segments.row_bounds[number]] - first,
                max_seqlen=int(segments.length[low:high][documents].max()),
                num_tokens=int(arrays["span_length"].sum()),
            )
        )
    return out


def _lay_out(plan: StepPlan, second: list[int], dp_rank: int, form: Form) -> _Segments:
    piece: list[int] = []
    start: list[int] = []
    length: list[int] = []
    sequence: list[int] = []
    bounds, row_bounds = [0], []
    offsets, lengths = plan.sequence_offsets.tolist(), plan.length.tolist()

    def add(what: int, tokens: int, row: int, begin: int = 0) -> None:
        piece.append(what)
        start.append(begin)
        length.append(tokens)
        sequence.append(row)

    for number in range(plan.num_microbatches):
        mine = np.flatnonzero((plan.dp_rank == dp_rank) & (plan.microbatch == number)).tolist()
        rows = [range(offsets[i], offsets[i + 1]) for i in mine] or [range(0)]
        row_bounds.append([len(piece)])
        longest = max(sum(lengths[index] for index in pieces) for pieces in rows)
        for row, pieces in enumerate(rows):
            for index in pieces:
                if second[index]:
                    add(index, second[index], row)
                add(index, lengths[index] - second[index], row, second[index])
            used = sum(lengths[index] for index in pieces)
            if form.layout == "padded" and not used:
                add(_PAD_DOCUMENT, 1, row)
                used = 1
            rest = form.padded(used, longest) - used
            if rest:
                add(_FILLER if form.layout == "padded" else _PAD_DOCUMENT, rest, row)
            row_bounds[-1].append(len(piece))
        bounds.append(len(piece))
    return _Segments(
        np.array(piece, np.int64),
        np.array(start, np.int64),
        np.array(length, np.int64),
        np.array(sequence, np.int64),
        bounds,
        row_bounds,
    )


def _token_fields(
    segments: _Segments, samples: Samples, starts: NDArray[np.int64], total: int, empty: Empty
) -> dict[str, NDArray[Any]]:
    begins = segments.start.tolist()
    runs = list(zip(segments.piece.tolist(), begins, segments.length.tolist(), strict=True))
    longest = max((n for p, _, n in runs if p < 0), default=0)
    pad_ids, no_targets = np.full(longest, PAD_ID, np.int32), np.zeros(longest, np.uint8)
    input_ids = empty(total, np.int64)
    np.concatenate([samples.ids[p][s : s + n] if p >= 0 else pad_ids[:n] for p, s, n in runs], out=input_ids)
    targets = np.empty(total, np.uint8)
    np.concatenate(
        [samples.targets[p][s : s + n] if p >= 0 else no_targets[:n] for p, s, n in runs], out=targets
    )
    targets[starts] = 0  # nothing in the same document comes before a first token
    labels = empty(total, np.int64)
    labels.fill(IGNORED_LABEL)
    np.copyto(labels[:-1], input_ids[1:], where=targets[1:].astype(bool))
    loss_weight = empty(total, np.float32)
    loss_weight[-1] = 0
    loss_weight[:-1] = targets[1:] != 0
    position_ids = empty(total, np.int64)
    np.subtract(np.arange(total), np.repeat(starts, segments.length), out=position_ids)
    return {
        "input_ids": input_ids,
        "labels": labels,
        "loss_weight": loss_weight,
        "position_ids": position_ids,
    }


def _mask_fields(segments: _Segments) -> dict[str, NDArray[Any]]:
    real = segments.piece != _FILLER
    # Number of each segment inside its row: rows begin where row_bounds say.
    row_starts = np.array(sorted({start for row in segments.row_bounds for start in row[:-1]}), np.int64)
    index = np.arange(len(segments.piece))
    within = index - row_starts[np.searchsorted(row_starts, index, side="right") - 1] + 1
    document_ids = np.where(real, within, 0).astype(np.int32)
    return {
        "attention_mask": np.repeat(real.astype(np.int64), segments.length),
        "document_ids": np.repeat(document_ids, segments.length),
    }


def _span_fields(plan: StepPlan, segments: _Segments, starts: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    real = segments.first_of_piece
    pieces = segments.piece[real]
    return {
        "source": plan.source[pieces].astype(np.int32),
        "epoch": plan.epoch[pieces].astype(np.int32),
        "position": plan.position[pieces],
        "start": plan.start[pieces].astype(np.int32),
        "length": plan.length[pieces].astype(np.int32),
        "sequence": segments.sequence[real].astype(np.int32),
        "offset": starts[real],
    }


class _Pairs:
    """The preference pairs of a rank's step, in token order; `between` cuts out a microbatch's.

    A pair with a medium that can't be decoded is none: there is nothing to learn from it.
    """

    def __init__(self, segments: _Segments, samples: Samples, starts: NDArray[np.int64]) -> None:
        rejected = np.flatnonzero((segments.piece >= 0) & (segments.start > 0))
        rejected = rejected[samples.usable[segments.piece[rejected]]]
        ends = starts[rejected] + segments.length[rejected]
        self._bounds = np.stack([starts[rejected - 1], starts[rejected], ends], axis=1)

    def between(self, first: int, last: int) -> dict[str, NDArray[Any]]:
        """The fields of the pairs whose tokens lie in [first, last)."""
        low, high = np.searchsorted(self._bounds[:, 0], (first, last)).tolist()
        bounds = (self._bounds[low:high] - first).astype(np.int32)
        ids = np.zeros(last - first, np.int32)
        for number, (chosen, rejected, end) in enumerate(bounds.tolist()):
            ids[chosen:rejected], ids[rejected:end] = 2 * number + 1, 2 * number + 2
        return {"pair_ids": ids, "pair_bounds": bounds}


def _media_of(
    kind: int, segments: _Segments, samples: Samples, starts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Media of one kind of a rank's step, in token order: index into `samples`, and first token of each."""
    real = segments.first_of_piece
    pieces = segments.piece[real]
    counts = samples.media_offsets[pieces + 1] - samples.media_offsets[pieces]
    medium = ragged(samples.media_offsets[pieces], counts)
    token = np.repeat(starts[real], counts) + samples.media_start[medium]
    chosen = samples.media_kind[medium] == kind
    return medium[chosen], token[chosen]


def _clips(segments: _Segments, samples: Samples, starts: NDArray[np.int64], form: Form) -> Clips:
    medium, token = _media_of(AUDIO, segments, samples, starts)
    return Clips(token, [samples.features[m] for m in medium.tolist()], form.mel_bins, form.frames_per_token)


class _Media:
    """All pictures or videos of a rank's step, in token order; `between` cuts out a microbatch's."""

    def __init__(
        self,
        kind: int,
        segments: _Segments,
        samples: Samples,
        starts: NDArray[np.int64],
        form: Form,
        empty: Empty,
    ) -> None:
        self._name, self._merged = KINDS[kind], form.merge**2
        medium, self._token = _media_of(kind, segments, samples, starts)
        self._grid = samples.grid_thw[medium]
        self._patches = np.concatenate(([0], np.cumsum(self._grid.prod(axis=1))))
        views = [samples.pixels[m] for m in medium.tolist()]
        self._pixels = empty((int(self._patches[-1]), form.pixel_width), np.uint8)
        if views:
            np.concatenate(views, out=self._pixels)
        self._times = np.concatenate([np.empty(0, np.float32), *(samples.times[m] for m in medium.tolist())])
        self._frames = np.concatenate(([0], np.cumsum(self._grid[:, 0])))
        self._position = ragged(self._token, np.diff(self._patches) // self._merged)

    def between(self, first: int, last: int) -> dict[str, NDArray[Any]]:
        """The fields of the media whose tokens lie in [first, last)."""
        low, high = np.searchsorted(self._token, (first, last)).tolist()
        begin, end = self._patches[low], self._patches[high]
        position = self._position[begin // self._merged : end // self._merged] - first
        fields = {
            PIXELS[self._name]: self._pixels[begin:end],
            f"{self._name}_grid_thw": self._grid[low:high],
            f"{self._name}_index": np.arange(len(position), dtype=np.int64),
            f"{self._name}_position": position,
        }
        if self._name == "video":
            fields["video_timestamps"] = self._times[self._frames[low] : self._frames[high]]
        return fields


__all__ = ["PIXELS", "Empty", "Form", "Microbatch", "collate", "ragged"]
