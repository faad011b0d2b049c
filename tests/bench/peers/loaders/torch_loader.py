"""torch DataLoader: an IterableDataset over parquet for text, a map-style dataset over files for pictures."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, get_worker_info

from tests.bench.peers.loaders import common
from tests.bench.peers.task import PICTURES_A_BATCH, Task


class Packed(IterableDataset[Any]):
    """Sequences of this rank's and worker's share of the row groups, over and over."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def texts(self) -> Iterator[str]:
        info = get_worker_info()
        files = [pq.ParquetFile(path) for path in sorted(Path(self.task.data, "text").glob("*.parquet"))]
        groups = [(file, group) for file in files for group in range(file.num_row_groups)]
        mine = groups[common.share(self.task, info.id, info.num_workers)]
        while True:
            for file, group in mine:
                yield from file.read_row_group(group, columns=["text"])["text"].to_pylist()

    def __iter__(self) -> Iterator[common.Sequence]:
        return common.packed(self.texts(), self.task.style)


class Pictures(Dataset[Any]):
    """Each file a picture."""

    def __init__(self, task: Task) -> None:
        self.paths, self.style = sorted(Path(task.data, "images").glob("*.jpg")), task.style

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(common.patches(self.paths[index].read_bytes(), self.style))


class Mixed(Packed):
    """Sequences of all sources, as likely one as the other, each open in each worker."""

    def texts(self) -> Iterator[str]:
        info = get_worker_info()
        paths = sorted(Path(self.task.data, "sources").glob("*.parquet"))[: self.task.sources]
        files = [pq.ParquetFile(path) for path in paths]
        chance = random.Random(f"{self.task.seed}/{self.task.rank}/{info.id}")
        mine = [
            itertools.cycle(range(file.num_row_groups)[common.share(self.task, info.id, info.num_workers)])
            for file in files
        ]
        while True:
            source = chance.randrange(len(files))
            yield from files[source].read_row_group(next(mine[source]), columns=["text"])["text"].to_pylist()


def sources(task: Task, loader: Any = DataLoader) -> Iterator[dict[str, Any]]:
    return iter(loader(Mixed(task), batch_size=None, num_workers=task.workers, prefetch_factor=8))


def text(task: Task, loader: Any = DataLoader) -> Iterator[dict[str, Any]]:
    return iter(loader(Packed(task), batch_size=None, num_workers=task.workers, prefetch_factor=8))


def images(task: Task, loader: Any = DataLoader) -> Iterator[list[Any]]:
    dataset = Pictures(task)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, task.ranks, task.rank, seed=task.seed)
    batches = loader(
        dataset,
        batch_size=PICTURES_A_BATCH,
        sampler=sampler,
        num_workers=task.workers,
        collate_fn=list,
        persistent_workers=True,
    )
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from batches
        epoch += 1
