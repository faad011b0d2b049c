"""webdataset: tar shards, split by rank and worker, shuffled in a buffer, as its README advises."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import webdataset as wds

from tests.bench.peers.loaders import common, shards
from tests.bench.peers.task import PICTURES_A_BATCH, Task


def convert(task: Task) -> None:
    shards.text_tars(Path(task.data, "text"), task.folder / "text")
    shards.image_tars(Path(task.data, "images"), task.folder / "images")


def _samples(task: Task, kind: str) -> Any:
    urls = sorted(map(str, (task.folder / kind).glob("*.tar")))

    def mine(sources: Iterable[Any]) -> Iterator[Any]:
        return iter(list(sources)[task.rank :: task.ranks])

    return wds.WebDataset(
        urls, nodesplitter=mine, shardshuffle=len(urls), seed=task.seed, empty_check=False
    ).repeat()


def text(task: Task) -> Iterator[Any]:
    def sequences(samples: Iterable[dict[str, Any]]) -> Iterator[Any]:
        return common.packed((sample["txt"].decode() for sample in samples), task.style)

    dataset = _samples(task, "text").shuffle(1000).compose(sequences)
    return iter(wds.WebLoader(dataset, batch_size=None, num_workers=task.workers))


def images(task: Task) -> Iterator[list[Any]]:
    def decoded(sample: dict[str, Any]) -> Any:
        return common.patches(sample["jpg"], task.style)

    dataset = _samples(task, "images").shuffle(100).map(decoded).batched(PICTURES_A_BATCH, collation_fn=list)
    return iter(wds.WebLoader(dataset, batch_size=None, num_workers=task.workers))
