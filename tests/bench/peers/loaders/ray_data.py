"""Ray Data: parquet and files read by its tasks, encoded in batches, split among the ranks as a stream.

Ray is made for clusters; on one machine its object store and its scheduler are an overhead that its users
accept. `streaming_split` lives in the driver, so the driver is the host and hands each rank its iterator.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ray

from tests.bench.peers.loaders import common
from tests.bench.peers.task import PICTURES_A_BATCH, Task

REPEATS = 1000  # epochs: the ranks never see the end


@ray.remote(num_cpus=0)
class Shares:
    """Holds the ranks' iterators until they ask."""

    def __init__(self, task_json: str) -> None:
        task = Task.from_json(task_json)
        dataset = _text(task) if task.workload == "text" else _images(task)
        self.iterators = dataset.streaming_split(task.ranks, equal=False)

    def of(self, rank: int) -> Any:
        return self.iterators[rank]


def _text(task: Task) -> Any:
    def encoded(batch: dict[str, Any]) -> dict[str, Any]:
        ids = common.encoder(task.style)(list(batch["text"]))
        return {"ids": np.array([np.asarray(one) for one in ids] + [None], dtype=object)[:-1]}

    paths = sorted(map(str, Path(task.data, "text").glob("*.parquet")))
    return ray.data.read_parquet(paths, columns=["text"]).map_batches(encoded, batch_size=common.ROWS_A_BLOCK)


def _images(task: Task) -> Any:
    def decoded(batch: dict[str, Any]) -> dict[str, Any]:
        found = [common.patches(one, task.style) for one in batch["bytes"]]
        return {"patches": np.array([*found, None], dtype=object)[:-1]}

    dataset = ray.data.read_binary_files(str(Path(task.data, "images")), file_extensions=["jpg"])
    return dataset.map_batches(decoded, batch_size=PICTURES_A_BATCH)


@contextlib.contextmanager
def service(task: Task) -> Iterator[str]:
    context = ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    shares = Shares.options(name="shares", namespace="peers", lifetime="detached").remote(task.to_json())
    ray.get(shares.of.remote(0))
    yield context.address_info["gcs_address"]
    ray.shutdown()


def _batches(task: Task, size: int) -> Iterator[dict[str, Any]]:
    ray.init(address=task.address, namespace="peers", log_to_driver=False)
    iterator = ray.get(ray.get_actor("shares").of.remote(task.rank))
    for _ in range(REPEATS):
        yield from iterator.iter_batches(batch_size=size, prefetch_batches=2)


def text(task: Task) -> Iterator[Any]:
    return common.filled(list(batch["ids"]) for batch in _batches(task, common.ROWS_A_BLOCK))


def images(task: Task) -> Iterator[list[Any]]:
    return (list(batch["patches"]) for batch in _batches(task, PICTURES_A_BATCH))
