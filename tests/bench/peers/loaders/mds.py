"""mosaicml-streaming: MDS shards read by StreamingDataset behind a DataLoader."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streaming import MDSWriter, StreamingDataset
from torch.utils.data import DataLoader

from tests.bench.peers.loaders import common, shards
from tests.bench.peers.task import PICTURES_A_BATCH, Task


def convert(task: Task) -> None:
    with MDSWriter(out=str(task.folder / "text"), columns={"text": "str"}, size_limit="16mb") as out:
        for _, text in shards.rows(Path(task.data, "text")):
            out.write({"text": text})
    with MDSWriter(out=str(task.folder / "images"), columns={"jpg": "bytes"}, size_limit="16mb") as out:
        for _, jpeg, _ in shards.pictures(Path(task.data, "images")):
            out.write({"jpg": jpeg})


class Packed(StreamingDataset):
    """Samples packed where they are read."""

    def __init__(self, style: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.style = style

    def __iter__(self) -> Iterator[common.Sequence]:
        return common.packed((sample["text"] for sample in super().__iter__()), self.style)


class Pictures(StreamingDataset):
    """Samples decoded where they are read."""

    def __init__(self, style: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.style = style

    def __getitem__(self, index: Any) -> Any:
        return common.patches(super().__getitem__(index)["jpg"], self.style)


def _batches(task: Task, kind: str, dataset: type[StreamingDataset], **arguments: Any) -> Iterator[Any]:
    # How streaming learns which rank it is; torch.distributed is used to share memory's names among ranks.
    os.environ.update(
        WORLD_SIZE=str(task.ranks),
        LOCAL_WORLD_SIZE=str(task.ranks),
        RANK=str(task.rank),
        LOCAL_RANK=str(task.rank),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(task.port),
    )
    data = dataset(
        style=task.style,
        local=str(task.folder / kind),
        shuffle=True,
        shuffle_seed=task.seed,
        batch_size=arguments.get("batch_size") or 1,
    )
    loader = DataLoader(data, num_workers=task.workers, persistent_workers=True, **arguments)
    while True:
        yield from loader


def text(task: Task) -> Iterator[Any]:
    return _batches(task, "text", Packed, batch_size=None)


def images(task: Task) -> Iterator[list[Any]]:
    return _batches(task, "images", Pictures, batch_size=PICTURES_A_BATCH, collate_fn=list)
