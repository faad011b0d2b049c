"""What no loader can pass: the tokenizer or the picture decoder alone, its input ready in memory.

No file, no packing, no other process; each rank has the libraries for itself. What a loader does per CPU
second stands beside this.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.peers.loaders import common, shards
from tests.bench.peers.task import PICTURES_A_BATCH, Task


def text(task: Task) -> Iterator[dict[str, Any]]:
    texts = [text for _, text in shards.rows(Path(task.data, "text"))][common.share(task, 0, 1)]
    blocks = _blocks(texts)
    encode = common.encoder(task.style)
    for block in itertools.cycle(blocks):
        yield {"input_ids": np.concatenate(encode(block))}


def _blocks(texts: list[str]) -> list[list[str]]:
    size = common.ROWS_A_BLOCK
    return [texts[begin : begin + size] for begin in range(0, len(texts), size)]


def images(task: Task) -> Iterator[list[Any]]:
    pictures = [jpeg for _, jpeg, _ in shards.pictures(Path(task.data, "images"))][common.share(task, 0, 1)]
    endless = itertools.cycle(pictures)
    while True:
        batch = itertools.islice(endless, PICTURES_A_BATCH)
        yield [common.patches(jpeg, task.style) for jpeg in batch]
