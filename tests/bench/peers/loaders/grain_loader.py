"""grain: ArrayRecord files, a shuffled MapDataset, its own concat-then-split packer, worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grain
from array_record.python import array_record_module
from grain.experimental import ConcatThenSplitIterDataset

from tests.bench.peers.loaders import common, shards
from tests.bench.peers.task import PICTURES_A_BATCH, SEQUENCE_LENGTH, Task


def convert(task: Task) -> None:
    _write(task.folder / "text", (text.encode() for _, text in shards.rows(Path(task.data, "text"))))
    _write(task.folder / "images", (jpeg for _, jpeg, _ in shards.pictures(Path(task.data, "images"))))


def _write(folder: Path, records: Iterator[bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    writers = [
        array_record_module.ArrayRecordWriter(str(folder / f"shard-{shard:05d}.array_record"), "group_size:1")
        for shard in range(shards.NUM_SHARDS)
    ]
    for number, record in enumerate(records):
        writers[number % len(writers)].write(record)
    for writer in writers:
        writer.close()


def _records(task: Task, kind: str) -> Any:
    source = grain.sources.ArrayRecordDataSource(
        sorted(map(str, (task.folder / kind).glob("*.array_record")))
    )
    dataset = grain.MapDataset.source(source).seed(task.seed).shuffle().repeat()
    return dataset[task.rank :: task.ranks]


def text(task: Task) -> Iterator[Any]:
    def encoded(record: bytes) -> dict[str, Any]:
        return {"input_ids": common.encoder(task.style)([record.decode()])[0]}

    rows = _records(task, "text").map(encoded).to_iter_dataset(grain.ReadOptions(num_threads=2))
    packed = ConcatThenSplitIterDataset(rows, length_struct={"input_ids": SEQUENCE_LENGTH})
    return (
        _with_labels(one)
        for one in packed.mp_prefetch(grain.MultiprocessingOptions(num_workers=task.workers))
    )


def _with_labels(one: dict[str, Any]) -> common.Sequence:
    """grain gives segment ids and positions; labels and bounds come of them."""
    import numpy as np

    ids, segments = one["input_ids"], one["input_ids_segment_ids"]
    labels = np.append(ids[1:], -100)
    last = np.append(segments[1:] != segments[:-1], True)
    labels[last] = -100
    bounds = np.concatenate(([0], np.flatnonzero(last) + 1)).astype(np.int32)
    return {
        "input_ids": ids,
        "labels": labels,
        "position_ids": one["input_ids_positions"],
        "cu_seqlens": bounds,
    }


def images(task: Task) -> Iterator[list[Any]]:
    def decoded(record: bytes) -> Any:
        return common.patches(record, task.style)

    rows = _records(task, "images").map(decoded).to_iter_dataset(grain.ReadOptions(num_threads=2))
    batches = rows.batch(PICTURES_A_BATCH, batch_fn=list)
    return iter(batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=task.workers)))
