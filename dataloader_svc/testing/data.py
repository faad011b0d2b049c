"""Tiny data sets made on the fly, in every format, with contents that a test knows.

`tiny_rows` makes rows, `write_source` writes them as shards and returns the YAML entry that reads them. A
format has a `Writer` here so that `testing.sources.SourceContract` can examine it; a format of another
package registers its own: `@WRITERS.register("name")`, or an entry point of `dataloader_svc.testing.writers`.
"""

from __future__ import annotations

import io
import json
import struct
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dataloader_svc.config.schema import Source
from dataloader_svc.registry import Registry
from dataloader_svc.sample import keyed_rng

_WORDS = ("a", "of", "loader", "naïve", "für", "猫", "🙂", "sequence", "the", "picture", "block", "is")
_ROWS_PER_GROUP = 8  # several extents even in a tiny parquet file


@dataclass(frozen=True, slots=True)
class TinyRow:
    """One row. A field that is None is left out of the file, or null where the format has columns."""

    text: str | None = None
    image: bytes | None = None
    messages: tuple[Mapping[str, str], ...] | None = None


class Writer(Protocol):
    """How a format is written. `fields`: role -> what the YAML calls the field.

    A writer whose `path:` is not `*SUFFIX` in the folder has an attribute `pattern` that says what it is; one
    that writes folders has `shards`, a glob of the files in them that are read; one whose format must be
    given options has `options`.
    """

    suffix: str
    fields: Mapping[str, str]

    def write(self, path: Path, rows: Sequence[TinyRow]) -> None:
        """Write one shard of at least one row; the roles that occur in any row are its fields."""
        ...


WRITERS: Registry[type[Writer]] = Registry("test writer", "dataloader_svc.testing.writers")


def tiny_rows(count: int, *, seed: int = 0, image_side: int | None = None) -> list[TinyRow]:
    """`count` rows whose text begins with its number, with a flat square picture if `image_side` is given."""
    rng = keyed_rng(seed, "tiny rows")
    lengths = rng.geometric(0.08, count)
    rows = []
    for number, length in enumerate(lengths.tolist()):
        words = [_WORDS[word] for word in rng.integers(len(_WORDS), size=length)]
        colour = (40 * number % 256, 100, 255 - 40 * number % 256)
        image = None if image_side is None else png(image_side, image_side, colour)
        rows.append(TinyRow(text=f"{number}: {' '.join(words)}", image=image))
    return rows


def png(width: int, height: int, rgb: tuple[int, int, int]) -> bytes:
    """A flat PNG picture (8 bit RGB, no filter), without an imaging library."""
    line = b"\0" + bytes(rgb) * width

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(line * height)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def write_source(
    folder: Path, format_name: str, rows: Sequence[TinyRow], *, shards: int = 1, **settings: Any
) -> Source:
    """Write `rows`, in order, as `shards` files of about equal length; `settings` are further YAML fields."""
    writer = WRITERS.get(format_name)()
    folder.mkdir(parents=True, exist_ok=True)
    bounds = np.linspace(0, len(rows), shards + 1).astype(int)
    for number in range(shards):
        part = rows[bounds[number] : bounds[number + 1]]
        writer.write(folder / f"part-{number:04d}{writer.suffix}", part)
    roles = [role for role in ("text", "image", "messages") if any(getattr(row, role) for row in rows)]
    mapping = {role: writer.fields[role] for role in roles}
    path = f"{folder}/{getattr(writer, 'pattern', f'*{writer.suffix}')}"
    options = dict(getattr(writer, "options", {}))
    return Source.model_validate(
        {"format": format_name, "path": path, "options": options} | mapping | settings
    )


@WRITERS.register("jsonl")
class JsonLinesWriter:
    """Pictures are files beside the shard, named in the row."""

    suffix = ".jsonl"
    fields: Mapping[str, str] = {"text": "text", "image": "picture", "messages": "messages"}

    def write(self, path: Path, rows: Sequence[TinyRow]) -> None:
        """One object a line."""
        lines = []
        for number, row in enumerate(rows):
            values: dict[str, object] = {"id": number}
            if row.text is not None:
                values["text"] = row.text
            if row.image is not None:
                name = f"{path.stem}-{number}.png"
                (path.parent / name).write_bytes(row.image)
                values["picture"] = name
            if row.messages is not None:
                values["messages"] = list(row.messages)
            lines.append(json.dumps(values, ensure_ascii=number % 2 == 0) + "\n")
        path.write_text("".join(lines), encoding="utf-8")


@WRITERS.register("parquet")
class ParquetWriter:
    """Pictures as the Hugging Face struct {bytes, path}."""

    suffix = ".parquet"
    fields: Mapping[str, str] = {"text": "content", "image": "picture", "messages": "messages"}

    def write(self, path: Path, rows: Sequence[TinyRow]) -> None:
        """Row groups of a few rows, and a column that nobody maps."""
        columns: dict[str, pa.Array] = {"id": pa.array(range(len(rows)))}
        if any(row.text is not None for row in rows):
            columns["content"] = pa.array([row.text for row in rows], pa.string())
        if any(row.image is not None for row in rows):
            cells = [None if row.image is None else {"bytes": row.image, "path": None} for row in rows]
            columns["picture"] = pa.array(cells, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
        if any(row.messages is not None for row in rows):
            message = pa.struct({"role": pa.string(), "content": pa.string()})
            columns["messages"] = pa.array([row.messages for row in rows], pa.list_(message))
        pq.write_table(pa.table(columns), path, row_group_size=_ROWS_PER_GROUP)


@WRITERS.register("webdataset")
class WebDatasetWriter:
    """Members 000000.txt, 000000.png, 000000.json."""

    suffix = ".tar"
    fields: Mapping[str, str] = {"text": "txt", "image": "png", "messages": "json"}

    def write(self, path: Path, rows: Sequence[TinyRow]) -> None:
        """Every sample has a .cls member besides, so that one without any field is a sample too."""
        with tarfile.open(path, "w") as archive:
            for number, row in enumerate(rows):
                parts: dict[str, bytes | None] = {
                    "cls": b"0",
                    "txt": None if row.text is None else row.text.encode(),
                    "png": row.image,
                    "json": None if row.messages is None else json.dumps(list(row.messages)).encode(),
                }
                for extension, data in parts.items():
                    if data is not None:
                        member = tarfile.TarInfo(f"{number:06d}.{extension}")
                        member.size = len(data)
                        archive.addfile(member, io.BytesIO(data))


from dataloader_svc.testing import writers as writers  # noqa: E402 - they register with the names above
