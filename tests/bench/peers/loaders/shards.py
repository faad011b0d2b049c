"""The material as tar shards: what webdataset, megatron-energon and the service read pictures from."""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow.parquet as pq

NUM_SHARDS = 8


def rows(folder: Path) -> Iterator[tuple[int, str]]:
    """Id and text of each row, shard after shard."""
    for path in sorted(folder.glob("*.parquet")):
        table = pq.read_table(path)
        yield from zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True)


def pictures(folder: Path) -> Iterator[tuple[int, bytes, bytes]]:
    """Number, JPEG and caption of each picture."""
    for path in sorted(folder.glob("*.jpg")):
        yield int(path.stem), path.read_bytes(), path.with_suffix(".txt").read_bytes()


def text_tars(material: Path, folder: Path) -> None:
    _tars(folder, ((f"{number:06d}", {"txt": text.encode()}) for number, text in rows(material)))


def image_tars(material: Path, folder: Path) -> None:
    _tars(folder, ((f"{number:06d}", {"jpg": jpeg, "txt": txt}) for number, jpeg, txt in pictures(material)))


def _tars(folder: Path, samples: Iterable[tuple[str, dict[str, bytes]]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = [folder / f"shard-{shard:06d}.tar" for shard in range(NUM_SHARDS)]
    with contextlib.ExitStack() as stack:
        open_shards = [stack.enter_context(tarfile.open(name, "w")) for name in names]
        for number, (key, parts) in enumerate(samples):
            for suffix, data in parts.items():
                member = tarfile.TarInfo(f"{key}.{suffix}")
                member.size = len(data)
                open_shards[number % NUM_SHARDS].addfile(member, io.BytesIO(data))
