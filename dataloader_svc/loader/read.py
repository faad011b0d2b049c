"""A block: its rows read, media probed from their headers, texts tokenized, and all of it kept as columns.

What is kept (`HeldBlock`) is what a plan may name later: token ids, and media still encoded, or their paths
where the row only names a file. The planner gets `probe_columns`: numbers, no payload. Knows no memory limit
(`core.py`) and decodes nothing (`decode.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.loader.paired import PROMPTS, split_pairs
from dataloader_svc.loader.probe import BlockReader, ProbedMedia, probe_media
from dataloader_svc.loader.rules import SampleRule
from dataloader_svc.loader.transformed import transformed
from dataloader_svc.sample import BadRow, BlockId, Incident, ProbeColumns, RowRef, keyed_share
from dataloader_svc.sources.reader import BlockSamples
from dataloader_svc.transforms.base import AUDIO, Documents, RowColumns
from dataloader_svc.transforms.document import assemble
from dataloader_svc.transforms.pairs import joined
from dataloader_svc.transforms.slots import without_dead

TOKENIZER_DIFFERS = "tokenizer_differs"
"""Kind of incident: the fast tokenizer gave other ids than the reference."""


@dataclass(frozen=True, slots=True)
class HeldMedia:
    """Media of a block's good samples, in the order of their tokens.

    offsets  int32 (n+1,)  sample i has media `offsets[i]:offsets[i+1]`
    kind     uint8 (k,)    transforms.base.IMAGE, VIDEO or AUDIO
    start    int32 (k,)    first placeholder token, in the document
    tokens   int32 (k,)    placeholders
    grid     int32 (k, 3)  frames, patches down, patches across; of sound, which has no patches, mel frames
                           and zeros
    first    int32 (k,)    first mel frame of a clip of sound in its medium: a long one is several clips
    data     k encoded media, or paths
    times    k float32 (frames,): of a video's frames, in seconds after the clip's first; else (0,)
    """

    offsets: NDArray[np.int32]
    kind: NDArray[np.uint8]
    start: NDArray[np.int32]
    tokens: NDArray[np.int32]
    grid: NDArray[np.int32]
    first: NDArray[np.int32]
    data: tuple[bytes | str, ...]
    times: tuple[NDArray[np.float32], ...]

    @property
    def patches(self) -> NDArray[np.int32]:
        """int32 (k,) encoder patches of each."""
        patches: NDArray[np.int32] = self.grid.prod(axis=1, dtype=np.int32)
        return patches

    @property
    def frames(self) -> NDArray[np.int32]:
        """int32 (k,) mel frames of each."""
        return np.where(self.kind == AUDIO, self.grid[:, 0], 0).astype(np.int32)

    @property
    def num_bytes(self) -> NDArray[np.int64]:
        """int64 (k,) of each encoded medium; that of several clips counts with the first of them."""
        sizes = [len(data) if isinstance(data, bytes) else 0 for data in self.data]
        return np.where(self.first == 0, np.array(sizes, np.int64), 0)


@dataclass(frozen=True, slots=True)
class HeldBlock:
    """A block as a loader keeps it: sample i is position `start + i`; documents as in `Documents`.

    compared   documents that were encoded a second time; `incidents`: of them, those that differ
    second     as in `Documents`
    index      digest of the index by which its rows were found
    """

    block: BlockId
    start: int
    ids: NDArray[np.int32]
    id_offsets: NDArray[np.int64]
    targets: NDArray[np.uint8]
    media: HeldMedia
    bad: tuple[BadRow, ...]
    ref: Callable[[int], RowRef]
    compared: int = 0
    incidents: tuple[Incident, ...] = ()
    second: NDArray[np.int32] | None = None
    index: str = ""

    @property
    def num_bytes(self) -> int:
        """What it takes in memory, small change aside."""
        arrays = self.ids.nbytes + self.targets.nbytes + 24 * len(self.id_offsets)
        arrays += sum(times.nbytes for times in self.media.times)
        return arrays + int(self.media.num_bytes.sum())


def read_block(
    reader: BlockReader,
    block: BlockId,
    rule: SampleRule,
    pool: Executor,
    waiting: Executor | None = None,
    only: Collection[int] | None = None,
) -> HeldBlock:
    """Read, probe, tokenize. `pool` runs the probes; do not call this from one of its own threads.

    `waiting` runs those that wait for a worker process; None: `pool` does. `only`: positions; the block that
    comes back has no others, and can't be probed.
    Bad samples have no tokens and stand in `bad`. Raises only what is no sample's fault.
    """
    samples = transformed(reader.read_block(block, only), rule.transforms)
    # What is read in part was compared when it was read whole.
    compare = _compared(samples, rule) if only is None else None
    if rule.pairs is None:
        documents, found = _documents(reader, samples, rule, compare, pool, waiting or pool)
    else:
        both = split_pairs(samples, rule.pairs)
        compare = None if compare is None else np.repeat(compare, 2)
        documents, found = _documents(reader, both, rule, compare, pool, waiting or pool)
        documents = joined(documents, found.sizes.tokens, rule.pairs.limit)
    media = _held_media(documents, found, rule)
    return HeldBlock(
        block=block,
        start=samples.start,
        ids=documents.ids,
        id_offsets=documents.id_offsets,
        targets=documents.targets,
        media=media,
        bad=_bad_rows(samples, documents) if only is None else (),
        ref=_Refs(samples),
        compared=documents.compared,
        incidents=tuple(
            Incident(samples.start + index, samples.ref(index), TOKENIZER_DIFFERS, what)
            for index, what in sorted(documents.differing.items())
        ),
        second=documents.second,
        index=samples.index,
    )


def _documents(
    reader: BlockReader,
    samples: BlockSamples,
    rule: SampleRule,
    compare: NDArray[np.bool_] | None,
    pool: Executor,
    waiting: Executor,
) -> tuple[Documents, ProbedMedia]:
    bad = dict(samples.bad)
    found = probe_media(reader, samples, rule, (pool, waiting), bad)
    columns = samples.columns
    rows = RowColumns(
        len(samples),
        found.sizes,
        texts=columns.get("text"),
        messages=columns.get("messages"),
        interleaved=without_dead(columns["interleaved"], found.dead)
        if found.dead
        else columns.get("interleaved"),
        ids=columns.get("input_ids"),
        masks=columns.get("loss_mask"),
        prompts=columns.get(PROMPTS),
        bad=bad,
        compare=compare,
    )
    return assemble(rule.tokenizer, rule.document, rows), found


def probe_columns(held: HeldBlock) -> ProbeColumns:
    """What the planner is told of a block."""
    media = held.media
    patches = media.patches
    frames = media.frames
    tokens = np.diff(held.id_offsets)
    return ProbeColumns(
        block=held.block,
        start=held.start,
        tokens=tokens.astype(np.int32),
        patches=_per_sample(patches, media.offsets).astype(np.int32),
        frames=_per_sample(frames, media.offsets).astype(np.int32),
        num_bytes=tokens * (held.ids.itemsize + held.targets.itemsize)
        + _per_sample(media.num_bytes, media.offsets),
        media_offsets=media.offsets,
        media_start=media.start,
        media_tokens=media.tokens,
        media_patches=patches,
        media_frames=frames,
        bad=held.bad,
        incidents=held.incidents,
    )


def _compared(samples: BlockSamples, rule: SampleRule) -> NDArray[np.bool_] | None:
    """Samples to be encoded a second time, by their names: the same ones wherever the block is read."""
    if rule.verify == 0:
        return None
    block = samples.block
    positions = samples.start + np.arange(len(samples))
    name = rule.first_name or block.source
    return keyed_share(rule.verify, positions, rule.seed, name, block.epoch, "tokenizer_verify")


def _per_sample(values: NDArray[Any], offsets: NDArray[np.int32]) -> NDArray[np.int64]:
    """Sums over ragged rows, of which many are empty."""
    sums = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    return np.asarray(sums[offsets[1:]] - sums[offsets[:-1]], np.int64)


class _Refs:
    """Index in the block -> row, without the samples themselves."""

    def __init__(self, samples: BlockSamples) -> None:
        self._shard, self._row, self._paths = samples.shard, samples.row, samples.paths

    def __call__(self, index: int) -> RowRef:
        return RowRef(self._paths[self._shard[index]], int(self._row[index]))


def _bad_rows(samples: BlockSamples, documents: Documents) -> tuple[BadRow, ...]:
    return tuple(
        BadRow(samples.start + index, samples.ref(index), problem.reason.value, problem.detail)
        for index, problem in sorted(documents.bad.items())
    )


def _held_media(documents: Documents, media: ProbedMedia, rule: SampleRule) -> HeldMedia:
    """The media in the order of their tokens, sound in clips that the encoder gets at once."""
    index = documents.media_index
    kind, grid = media.sizes.kind[index], media.grid[index]
    limit = rule.sound.clip_frames
    is_sound = kind == AUDIO
    clips = np.where(is_sound, np.maximum(1, -(-grid[:, 0] // limit)), 1)
    medium = np.repeat(np.arange(len(index)), clips)
    number = np.arange(len(medium)) - np.repeat(np.cumsum(clips) - clips, clips)
    first = number * np.where(is_sound, limit, 0)[medium]
    grid = grid[medium]
    grid[:, 0] = np.where(is_sound[medium], np.minimum(grid[:, 0] - first, limit), grid[:, 0])
    sound_tokens = grid[:, 0] // rule.sound.mel.frames_per_token
    tokens = np.where(is_sound[medium], sound_tokens, media.sizes.tokens[index][medium])
    before = first // rule.sound.mel.frames_per_token
    ends = np.concatenate([[0], np.cumsum(clips)])
    return HeldMedia(
        ends[documents.media_offsets].astype(np.int32),
        kind[medium],
        (documents.media_start[medium] + before).astype(np.int32),
        tokens.astype(np.int32),
        grid.astype(np.int32),
        first.astype(np.int32),
        tuple(media.data[i] for i in index[medium].tolist()),
        tuple(media.times[i] for i in index[medium].tolist()),
    )
