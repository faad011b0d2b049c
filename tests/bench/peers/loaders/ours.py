"""The service: `serve` with a configuration of the material, and a client in each rank."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dataloader_client import DataServiceLoader
from tests.bench.peers.loaders import common, shards
from tests.bench.peers.task import SEQUENCE_LENGTH, Task

SOURCES = {
    "text": {"text": {"format": "parquet", "path": "{data}/text/*.parquet", "text": "text"}},
    "images": {
        "images": {"format": "webdataset", "path": "{converted}/images/*.tar", "image": "jpg", "text": "txt"}
    },
}


def convert(task: Task) -> None:
    shards.image_tars(Path(task.data, "images"), task.folder / "images")


def sources_of(task: Task) -> dict[str, dict[str, Any]]:
    """The configuration's sources."""
    if task.workload == "sources":
        paths = sorted(Path(task.data, "sources").glob("*.parquet"))[: task.sources]
        # One block of each source is held at a time: with 306 of 16 MiB they would not fit in loader.memory.
        fields = {"format": "parquet", "text": "text", "shuffle": {"block": 2**20}}
        return {f"s{path.stem}": {**fields, "path": str(path)} for path in paths}
    return {
        name: {**fields, "path": fields["path"].format(data=task.data, converted=task.converted)}
        for name, fields in SOURCES[task.workload].items()
    }


@contextlib.contextmanager
def service(task: Task) -> Iterator[str]:
    config = {
        "job": f"peers-{task.workload}",
        "seed": task.seed,
        "tokenizer": str(common.TOKENIZER),
        "tokenizer_backend": "fastokens" if task.style == "same" else "auto",
        "sequence_length": SEQUENCE_LENGTH,
        "global_batch": {"sequences": 4 * task.ranks},
        "media_tokens": {"image": "<｜image｜>"},
        "sources": sources_of(task),
        "mixture": {"schedule": [{"step": 0, **dict.fromkeys(sources_of(task), 1.0)}]},
    }
    path = Path(task.scratch, "mixture.yaml")
    path.write_text(json.dumps(config, ensure_ascii=False))  # JSON is YAML
    command = [
        sys.executable,
        "-m",
        "dataloader_svc",
        "serve",
        str(path),
        "--json",
        "--address",
        "127.0.0.1:0",
    ]
    command += ["--store", f"sqlite:///{task.scratch}/peers.db"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield json.loads(process.stdout.readline())["address"]
        finally:
            process.terminate()


def _batches(task: Task) -> Iterator[Any]:
    return iter(DataServiceLoader(task.address, dp_rank=task.rank, dp_size=task.ranks))


def text(task: Task) -> Iterator[Any]:
    return (batch.numpy for batch in _batches(task))


def sources(task: Task) -> Iterator[Any]:
    return text(task)


def images(task: Task) -> Iterator[list[Any]]:
    for batch in _batches(task):
        pixels, grids = batch.numpy["pixel_values"], batch.numpy["image_grid_thw"]
        yield np.split(pixels, np.cumsum(grids.prod(axis=1))[:-1]) if len(grids) else []
