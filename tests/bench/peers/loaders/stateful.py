"""torchdata's StatefulDataLoader: the DataLoader's datasets behind the loader that can save its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchdata.stateful_dataloader import StatefulDataLoader

from tests.bench.peers.loaders import torch_loader
from tests.bench.peers.task import Task


def text(task: Task) -> Iterator[Any]:
    return torch_loader.text(task, StatefulDataLoader)


def sources(task: Task) -> Iterator[Any]:
    return torch_loader.sources(task, StatefulDataLoader)


def images(task: Task) -> Iterator[list[Any]]:
    return torch_loader.images(task, StatefulDataLoader)
