"""SPDL: a pipeline of threads in each rank, as its documentation advises."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from spdl.pipeline import PipelineBuilder

from tests.bench.peers.loaders import common
from tests.bench.peers.task import PICTURES_A_BATCH, Task

THREADS = 2


def _run(builder: Any) -> Iterator[Any]:
    pipeline = builder.add_sink(4).build(num_threads=THREADS)
    with pipeline.auto_stop():
        yield from pipeline


def text(task: Task) -> Iterator[Any]:
    files = [pq.ParquetFile(path) for path in sorted(Path(task.data, "text").glob("*.parquet"))]
    groups = [(file, group) for file in files for group in range(file.num_row_groups)]
    mine = groups[common.share(task, 0, 1)]

    def encoded(place: tuple[Any, int]) -> list[Any]:
        file, group = place
        return common.encoder(task.style)(file.read_row_group(group, columns=["text"])["text"].to_pylist())

    builder = PipelineBuilder().add_source(itertools.cycle(mine)).pipe(encoded, concurrency=THREADS)
    return common.filled(_run(builder))


def images(task: Task) -> Iterator[list[Any]]:
    paths = sorted(Path(task.data, "images").glob("*.jpg"))[task.rank :: task.ranks]

    def decoded(path: Path) -> Any:
        return common.patches(path.read_bytes(), task.style)

    builder = PipelineBuilder().add_source(itertools.cycle(paths)).pipe(decoded, concurrency=THREADS)
    return _run(builder.aggregate(PICTURES_A_BATCH))
