"""A loader that reads nothing: samples are token counts given by a test, served over the real wire.

For tests of the planner. `ScriptedSources` says what the sources hold; `ScriptedPlanLoader` answers Describe,
Probe, Release and Status for it, and can be told to fail. `probe_columns` alone serves tests of the core.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dataloader_client._pb import common_pb2, loader_service_pb2
from dataloader_client.wire import Frame
from dataloader_svc.errors import SourceError, StateError
from dataloader_svc.rpc.convert import probe_to_frame
from dataloader_svc.sample import BadRow, BlockId, ProbeColumns, RowRef

Span = tuple[int, int, int] | tuple[int, int, int, int]
"""(first placeholder token, tokens, patches) of a picture; of sound 0 patches, and mel frames behind."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Tokens of a document (0: it is bad, for `reason`), and the media in it."""

    tokens: int
    media: tuple[Span, ...] = ()
    reason: str = "empty_text"


@dataclass(frozen=True, slots=True)
class ScriptedSources:
    """`samples` by source, in order of position; each epoch is the same. Blocks have `block` rows."""

    samples: Mapping[str, Sequence[Sample]]
    block: int = 4
    digest: str = "index-0"

    @classmethod
    def of_lengths(cls, lengths: Mapping[str, Sequence[int]], *, block: int = 4) -> ScriptedSources:
        """Text only; a length of 0 is a bad sample."""
        return cls({name: [Sample(int(n)) for n in values] for name, values in lengths.items()}, block)

    def block_starts(self, source: str) -> NDArray[np.int64]:
        """int64 (num_blocks + 1,) position where each block begins."""
        rows = len(self.samples[source])
        return np.array([*range(0, rows, self.block), rows], np.int64)

    def probe(self, block: BlockId) -> ProbeColumns:
        """What a loader finds in a block."""
        start = block.block * self.block
        return probe_columns(block, start, self.samples[block.source][start : start + self.block])


def probe_columns(block: BlockId, start: int, samples: Sequence[Sample]) -> ProbeColumns:
    """The probe of a block that begins at position `start`."""
    media = [[(*span, 0)[:4] for span in sample.media] for sample in samples]
    columns = np.array([span for spans in media for span in spans], np.int32).reshape(-1, 4)
    return ProbeColumns(
        block=block,
        start=start,
        tokens=np.array([sample.tokens for sample in samples], np.int32),
        patches=np.array([sum(span[2] for span in spans) for spans in media], np.int32),
        frames=np.array([sum(span[3] for span in spans) for spans in media], np.int32),
        num_bytes=np.array([4 * sample.tokens for sample in samples], np.int64),
        media_offsets=np.cumsum([0, *(len(sample.media) for sample in samples)]).astype(np.int32),
        media_start=columns[:, 0].copy(),
        media_tokens=columns[:, 1].copy(),
        media_patches=columns[:, 2].copy(),
        media_frames=columns[:, 3].copy(),
        bad=tuple(
            BadRow(start + row, RowRef(f"{block.source}.jsonl", start + row), sample.reason, "scripted")
            for row, sample in enumerate(samples)
            if sample.tokens == 0
        ),
    )


@dataclass(slots=True)
class ScriptedPlanLoader:
    """Handler of LoaderService. Raises `errors` first, one a request; remembers what it was asked."""

    sources: ScriptedSources
    errors: list[Exception] = field(default_factory=list)
    described: list[tuple[str, int]] = field(default_factory=list)
    probed: list[BlockId] = field(default_factory=list)
    released: list[BlockId] = field(default_factory=list)
    reopened: list[BlockId] = field(default_factory=list)
    has_released: asyncio.Event = field(default_factory=asyncio.Event)

    async def describe(
        self, request: loader_service_pb2.DescribeRequest
    ) -> loader_service_pb2.DescribeResponse:
        """The layout of an epoch. SourceError for a source that the script does not have."""
        self._fail()
        if request.source not in self.sources.samples:
            raise SourceError(f"source {request.source!r}: no such file")
        if request.listing.digest and not request.grown and request.listing.digest != self.sources.digest:
            raise StateError(f"source {request.source!r}: its files are not those of the state")
        self.described.append((request.source, request.epoch))
        starts = self.sources.block_starts(request.source)
        return loader_service_pb2.DescribeResponse(
            source=request.source,
            epoch=request.epoch,
            num_rows=int(starts[-1]),
            digest=self.sources.digest,
            block_starts=starts.tolist(),
            num_shards=1,
            listed_shards=1,
        )

    async def probe(self, request: loader_service_pb2.BlockRequest) -> Frame:
        """The columns of a block."""
        self._fail()
        block = BlockId(request.source, request.epoch, request.block)
        self.probed.append(block)
        return probe_to_frame(self.sources.probe(block))

    async def release(self, request: loader_service_pb2.BlockRequest) -> common_pb2.Empty:
        """Remembered."""
        (self.reopened if request.reopen else self.released).append(
            BlockId(request.source, request.epoch, request.block)
        )
        self.has_released.set()
        return common_pb2.Empty()

    async def fetch(self, _: loader_service_pb2.FetchRequest) -> Frame:
        """A planner never asks for payload."""
        raise AssertionError("a planner does not fetch")

    async def status(self, _: common_pb2.Empty) -> loader_service_pb2.LoaderStatus:
        """How many blocks are held."""
        return loader_service_pb2.LoaderStatus(held_blocks=len(set(self.probed) - set(self.released)))

    def _fail(self) -> None:
        if self.errors:
            raise self.errors.pop(0)
