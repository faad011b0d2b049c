"""tf.data service: a dispatcher and two workers; the ranks share one job, first come, first served.

A worker runs TensorFlow's operations alone, no Python: pictures are decoded and cut by them (so there is no
style "same" for pictures), text is encoded by the ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from dataloader_svc.media.image import probe
from dataloader_svc.transforms.vision import smart_resize
from tests.bench.peers.loaders import common, shards
from tests.bench.peers.task import PICTURES_A_BATCH, Task

WORKERS = 2


def convert(task: Task) -> None:
    _write(
        task.folder / "text", ({"text": text.encode()} for _, text in shards.rows(Path(task.data, "text")))
    )
    _write(task.folder / "images", _pictures(Path(task.data, "images")))


def _pictures(folder: Path) -> Iterator[dict[str, Any]]:
    for _, jpeg, _ in shards.pictures(folder):
        found = probe(jpeg, max_source_pixels=common.RULE.max_source_pixels)
        yield {"jpg": jpeg, "size": smart_resize(found.height, found.width, common.RULE)}


def _write(folder: Path, samples: Iterator[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        names = [str(folder / f"shard-{shard:05d}.tfrecord") for shard in range(shards.NUM_SHARDS)]
        writers = [stack.enter_context(tf.io.TFRecordWriter(name)) for name in names]
        for number, sample in enumerate(samples):
            features = {
                name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
                if isinstance(value, bytes)
                else tf.train.Feature(int64_list=tf.train.Int64List(value=value))
                for name, value in sample.items()
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writers[number % len(writers)].write(example.SerializeToString())


@contextlib.contextmanager
def service(task: Task) -> Iterator[str]:
    dispatcher = tf.data.experimental.service.DispatchServer()
    address = dispatcher.target.split("://")[1]
    config = tf.data.experimental.service.WorkerConfig(dispatcher_address=address)
    workers = [tf.data.experimental.service.WorkerServer(config) for _ in range(WORKERS)]
    yield dispatcher.target
    del workers


def _records(task: Task, kind: str) -> Any:
    files = sorted(map(str, (task.folder / kind).glob("*.tfrecord")))
    dataset = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files), seed=task.seed)
    return (
        dataset.interleave(tf.data.TFRecordDataset, num_parallel_calls=2)
        .shuffle(1000, seed=task.seed)
        .repeat()
    )


def _distributed(task: Task, dataset: Any) -> Any:
    policy = tf.data.experimental.service.ShardingPolicy.OFF
    return dataset.apply(
        tf.data.experimental.service.distribute(policy, task.address, job_name=task.workload)
    ).prefetch(2)


def text(task: Task) -> Iterator[Any]:
    def parsed(record: Any) -> Any:
        return tf.io.parse_single_example(record, {"text": tf.io.FixedLenFeature([], tf.string)})["text"]

    dataset = _distributed(task, _records(task, "text").map(parsed).batch(common.ROWS_A_BLOCK))
    encode = common.encoder(task.style)
    return common.filled(encode([row.decode() for row in batch]) for batch in dataset.as_numpy_iterator())


def images(task: Task) -> Iterator[list[Any]]:
    side, patch, merge = common.RULE.side, common.RULE.patch, common.RULE.merge

    def decoded(record: Any) -> Any:
        fields = {"jpg": tf.io.FixedLenFeature([], tf.string), "size": tf.io.FixedLenFeature([2], tf.int64)}
        sample = tf.io.parse_single_example(record, fields)
        size = tf.cast(sample["size"], tf.int32)
        pixels = tf.image.resize(
            tf.io.decode_jpeg(sample["jpg"], channels=3), size, "bicubic", antialias=True
        )
        pixels = tf.cast(tf.clip_by_value(tf.round(pixels), 0, 255), tf.uint8)
        blocks = tf.reshape(pixels, [size[0] // side, merge, patch, size[1] // side, merge, patch, 3])
        return tf.reshape(tf.transpose(blocks, [0, 3, 1, 4, 6, 2, 5]), [-1, 3 * patch * patch])

    dataset = _records(task, "images").map(decoded, num_parallel_calls=2).ragged_batch(PICTURES_A_BATCH)
    batches = _distributed(task, dataset)
    return ([one.numpy() for one in batch] for batch in batches)
