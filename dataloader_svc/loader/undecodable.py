"""Which samples of a held block can't be decoded: all their media decoded on trial, the pixels thrown away.

A block tells at once what its headers and texts are worth; only this tells the rest, by the very readers that
serve a step. `check --deep` asks it of every block, a readmission of the samples that were repaired. Takes
PIXEL_BYTES of memory beside the block, or a single sample's pixels where those are more.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from concurrent.futures import Executor

import numpy as np

from dataloader_svc.loader.decode import PieceRange, TakenPiece, decode, take
from dataloader_svc.loader.probe import BlockReader
from dataloader_svc.loader.read import HeldBlock
from dataloader_svc.loader.rules import SampleRule
from dataloader_svc.sample import BadRow, RowRef

PIXEL_BYTES = 64 * 2**20


def undecodable(
    held: HeldBlock,
    reader: BlockReader,
    rule: SampleRule,
    pool: Executor,
    *,
    positions: Container[int] | None = None,
    pixel_bytes: int = PIXEL_BYTES,
) -> Iterator[BadRow]:
    """The good samples of a block whose media can't be decoded, ascending; `positions`: only of these.

    `pool` runs the decoders. Where several media of a sample fail, the first one's reason is given.
    """
    group: list[TakenPiece] = []
    size = 0
    for piece in _with_media(held, reader, rule):
        if positions is not None and piece.name.position not in positions:
            continue
        needs = sum(medium.patches for medium in piece.media) * 3 * rule.vision.patch**2
        needs += sum(medium.frames for medium in piece.media) * 4 * rule.sound.mel.bins
        if group and size + needs > pixel_bytes:
            yield from _failing(group, rule, pool)
            group, size = [], 0
        group.append(piece)
        size += needs
    if group:
        yield from _failing(group, rule, pool)


def _with_media(held: HeldBlock, reader: BlockReader, rule: SampleRule) -> Iterator[TakenPiece]:
    """The whole document of every sample that has media."""
    lengths = np.diff(held.id_offsets)
    for index in np.flatnonzero(np.diff(held.media.offsets)).tolist():
        yield take(held, PieceRange(held.start + index, 0, int(lengths[index])), reader, rule)


def _failing(pieces: list[TakenPiece], rule: SampleRule, pool: Executor) -> Iterator[BadRow]:
    for number, shard, row, reason, detail in decode(pieces, rule.vision.patch, pool).meta["bad"]:
        yield BadRow(pieces[number].name.position, RowRef(shard, row), reason, detail)
