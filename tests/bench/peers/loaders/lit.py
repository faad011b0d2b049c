"""litdata: chunks written by `optimize`, read by StreamingDataset behind StreamingDataLoader.

Its own packer (TokensLoader) wants ids that were made beforehand; here the text is encoded while it is read,
a batch of rows at a time in the workers, and packed by the trainer's process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import litdata

from tests.bench.peers.loaders import common, shards
from tests.bench.peers.task import PICTURES_A_BATCH, Task


def convert(task: Task) -> None:
    litdata.optimize(
        fn=str,
        inputs=[text for _, text in shards.rows(Path(task.data, "text"))],
        output_dir=str(task.folder / "text"),
        chunk_bytes="16MB",
        num_workers=1,
    )
    litdata.optimize(
        fn=bytes,
        inputs=[jpeg for _, jpeg, _ in shards.pictures(Path(task.data, "images"))],
        output_dir=str(task.folder / "images"),
        chunk_bytes="16MB",
        num_workers=1,
    )


def _distributed(task: Task) -> None:
    """How litdata learns which rank it is without torch.distributed."""
    os.environ.update(WORLD_SIZE=str(task.ranks), GLOBAL_RANK=str(task.rank), NNODES="1")


def _batches(task: Task, kind: str, size: int, collate: Any) -> Iterator[Any]:
    _distributed(task)
    dataset = litdata.StreamingDataset(str(task.folder / kind), shuffle=True, seed=task.seed)
    loader = litdata.StreamingDataLoader(
        dataset, batch_size=size, num_workers=task.workers, collate_fn=collate, persistent_workers=True
    )
    while True:
        yield from loader


class Encode:
    """Rows to ids, in a worker."""

    def __init__(self, style: str) -> None:
        self.style = style

    def __call__(self, texts: list[str]) -> list[Any]:
        return common.encoder(self.style)(texts)


class Decode(Encode):
    """Pictures to patches, in a worker."""

    def __call__(self, pictures: list[bytes]) -> list[Any]:
        return [common.patches(bytes(picture), self.style) for picture in pictures]


def text(task: Task) -> Iterator[Any]:
    return common.filled(_batches(task, "text", common.ROWS_A_BLOCK, Encode(task.style)))


def images(task: Task) -> Iterator[list[Any]]:
    return _batches(task, "images", PICTURES_A_BATCH, Decode(task.style))
