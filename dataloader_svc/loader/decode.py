"""The pieces that a plan names, out of held blocks: their tokens, and their media decoded.

`take` copies a piece's tokens and refers to its media, so a block may be dropped as soon as its pieces are
taken. `decode` fills one array with the patches of all pictures and videos, and one with the mel features of
all sound. A medium that can't be decoded leaves zeros of the planned shape, and its piece is marked: every
shape holds, and the constructor masks the piece out.
Knows no memory limit and no step; the frame is specified in `loader_service.proto` at FetchRequest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataloader_client.wire import Frame
from dataloader_svc.errors import BadSample, Overloaded, Reason, StateError
from dataloader_svc.loader.meter import Meter
from dataloader_svc.loader.probe import BlockReader
from dataloader_svc.loader.read import HeldBlock
from dataloader_svc.loader.rules import SampleRule
from dataloader_svc.loader.threads import only_waits, run_in_order
from dataloader_svc.sample import RowRef, SampleId
from dataloader_svc.transforms.base import AUDIO, MEDIA_KINDS
from dataloader_svc.transforms.vision import to_patches


class PieceRange(NamedTuple):
    """Tokens `start` to `start + length` of the document at `position`."""

    position: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Medium:
    """A medium of a piece, still encoded. `start`: its first placeholder in the piece; `grid` and `first` as
    in HeldMedia; `times`: float32 (t,) of a video's frames, else (0,).
    """

    kind: int
    start: int
    grid: tuple[int, int, int]
    first: int
    data: bytes | str
    times: NDArray[np.float32]

    @property
    def patches(self) -> int:
        return math.prod(self.grid)

    @property
    def frames(self) -> int:
        """Mel frames."""
        return self.grid[0] if self.kind == AUDIO else 0


@dataclass(frozen=True, slots=True)
class TakenPiece:
    """ids int32 (t,), targets uint8 (t,), the media whose placeholders lie in it, and where it comes from.

    second   first token of the second document of a pair; 0: it is of one document
    silent   its media are not decoded: it is answered as one that can't be
    """

    ids: NDArray[np.int32]
    targets: NDArray[np.uint8]
    media: tuple[Medium, ...]
    row: RowRef
    reader: BlockReader
    rule: SampleRule
    name: SampleId
    second: int = 0
    silent: bool = False


def take(held: HeldBlock, piece: PieceRange, reader: BlockReader, rule: SampleRule) -> TakenPiece:
    """One piece of a block.

    Raises StateError where the document is shorter than the piece: the files are not those that were planned.
    """
    index = piece.position - held.start
    name = SampleId(held.block.source, held.block.epoch, piece.position)
    if not 0 <= index < len(held.id_offsets) - 1:
        raise StateError(f"{name}: not in block {held.block}; the source's files or the seed have changed")
    first, last = int(held.id_offsets[index]), int(held.id_offsets[index + 1])
    stop = piece.start + piece.length
    if stop > last - first:
        raise StateError(
            f"{name} ({held.ref(index)}): planned tokens {piece.start} to {stop}, but the document has "
            f"{last - first} now; the file has changed since it was planned"
        )
    second = 0 if held.second is None else int(held.second[index])
    if second and (piece.start, stop) != (0, last - first):
        # The planner never cuts a pair: another length means other data, or another rule for long ones.
        raise StateError(
            f"{name} ({held.ref(index)}): planned tokens {piece.start} to {stop} of a preference pair, which "
            f"has {last - first} now: the file, sequence_length or too_long has changed since it was planned"
        )
    return TakenPiece(
        held.ids[first + piece.start : first + stop].copy(),
        held.targets[first + piece.start : first + stop].copy(),
        tuple(_media_inside(held, index, piece, name)),
        held.ref(index),
        reader,
        rule,
        name,
        second,
    )


def _media_inside(held: HeldBlock, index: int, piece: PieceRange, name: SampleId) -> list[Medium]:
    media = held.media
    stop = piece.start + piece.length
    inside = []
    for i in range(int(media.offsets[index]), int(media.offsets[index + 1])):
        start = int(media.start[i])
        end = start + int(media.tokens[i])
        if end <= piece.start or start >= stop:
            continue
        # The planner never cuts a medium: another span here means other data, not a bad sample.
        if start < piece.start or end > stop:
            raise StateError(
                f"{name}: piece {piece.start}:{stop} cuts the {MEDIA_KINDS[media.kind[i]]} at {start}:{end}"
            )
        t, h, w = (int(n) for n in media.grid[i])
        place = (int(media.kind[i]), start - piece.start, (t, h, w))
        inside.append(Medium(*place, int(media.first[i]), media.data[i], media.times[i]))
    return inside


def take_silent(held: HeldBlock, piece: PieceRange, reader: BlockReader, rule: SampleRule) -> TakenPiece:
    """A piece that stays without loss, whatever its document is now.

    Where that is as planned, the piece is what it was when its media could not be decoded; where the repair
    has made another document of it, tokens of no meaning, as many as were planned.
    """
    try:
        return replace(take(held, piece, reader, rule), silent=True)
    except StateError:
        name = SampleId(held.block.source, held.block.epoch, piece.position)
        zeros = np.zeros(piece.length, np.int32)
        row = held.ref(piece.position - held.start)
        return TakenPiece(zeros, zeros.astype(np.uint8), (), row, reader, rule, name, silent=True)


def check_size(pieces: Sequence[TakenPiece], max_bytes: int) -> None:
    """Refuse, before decoding, an answer above `max_bytes` (0: no limit). Raises Overloaded."""
    tokens = sum(len(piece.ids) for piece in pieces)
    pixels = sum(
        medium.patches * 3 * piece.rule.vision.patch**2 for piece in pieces for medium in piece.media
    )
    sound = sum(4 * medium.frames * piece.rule.sound.mel.bins for piece in pieces for medium in piece.media)
    size = 5 * tokens + pixels + sound
    if max_bytes and size > max_bytes:
        raise Overloaded(
            f"{len(pieces)} pieces with {tokens} tokens, {pixels} bytes of pixels and {sound} of sound take "
            f"{size} bytes, above the {max_bytes} asked for; ask for fewer pieces at a time"
        )


def decode(
    pieces: Sequence[TakenPiece],
    patch: int,
    pool: Executor,
    waiting: Executor | None = None,
    meter: Meter | None = None,
) -> Frame:
    """The frame of FetchRequest, less the times. All media are decoded in `pool`, each into its place.

    `waiting` runs those that wait for a worker process; None: `pool` does. `meter` is told what each took.
    """
    media = [medium for piece in pieces for medium in piece.media]
    pixels = np.empty((sum(medium.patches for medium in media), 3 * patch**2), np.uint8)
    bins = pieces[0].rule.sound.mel.bins if pieces else 0
    features = np.empty((sum(medium.frames for medium in media), bins), np.float32)
    tasks, numbers = [], []
    patches = frames = 0
    for number, piece in enumerate(pieces):
        for clips in _together(piece.media):
            last, end = patches + clips[0].patches, frames + sum(clip.frames for clip in clips)
            out = (pixels[patches:last], features[frames:end])  # one of the two is empty
            patches, frames = last, end
            if piece.silent:
                out[0][:], out[1][:] = 0, 0
                continue
            numbers.append(number)
            executor = (waiting or pool) if only_waits(piece.rule.prober(clips[0].kind)) else pool
            tasks.append((executor, partial(_measured, meter, piece, clips, *out)))
    results = run_in_order(tasks)
    ok = np.array([not piece.silent for piece in pieces], np.uint8)
    bad: list[list[Any]] = []
    for number, problem in zip(numbers, results, strict=True):
        if problem is not None and ok[number]:
            ok[number] = 0
            row = pieces[number].row
            bad.append([number, row.shard, row.row, problem.reason.value, problem.detail])
    arrays: dict[str, NDArray[Any]] = {
        "ids": _joined([piece.ids for piece in pieces], np.int32),
        "id_offsets": np.cumsum([0, *(len(piece.ids) for piece in pieces)], dtype=np.int64),
        "targets": _joined([piece.targets for piece in pieces], np.uint8),
        "second": np.array([piece.second for piece in pieces], np.int32),
        "media_offsets": np.cumsum([0, *(len(piece.media) for piece in pieces)], dtype=np.int32),
        "media_kind": np.array([medium.kind for medium in media], np.uint8),
        "media_start": np.array([medium.start for medium in media], np.int32),
        "grid_thw": np.array([medium.grid for medium in media], np.int32).reshape(-1, 3),
        "frame_times": _joined([medium.times for medium in media], np.float32),
        "pixels": pixels,
        "features": features,
        "ok": ok,
    }
    return Frame(arrays, {"bad": bad})


def _joined(parts: list[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _together(media: Sequence[Medium]) -> Iterator[list[Medium]]:
    """What one call decodes: a medium; of sound, all clips of one, so that nothing is decoded twice."""
    starts = itertools.accumulate(medium.kind != AUDIO or medium.first == 0 for medium in media)
    # The first clips of a medium may be in another piece: then the first here begins a group too.
    for _, clips in itertools.groupby(zip(starts, media, strict=True), key=lambda entry: entry[0]):
        yield [medium for _, medium in clips]


def _measured(
    meter: Meter | None,
    piece: TakenPiece,
    clips: Sequence[Medium],
    pixels: NDArray[np.uint8],
    features: NDArray[np.float32],
) -> BadSample | None:
    if meter is None:
        return _decode_one(piece, clips, pixels, features)
    with meter.work(f"decode {piece.name.source}", len(pixels) + len(features)):
        return _decode_one(piece, clips, pixels, features)


def _decode_one(
    piece: TakenPiece, clips: Sequence[Medium], pixels: NDArray[np.uint8], features: NDArray[np.float32]
) -> BadSample | None:
    """Patches of a medium into `pixels` (patches, 3*patch*patch), or features of the clips of one into
    `features` (frames, bins); zeros and the reason where it can't be decoded.
    """
    medium = clips[0]
    try:
        data = medium.data
        if isinstance(data, str):
            data = piece.reader.read_media(data, piece.row.shard)
        if medium.kind == AUDIO:
            assert piece.rule.sound.reader is not None
            stretches = [(clip.first, clip.frames) for clip in clips]
            features[:] = piece.rule.sound.reader.features(data, stretches)
        else:
            _decode_picture(piece, medium, data, pixels)
    except BadSample as problem:
        pixels[:], features[:] = 0, 0
        return problem
    return None


def _decode_picture(piece: TakenPiece, medium: Medium, data: bytes, out: NDArray[np.uint8]) -> None:
    """Of a picture or a video. Raises BadSample."""
    vision = piece.rule.vision
    frames, height, width = medium.grid
    size = (height * vision.patch, width * vision.patch)
    decoded = piece.rule.reader(medium.kind, piece.name).decode(data, size)
    if len(decoded) != frames:
        raise BadSample(
            Reason.BAD_SHAPE, f"{len(decoded)} frames, planned with {frames}: the file has changed"
        )
    to_patches(decoded, vision, out)
