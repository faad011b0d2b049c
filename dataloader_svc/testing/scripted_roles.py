"""A planner and loaders that follow a script, over the real wire: for tests of constructors and clients.

Documents are made from their names alone, so that a test knows what a batch must hold without asking who
built it. `Script` says what is planned; `ScriptedPlanner` and `ScriptedLoader` answer for it, and can be
told to fail. Places sequences in the simplest way: sequence i goes to dp rank i % dp.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from dataloader_client._pb import common_pb2, loader_service_pb2, plan_pb2, planner_service_pb2
from dataloader_client.wire import Frame
from dataloader_svc.errors import DataloaderError, MeshError, SessionSuperseded
from dataloader_svc.sample import keyed_rng

SOURCES = ("web", "captions")
MEDIA_TOKENS = (900, 901, 902)
"""Placeholder ids of pictures, videos and sound."""

BINS, FRAMES_PER_TOKEN = 8, 4
"""Of sound."""


@dataclass(frozen=True, slots=True, eq=False)
class Medium:
    """Kind (0 picture, 1 video, 2 sound), first placeholder token, (t, h, w) patches, uint8 (t*h*w, width),
    the times float32 (t,) of a video's frames; of sound (t, 0, 0), and features float32 (t, BINS).
    """

    kind: int
    start: int
    grid: tuple[int, int, int]
    pixels: NDArray[np.uint8]
    times: NDArray[np.float32]
    features: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """Tokens, which of them may be targets, and media; of a pair, where its second document begins."""

    ids: NDArray[np.int32]
    targets: NDArray[np.uint8]
    media: tuple[Medium, ...]
    ok: bool
    second: int = 0


@dataclass(frozen=True, slots=True)
class Script:
    """A job that needs no files: `num_steps` steps of `num_sequences` sequences, the last one half empty.

    Documents of "captions" carry media. `bad_every`: each such position of "captions" can't be decoded.
    `pairs`: about half of all documents are preference pairs.
    `sound`: there are clips of it among the media.
    `uneven`: as where steps are so many samples, each has another number of sequences, up to `num_sequences`,
    and placement fills them up with empty ones.
    """

    num_steps: int = 6
    num_sequences: int = 8
    sequence_length: int = 96  # above the longest document with media: those are not cut
    per_microbatch: int = 1
    patch: int = 2
    merge: int = 2
    media: bool = True
    sound: bool = False
    bad_every: int = 5
    layout: str = "packed"
    uneven: bool = False
    pairs: bool = False
    seed: int = 0

    def document(self, source: str, epoch: int, position: int) -> Document:
        """What the name stands for; the same for ever."""
        rng = keyed_rng(self.seed, "document", source, epoch, position)
        text = rng.integers(1, 24, 2)
        parts = [rng.integers(1, 800, text[0])]
        media = []
        if source == "captions" and self.media:
            for _ in range(int(rng.integers(1, 3))):
                kind = int(rng.integers(0, 2 + self.sound))
                if kind == 2:
                    media.append(self._clip(rng, sum(map(len, parts))))
                    parts.append(np.full(media[-1].grid[0] // FRAMES_PER_TOKEN, MEDIA_TOKENS[kind]))
                    continue
                grid = (1 + kind * int(rng.integers(0, 2)), *(self.merge * rng.integers(1, 4, 2)).tolist())
                num_patches = int(np.prod(grid))
                pixels = rng.integers(0, 256, (num_patches, 3 * self.patch**2), dtype=np.uint8)
                times = np.sort(rng.random(grid[0] * kind, np.float32))
                media.append(Medium(kind, sum(map(len, parts)), grid, pixels, times, _no_sound()))
                parts.append(np.full(num_patches // self.merge**2, MEDIA_TOKENS[kind]))
        parts.append(rng.integers(1, 800, text[1]))
        ids = np.concatenate(parts).astype(np.int32)
        targets = (ids < 800) & (rng.random(len(ids)) < 0.8)
        ok = not (source == "captions" and self.bad_every and position % self.bad_every == 0)
        pair = self.pairs and bool(rng.random() < 0.5)
        return Document(
            ids, targets.astype(np.uint8), tuple(media), ok, len(ids) - len(parts[-1]) if pair else 0
        )

    def _clip(self, rng: np.random.Generator, start: int) -> Medium:
        frames = FRAMES_PER_TOKEN * int(rng.integers(1, 6))
        features = rng.standard_normal((frames, BINS), np.float32)
        pixels = np.empty((0, 3 * self.patch**2), np.uint8)
        return Medium(2, start, (frames, 0, 0), pixels, np.empty(0, np.float32), features)

    def records(self) -> list[plan_pb2.PlanRecord]:
        """The plan of every step, in order."""
        taken = dict.fromkeys(SOURCES, 0)
        pending: tuple[str, int, int] | None = None  # source, position, first token not yet placed
        records = []
        for step in range(self.num_steps):
            record = plan_pb2.PlanRecord(version=1, step=step, sources=SOURCES, sequence_offsets=[0])
            full = self.num_sequences if step + 1 < self.num_steps else -(-self.num_sequences // 2)
            if self.uneven:
                full = 1 + 5 * step % self.num_sequences
            for number in range(full if self.uneven else self.num_sequences):
                room = self.sequence_length if number < full else 0
                while room:
                    if pending is None:
                        source = SOURCES[(taken["web"] + taken["captions"]) % 2]
                        pending = (source, taken[source], 0)
                        taken[source] += 1
                    source, position, start = pending
                    document = self.document(source, 0, position)
                    length = len(document.ids) - start
                    if length > room and (document.media or document.second or room < 4):
                        break  # media and pairs are not cut, crumbs not made
                    used = min(length, room)
                    self._add(record, source, position, start, used, document)
                    room -= used
                    pending = (source, position, start + used) if used < length else None
                record.sequence_offsets.append(len(record.source))
            record.digest = hashlib.blake2b(repr(record.position).encode(), digest_size=16).digest()
            record.state_json = json.dumps({"version": 1, "step": step + 1, "taken": taken})
            record.last = step + 1 == self.num_steps
            record.metrics["packing_efficiency"] = sum(record.length) / (full * self.sequence_length)
            records.append(record)
        return records

    def _add(
        self,
        record: plan_pb2.PlanRecord,
        source: str,
        position: int,
        start: int,
        length: int,
        document: Document,
    ) -> None:
        record.source.append(SOURCES.index(source))
        record.epoch.append(0)
        record.position.append(position)
        record.block.append(position // 16)
        record.start.append(start)
        record.length.append(length)
        record.patches.append(sum(len(medium.pixels) for medium in document.media))
        record.frames.append(sum(len(medium.features) for medium in document.media))

    def place(
        self, record: plan_pb2.PlanRecord, dp: int, session: int, loaders: list[str]
    ) -> plan_pb2.PlacedPlan:
        """Sequence i on dp rank i % dp; pieces' preferred loaders taken in turn."""
        count, equal = len(record.sequence_offsets) - 1, dp * self.per_microbatch
        sequences = range(-(-count // equal) * equal if self.uneven else count)
        return plan_pb2.PlacedPlan(
            record=record,
            session=session,
            step=record.step,
            dp_rank=[i % dp for i in sequences],
            microbatch=[i // dp // self.per_microbatch for i in sequences],
            loader=loaders,
            piece_loader=[i % len(loaders) for i in range(len(record.source))],
            plan_seconds=0.25,
            probe_wait_seconds=0.125,
        )


@dataclass(slots=True)
class ScriptedPlanner:
    """Serves a Script's plans. `error` is raised instead of the plan of `error_step`, and by later ones.

    A join with another (mesh, state) starts a new session; sessions count from 1.
    """

    script: Script
    loaders: list[str]
    error: DataloaderError | None = None
    error_step: int = 0
    sessions: list[tuple[str, str]] = field(default_factory=list)
    meshes: list[common_pb2.Mesh] = field(default_factory=list)
    joins: list[plan_pb2.JoinRequest] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)
    reports: list[planner_service_pb2.StepTimes] = field(default_factory=list)
    join_error: DataloaderError | None = None
    default_mesh: common_pb2.Mesh = field(default_factory=lambda: common_pb2.Mesh(dp=1, cp=1, tp=1, pp=1))

    async def join(self, request: plan_pb2.JoinRequest) -> plan_pb2.JoinResponse:
        """Any state whose "step" is below the end is fine; dp must divide the sequences."""
        self.joins.append(request)
        if self.join_error is not None:
            raise self.join_error
        script = self.script
        mesh = request.mesh if request.HasField("mesh") else self.default_mesh
        if script.num_sequences % mesh.dp and not script.uneven:
            raise MeshError(f"dp {mesh.dp} does not divide {script.num_sequences} sequences")
        key = (str(mesh), request.state_json)
        if not self.sessions or self.sessions[-1] != key:
            self.sessions.append(key)
            self.meshes.append(mesh)
        start = json.loads(request.state_json)["step"] if request.state_json else 0
        return plan_pb2.JoinResponse(
            session=len(self.sessions),
            start_step=start,
            mesh=mesh,
            job="scripted",
            sources=SOURCES,
            num_microbatches=0
            if script.uneven
            else -(-script.num_sequences // (mesh.dp * script.per_microbatch)),
            sequence_length=script.sequence_length,
            layout=script.layout,
            patch=script.patch,
            merge=script.merge,
            state_json=request.state_json or json.dumps({"version": 1, "step": 0}),
        )

    async def plans(
        self, demands: AsyncIterator[planner_service_pb2.PlanDemand]
    ) -> AsyncIterator[plan_pb2.PlacedPlan]:
        """Each plan from the first demand's `from_step` on, once."""
        records = self.script.records()
        step = None
        async for demand in demands:
            if step is None:
                step = int(demand.from_step)
                self.streams.append(step)
            while step <= demand.up_to:
                if demand.session != len(self.sessions):
                    raise SessionSuperseded(f"session {demand.session} is over")
                if self.error is not None and step >= self.error_step:
                    raise self.error
                if step >= len(records):
                    yield plan_pb2.PlacedPlan(session=demand.session, step=step, end_of_data=True)
                    return
                mesh = self.meshes[-1]
                yield self.script.place(records[step], mesh.dp, demand.session, self.loaders)
                step += 1

    async def report(self, times: planner_service_pb2.StepTimes) -> common_pb2.Empty:
        """Keeps what it is told, in `reports`."""
        self.reports.append(times)
        return common_pb2.Empty()

    async def status(self, _: common_pb2.Empty) -> planner_service_pb2.PlannerStatus:
        """The session served now; 0 before the first."""
        mesh = self.meshes[-1] if self.meshes else None
        state = self.sessions[-1][1] if self.sessions else ""
        return planner_service_pb2.PlannerStatus(
            job="scripted", session=len(self.sessions), mesh=mesh, state_json=state
        )


@dataclass(slots=True)
class ScriptedLoader:
    """Serves a Script's documents. Raises `errors[step]` first, one a request.

    requests   steps asked; `masked`: for each, positions that were asked for as masked
    """

    script: Script
    errors: dict[int, list[Exception]] = field(default_factory=dict)
    requests: list[int] = field(default_factory=list)
    masked: list[list[int]] = field(default_factory=list)
    _asked: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def until_asked(self, step: int) -> None:
        """Wait until samples of `step` were asked for."""
        async with self._asked:
            await self._asked.wait_for(lambda: step in self.requests)

    async def fetch(self, request: loader_service_pb2.FetchRequest) -> Frame:
        """The pieces asked for, those that can't be decoded with black pixels."""
        async with self._asked:
            self.requests.append(request.step)
            self.masked.append([request.position[row] for row in request.masked])
            self._asked.notify_all()
        if errors := self.errors.get(request.step):
            raise errors.pop(0)
        return fetch_frame(self.script, request)

    async def other(self, _: object) -> Frame:
        """RPCs that constructors do not use."""
        raise AssertionError("a constructor asks a loader for samples alone")

    describe = probe = release = status = other


def _no_sound() -> NDArray[np.float32]:
    return np.empty((0, BINS), np.float32)


def fetch_frame(script: Script, request: loader_service_pb2.FetchRequest) -> Frame:
    """The answer that `loader_service.proto` describes."""
    ids: list[NDArray[np.int32]] = []
    targets: list[NDArray[np.uint8]] = []
    media: list[Medium] = []
    media_offsets, ok, bad, second = [0], [], [], []
    width = 3 * script.patch**2
    columns = (request.source, request.epoch, request.position, request.start, request.length)
    for row, (source, epoch, position, start, length) in enumerate(zip(*columns, strict=True)):
        document = script.document(request.sources[source], epoch, position)
        ids.append(document.ids[start : start + length])
        targets.append(document.targets[start : start + length])
        media += [
            replace(
                medium,
                start=medium.start - start,
                pixels=medium.pixels * np.uint8(document.ok),
                features=medium.features * np.float32(document.ok),
            )
            for medium in document.media
        ]
        media_offsets.append(len(media))
        ok.append(document.ok)
        second.append(document.second)
        if not document.ok:
            bad.append([row, "captions.tar", position, "decode_failed", "scripted"])
    arrays = {
        "ids": np.concatenate([np.empty(0, np.int32), *ids]),
        "id_offsets": np.cumsum([0, *map(len, ids)], dtype=np.int64),
        "targets": np.concatenate([np.empty(0, np.uint8), *targets]),
        "second": np.array(second, np.int32),
        "media_offsets": np.array(media_offsets, np.int32),
        "media_kind": np.array([medium.kind for medium in media], np.uint8),
        "media_start": np.array([medium.start for medium in media], np.int32),
        "grid_thw": np.array([medium.grid for medium in media], np.int32).reshape(-1, 3),
        "frame_times": np.concatenate([np.empty(0, np.float32), *(medium.times for medium in media)]),
        "pixels": np.concatenate([np.empty((0, width), np.uint8), *(medium.pixels for medium in media)]),
        "features": np.concatenate([_no_sound(), *(medium.features for medium in media)]),
        "ok": np.array(ok, np.uint8),
    }
    return Frame(arrays, {"bad": bad, "read_s": 0.5, "decode_s": 0.25})
