"""megatron-energon: prepared WebDataset shards, a crude sample cooked and batched in its workers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from megatron.energon import (
    Cooker,
    DefaultTaskEncoder,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    stateless,
)

from tests.bench.peers.loaders import common, shards
from tests.bench.peers.task import PICTURES_A_BATCH, Task


def convert(task: Task) -> None:
    shards.text_tars(Path(task.data, "text"), task.folder / "text")
    shards.image_tars(Path(task.data, "images"), task.folder / "images")
    for kind in ("text", "images"):
        command = [str(Path(sys.executable).with_name("energon")), "prepare", str(task.folder / kind)]
        command += ["--non-interactive", "--split-ratio", "1,0,0", "--sample-type", "CrudeWebdataset"]
        subprocess.run(command, check=True, stdout=sys.stderr)


@stateless
def _text(sample: dict[str, Any]) -> dict[str, Any]:
    data = sample["txt"]
    return {"__key__": sample["__key__"], "text": data if isinstance(data, str) else data.decode()}


@stateless
def _jpeg(sample: dict[str, Any]) -> dict[str, Any]:
    return {"__key__": sample["__key__"], "jpg": sample["jpg"]}


class Encode(DefaultTaskEncoder):  # type: ignore[type-arg]
    """A block of rows to ids."""

    cookers = (Cooker(_text),)
    decoder = None

    def __init__(self, style: str) -> None:
        super().__init__()
        self.style = style

    @stateless
    def batch(self, samples: list[dict[str, Any]]) -> Any:
        return common.encoder(self.style)([sample["text"] for sample in samples])


class Decode(Encode):
    """Pictures to patches."""

    cookers = (Cooker(_jpeg),)

    @stateless
    def batch(self, samples: list[dict[str, Any]]) -> Any:
        return [common.patches(sample["jpg"], self.style) for sample in samples]


def _batches(task: Task, kind: str, size: int, encoder: Any) -> Iterator[Any]:
    config = WorkerConfig(rank=task.rank, world_size=task.ranks, num_workers=task.workers)
    dataset = get_train_dataset(
        task.folder / kind,
        worker_config=config,
        batch_size=size,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        task_encoder=encoder,
    )
    return iter(get_loader(dataset, worker_config=config, prefetch_factor=4))


def text(task: Task) -> Iterator[Any]:
    return common.filled(_batches(task, "text", common.ROWS_A_BLOCK, Encode(task.style)))


def images(task: Task) -> Iterator[list[Any]]:
    return _batches(task, "images", PICTURES_A_BATCH, Decode(task.style))
