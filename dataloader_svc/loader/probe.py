"""The media of a block's rows as their headers say: how large, how long, how many tokens.

Nothing is decoded (`decode.py`). Where the tokens go is `transforms/document.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.errors import BadSample
from dataloader_svc.loader.rules import SampleRule
from dataloader_svc.loader.threads import only_waits, run_in_order
from dataloader_svc.sample import BlockId
from dataloader_svc.sources.reader import BlockSamples
from dataloader_svc.transforms.base import AUDIO, MediaSizes
from dataloader_svc.transforms.slots import may_have_media, row_media
from dataloader_svc.transforms.vision import grid, num_tokens

_PROBES_A_TASK = 64  # a header takes 10 to 100 us, handing a task to a thread about 30


class BlockReader(Protocol):
    """What is needed of `sources.SourceReader`."""

    def read_block(self, block: BlockId, only: Collection[int] | None = None) -> BlockSamples: ...

    def read_media(self, path: str, shard: str) -> bytes: ...


_Medium = tuple[int, int, bytes | str | BadSample]
"""Sample index, kind, data (or why there is none)."""


class _Probed(NamedTuple):
    """What a medium's header says: grid and times as in HeldMedia, before sound is cut into clips."""

    grid: tuple[int, int, int]
    times: NDArray[np.float32]


class ProbedMedia(NamedTuple):
    """The media of a block's good rows, in row order; columns as in HeldMedia.

    dead   row -> numbers of its slots whose media are left out, of rows that do without them
    """

    sizes: MediaSizes
    grid: NDArray[np.int32]
    data: list[bytes | str]
    times: list[NDArray[np.float32]]
    dead: dict[int, set[int]]


def probe_media(
    reader: BlockReader,
    samples: BlockSamples,
    rule: SampleRule,
    pools: tuple[Executor, Executor],
    bad: dict[int, BadSample],
) -> ProbedMedia:
    """Media of good rows. A row with a bad medium is added to `bad`."""
    media: list[_Medium] = []
    for index in range(len(samples)) if may_have_media(samples.columns) else ():
        if index not in bad:
            try:
                media += [(index, *medium) for medium in row_media(samples.columns, index, rule.kinds)]
            except BadSample as problem:
                bad[index] = problem
    if not media:
        return ProbedMedia(MediaSizes.none(len(samples)), np.empty((0, 3), np.int32), [], [], {})
    results = _probe_all(reader, samples, rule, media, pools)
    good: list[tuple[_Medium, _Probed]] = []
    dead: dict[int, set[int]] = {}
    slots = itertools.count()
    row = -1
    for medium, result in zip(media, results, strict=True):
        if medium[0] != row:
            row, slots = medium[0], itertools.count()
        slot = next(slots)
        if not isinstance(result, BadSample):
            good.append((medium, result))
        elif rule.drop_bad:
            dead.setdefault(row, set()).add(slot)
        else:
            bad.setdefault(row, result)
    kept = [(medium, found) for medium, found in good if medium[0] not in bad]
    return _columns(len(samples), kept, rule, dead)


def _probe_all(
    reader: BlockReader,
    samples: BlockSamples,
    rule: SampleRule,
    media: Sequence[_Medium],
    pools: tuple[Executor, Executor],
) -> list[_Probed | BadSample]:
    """In the order of `media`; `pools` are that of most probes, and that of those that only wait."""
    waits = [only_waits(rule.prober(kind)) for _, kind, _ in media]
    here = [i for i, wait in enumerate(waits) if not wait]
    chunks = [(pools[0], here[i : i + _PROBES_A_TASK]) for i in range(0, len(here), _PROBES_A_TASK)]
    chunks += [(pools[1], [i]) for i, wait in enumerate(waits) if wait]

    def probe(chunk: list[int]) -> list[_Probed | BadSample]:
        return [_probe_one(reader, samples, rule, media[i]) for i in chunk]

    results = run_in_order((pool, partial(probe, chunk)) for pool, chunk in chunks)
    found = {
        i: one
        for (_, chunk), many in zip(chunks, results, strict=True)
        for i, one in zip(chunk, many, strict=True)
    }
    return [found[i] for i in range(len(media))]


def _probe_one(
    reader: BlockReader, samples: BlockSamples, rule: SampleRule, medium: _Medium
) -> _Probed | BadSample:
    """One medium, or what is wrong with it."""
    index, kind, data = medium
    if isinstance(data, BadSample):
        return data
    try:
        if isinstance(data, str):
            data = reader.read_media(data, samples.ref(index).shard)
        found = rule.prober(kind).probe(data)
        if kind == AUDIO:
            return _Probed((rule.sound.frames(found), 0, 0), np.empty(0, np.float32))
        return _Probed(
            (found.frames, *grid(*rule.size(found), rule.vision)), np.array(found.timestamps, np.float32)
        )
    except BadSample as problem:
        return problem


def _columns(
    num_rows: int, kept: Sequence[tuple[_Medium, _Probed]], rule: SampleRule, dead: dict[int, set[int]]
) -> ProbedMedia:
    counts = (
        np.bincount([medium[0] for medium, _ in kept], minlength=num_rows) if kept else np.zeros(num_rows)
    )
    offsets = np.zeros(num_rows + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    sizes = MediaSizes(
        offsets,
        np.array([medium[1] for medium, _ in kept], np.uint8),
        np.array([_tokens(medium[1], found, rule) for medium, found in kept], np.int32),
    )
    return ProbedMedia(
        sizes,
        np.array([found.grid for _, found in kept], np.int32).reshape(-1, 3),
        [medium[2] for medium, _ in kept if not isinstance(medium[2], BadSample)],
        [found.times for _, found in kept],
        dead,
    )


def _tokens(kind: int, found: _Probed, rule: SampleRule) -> int:
    if kind == AUDIO:
        return rule.sound.mel.num_tokens(found.grid[0])
    return num_tokens(*found.grid, rule.vision)
