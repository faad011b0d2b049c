"""One step as columns: what a plan places where, and the samples that loaders sent for it.

The bridge from messages to arrays: `StepPlan` is a PlacedPlan, `Samples` the fetched frames put into the
plan's order. Knows nothing of layouts (`collate.py`) nor of how frames arrive (`service.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataloader_client._pb import loader_service_pb2, plan_pb2
from dataloader_client.wire import Frame
from dataloader_svc.errors import DataError, PeerError

KINDS = ("image", "video", "audio")
"""Media kinds, by the number that `media_kind` holds."""

AUDIO = KINDS.index("audio")


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """A placed plan as columns. Sequence i holds pieces [sequence_offsets[i], sequence_offsets[i+1]).

    dp_rank, microbatch   (N,) by sequence; the last may be empty ones that placement added
    source, epoch, position, block, start, length, patches, frames   (n,) by piece
    loader                (n,) index into `loaders` (addresses) of the preferred holder
    masked                bool (n,) pieces that stay without loss: they come again, repaired, in another step
    encoder_rank          (n,) which rank encodes its media, dp rank * cp + cp rank; None: those of its tokens
    listings              which shards the epochs are made of that the pieces are of
    """

    step: int
    sources: tuple[str, ...]
    sequence_offsets: NDArray[np.int64]
    dp_rank: NDArray[np.int64]
    microbatch: NDArray[np.int64]
    source: NDArray[np.int64]
    epoch: NDArray[np.int64]
    position: NDArray[np.int64]
    block: NDArray[np.int64]
    start: NDArray[np.int64]
    length: NDArray[np.int64]
    patches: NDArray[np.int64]
    frames: NDArray[np.int64]
    loader: NDArray[np.int64]
    masked: NDArray[np.bool_]
    loaders: tuple[str, ...]
    listings: tuple[plan_pb2.EpochListing, ...] = ()
    encoder_rank: NDArray[np.int64] | None = None

    @property
    def num_pieces(self) -> int:
        return len(self.source)

    @property
    def num_microbatches(self) -> int:
        """The same on every rank: a rank without sequences in one of them gets an empty one."""
        return int(self.microbatch.max()) + 1 if len(self.microbatch) else 1

    @property
    def sequence_tokens(self) -> NDArray[np.int64]:
        """(N,) tokens of each sequence, without padding."""
        total = np.concatenate(([0], np.cumsum(self.length)))
        return total[self.sequence_offsets[1:]] - total[self.sequence_offsets[:-1]]


def with_masked(plan: StepPlan, pieces: Sequence[int]) -> StepPlan:
    """The plan, with these pieces without loss, whatever their files hold when it is built again."""
    masked = plan.masked.copy()
    masked[list(pieces)] = True
    return replace(plan, masked=masked)


def from_placed(plan: plan_pb2.PlacedPlan) -> StepPlan:
    """Columns of a plan message. Raises PeerError where its columns do not fit each other."""
    record = plan.record
    by_piece = {
        name: np.array(getattr(record, name), np.int64)
        for name in ("source", "epoch", "position", "block", "start", "length", "patches", "frames")
    }
    if not len(by_piece["frames"]):  # no piece has sound
        by_piece["frames"] = np.zeros_like(by_piece["source"])
    loader = np.array(plan.piece_loader, np.int64)
    offsets = np.array(record.sequence_offsets or [0], np.int64)
    sequences = {name: np.array(getattr(plan, name), np.int64) for name in ("dp_rank", "microbatch")}
    encoder = np.array(plan.encoder_rank, np.int64) if len(plan.encoder_rank) else None
    lengths = {
        len(column) for column in (*by_piece.values(), loader, *([] if encoder is None else [encoder]))
    }
    placed, planned = {len(column) for column in sequences.values()}, len(offsets) - 1
    if lengths != {int(offsets[-1])} or len(placed) != 1 or min(placed) < planned:
        raise PeerError(f"plan of step {plan.step}: columns of pieces or sequences differ in length")
    if max(plan.masked, default=-1) >= len(loader):
        raise PeerError(f"plan of step {plan.step}: it masks piece {max(plan.masked)} of {len(loader)}")
    masked = np.zeros(len(loader), np.bool_)
    masked[list(plan.masked)] = True
    offsets = np.append(offsets, np.repeat(offsets[-1], min(placed) - planned))
    return StepPlan(
        step=plan.step,
        sources=tuple(record.sources),
        sequence_offsets=offsets,
        loader=loader,
        masked=masked,
        loaders=tuple(plan.loader),
        listings=tuple(plan.listings),
        encoder_rank=encoder,
        **by_piece,
        **sequences,
    )


def fetch_request(
    plan: StepPlan, pieces: NDArray[np.int64], max_bytes: int
) -> loader_service_pb2.FetchRequest:
    """What to ask a loader for, for these pieces of the plan."""
    columns = ("source", "epoch", "position", "block", "start", "length")
    epochs = set(zip(plan.source[pieces].tolist(), plan.epoch[pieces].tolist(), strict=True))
    return loader_service_pb2.FetchRequest(
        step=plan.step,
        sources=plan.sources,
        max_bytes=max_bytes,
        masked=np.flatnonzero(plan.masked[pieces]).tolist(),
        listings=(each for each in plan.listings if (each.source, each.epoch) in epochs),
        **{name: getattr(plan, name)[pieces].tolist() for name in columns},
    )


@dataclass(frozen=True, slots=True)
class Bad:
    """A piece that could not be decoded, for the quarantine. `piece`: its number in the plan."""

    piece: int
    source: str
    epoch: int
    position: int
    shard: str
    row: int
    reason: str
    detail: str


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """What was fetched for a step, in the order of the plan's pieces; arrays are views of received frames.

    ids, targets    by piece: int32 and uint8 (tokens,). `targets` is all 0 where the piece is not usable
    second          (n,) of a piece that is a preference pair, where its second document begins; else 0
    usable          bool (n,)
    media_offsets   (n+1,) media of each piece, index into the rest
    media_kind      (m,) index into KINDS; media_start (m,) first placeholder token in its piece
    grid_thw        (m, 3), of sound (mel frames, 0, 0); pixels by medium: uint8 (patches, 3*patch*patch)
    features        by medium: float32 (mel frames, bins) of sound, (0, bins) of others
    times           by medium: float32 (frames,) of a video, (0,) of a picture
    targets_sum     positions of the step that predict a target
    """

    ids: list[NDArray[np.int32]]
    targets: list[NDArray[np.uint8]]
    second: NDArray[np.int64]
    usable: NDArray[np.bool_]
    media_offsets: NDArray[np.int64]
    media_kind: NDArray[np.int64]
    media_start: NDArray[np.int64]
    grid_thw: NDArray[np.int64]
    pixels: list[NDArray[np.uint8]]
    features: list[NDArray[np.float32]]
    times: list[NDArray[np.float32]]
    targets_sum: int
    bad: tuple[Bad, ...]

    @property
    def num_pairs(self) -> int:
        """Preference pairs of the step that can be learnt from."""
        return int(np.count_nonzero(self.usable & (self.second > 0)))

    @property
    def presence(self) -> dict[str, bool]:
        """Which kinds of media the step has."""
        return {kind: bool((self.media_kind == number).any()) for number, kind in enumerate(KINDS)}


def gather(
    plan: StepPlan, fetched: Sequence[tuple[NDArray[np.int64], Frame]], pixel_width: int, bins: int = 128
) -> Samples:
    """Put loaders' answers, each for some pieces of the plan, into the plan's order.

    pixel_width, bins   of a patch and of a mel frame

    Raises PeerError for an answer that is no answer to the request, DataError where a sample has changed
    since it was planned: the batch would not be what the plan says.
    """
    empty: NDArray[Any] = np.empty(0, np.int32)
    ids: list[NDArray[np.int32]] = [empty] * plan.num_pieces
    targets: list[NDArray[np.uint8]] = [empty.astype(np.uint8)] * plan.num_pieces
    second, usable = np.zeros(plan.num_pieces, np.int64), np.zeros(plan.num_pieces, np.bool_)
    media: list[list[_Medium]] = [[]] * plan.num_pieces
    targets_sum = 0
    bad: list[Bad] = []
    for pieces, frame in fetched:
        part = _Part(plan, pieces, frame, pixel_width, bins)
        for row, piece in enumerate(pieces.tolist()):
            ids[piece], targets[piece], media[piece] = part.piece(row)
        second[pieces], usable[pieces] = part.second, part.usable
        targets_sum += part.targets_sum()
        bad += part.bad()
    flat = [medium for of_piece in media for medium in of_piece]
    return Samples(
        ids=ids,
        targets=targets,
        second=second,
        usable=usable,
        media_offsets=np.concatenate(([0], np.cumsum([len(of_piece) for of_piece in media], dtype=np.int64))),
        media_kind=np.array([medium.kind for medium in flat], np.int64),
        media_start=np.array([medium.start for medium in flat], np.int64),
        grid_thw=np.array([medium.grid for medium in flat], np.int64).reshape(-1, 3),
        pixels=[medium.pixels for medium in flat],
        features=[medium.features for medium in flat],
        times=[medium.times for medium in flat],
        targets_sum=targets_sum,
        bad=tuple(bad),
    )


class _Medium(NamedTuple):
    kind: int
    start: int
    grid: NDArray[np.int64]
    pixels: NDArray[np.uint8]
    features: NDArray[np.float32]
    times: NDArray[np.float32]


class _Part:
    """One loader's answer, checked."""

    def __init__(
        self, plan: StepPlan, pieces: NDArray[np.int64], frame: Frame, pixel_width: int, bins: int
    ) -> None:
        arrays = frame.arrays
        self._plan, self._pieces, self._meta = plan, pieces, frame.meta
        try:
            self._ids, self._pixels = arrays["ids"], arrays["pixels"].reshape(-1, pixel_width)
            self._offsets = arrays["id_offsets"].astype(np.int64)
            self.usable = arrays["ok"].astype(bool)
            self.second = arrays["second"].astype(np.int64)
            self._media_offsets = arrays["media_offsets"].tolist()
            self._kind, self._start = arrays["media_kind"].tolist(), arrays["media_start"].tolist()
            self._grid = arrays["grid_thw"].astype(np.int64).reshape(-1, 3)
            self._times = arrays["frame_times"]
            self._features = arrays["features"].reshape(-1, bins)
        except (KeyError, ValueError) as error:
            raise PeerError(f"step {plan.step}: a loader's answer lacks or misshapes {error}") from None
        if not len(self.usable) == len(self.second) == len(self._offsets) - 1 == len(pieces):
            raise PeerError(f"step {plan.step}: a loader answered {len(self.usable)} of {len(pieces)} pieces")
        self._compare("tokens", np.diff(self._offsets), plan.length[pieces])
        if ((self.second < 0) | (self.second >= plan.length[pieces])).any():
            raise PeerError(f"step {plan.step}: a loader's pair has its second document outside of it")
        patches = np.concatenate(([0], np.cumsum(self._grid.prod(axis=1))))
        found = patches[arrays["media_offsets"][1:]] - patches[arrays["media_offsets"][:-1]]
        # A repaired document may have other media; here it is only as long as it was.
        self._compare("patches", found, np.where(plan.masked[pieces], found, plan.patches[pieces]))
        if patches[-1] != len(self._pixels):
            raise PeerError(f"step {plan.step}: {len(self._pixels)} patches for grids of {patches[-1]}")
        shown = np.where(arrays["media_kind"] == KINDS.index("video"), self._grid[:, 0], 0)
        self._frames: list[int] = np.concatenate(([0], np.cumsum(shown))).tolist()
        if self._frames[-1] != len(self._times):
            raise PeerError(f"step {plan.step}: {len(self._times)} times for {self._frames[-1]} frames")
        heard = np.concatenate(([0], np.cumsum(np.where(arrays["media_kind"] == AUDIO, self._grid[:, 0], 0))))
        found = heard[arrays["media_offsets"][1:]] - heard[arrays["media_offsets"][:-1]]
        self._compare("mel frames", found, plan.frames[pieces])
        if heard[-1] != len(self._features):
            raise PeerError(f"step {plan.step}: {len(self._features)} mel frames for clips of {heard[-1]}")
        self._patches: list[int] = patches.tolist()
        self._heard: list[int] = heard.tolist()
        # A token that can't be predicted from the one before it in its own piece is no target.
        self._targets = arrays["targets"] * np.repeat(self.usable, np.diff(self._offsets))
        self._bounds: list[int] = self._offsets.tolist()

    def _compare(self, what: str, found: NDArray[np.int64], planned: NDArray[np.int64]) -> None:
        wrong = np.flatnonzero(found != planned)
        if len(wrong):
            piece = int(self._pieces[wrong[0]])
            plan = self._plan
            raise DataError(
                f"step {plan.step}: {plan.sources[plan.source[piece]]}/{plan.epoch[piece]}/"
                f"{plan.position[piece]} was planned with {planned[wrong[0]]} {what} and now has "
                f"{found[wrong[0]]}: a file of this source changed under the running job; restore it"
            )

    def piece(self, row: int) -> tuple[NDArray[np.int32], NDArray[np.uint8], list[_Medium]]:
        """Ids, targets and media of the row-th piece asked for."""
        low, high = self._bounds[row], self._bounds[row + 1]
        media = [
            _Medium(
                self._kind[m],
                self._start[m],
                self._grid[m],
                self._pixels[self._patches[m] : self._patches[m + 1]],
                self._features[self._heard[m] : self._heard[m + 1]],
                self._times[self._frames[m] : self._frames[m + 1]],
            )
            for m in range(self._media_offsets[row], self._media_offsets[row + 1])
        ]
        return self._ids[low:high], self._targets[low:high], media

    def targets_sum(self) -> int:
        """Targets that have a predecessor in their document."""
        starts = self._offsets[:-1]
        firsts = [starts[np.diff(self._offsets) > 0], (starts + self.second)[self.second > 0]]
        not_predicted = np.count_nonzero(self._targets[np.concatenate(firsts)])
        return int(np.count_nonzero(self._targets)) - int(not_predicted)

    def bad(self) -> list[Bad]:
        """The pieces reported as undecodable."""
        plan, found = self._plan, []
        for row, shard, number, reason, detail in self._meta.get("bad", ()):
            piece = int(self._pieces[row])
            name = plan.sources[plan.source[piece]]
            place = (int(plan.epoch[piece]), int(plan.position[piece]))
            found.append(Bad(piece, name, *place, shard, number, reason, detail))
        return found
