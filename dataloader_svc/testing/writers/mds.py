"""Tiny Mosaic MDS folders, written by the book of the format and not by our reader's code."""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dataloader_svc.testing.data import WRITERS, TinyRow


def write_mds(
    path: Path, columns: Mapping[str, tuple[str, int | None]], rows: Sequence[Sequence[bytes]]
) -> None:
    """One shard, and its entry in index.json beside it. `columns`: name -> (encoding, fixed size or None)."""
    layout: dict[str, Any] = {
        "column_encodings": [encoding for encoding, _ in columns.values()],
        "column_names": list(columns),
        "column_sizes": [size for _, size in columns.values()],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": 2**26,
        "version": 2,
    }
    config = json.dumps(layout, sort_keys=True).encode()
    variable = [size is None for _, size in columns.values()]
    samples = [
        struct.pack(f"<{sum(variable)}I", *map(len, itertools.compress(cells, variable))) + b"".join(cells)
        for cells in rows
    ]
    begin = 4 + 4 * (len(samples) + 1) + len(config)
    offsets = list(itertools.accumulate(map(len, samples), initial=begin))
    data = struct.pack(f"<{len(samples) + 2}I", len(samples), *offsets) + config + b"".join(samples)
    path.write_bytes(data)
    index = path.parent / "index.json"
    shards = json.loads(index.read_text())["shards"] if index.exists() else []
    raw = {"basename": path.name, "bytes": len(data), "hashes": {}}
    shards.append(layout | {"samples": len(samples), "raw_data": raw, "zip_data": None})
    index.write_text(json.dumps({"version": 2, "shards": shards}))


@WRITERS.register("mds")
class MdsWriter:
    """MDS has no null: a column in which a row lacks its value is written as JSON."""

    suffix = ".mds"
    pattern = ""
    fields: Mapping[str, str] = {"text": "content", "image": "picture", "messages": "chat"}

    def write(self, path: Path, rows: Sequence[TinyRow]) -> None:
        """Columns id (int, that nobody maps), and those of chat, content, picture that any row has."""
        columns: dict[str, tuple[str, int | None]] = {"id": ("int", 8)}
        cells: list[list[bytes]] = [[struct.pack("<q", number)] for number in range(len(rows))]
        for name, role, encoding in (
            ("chat", "messages", "json"),
            ("content", "text", "str"),
            ("picture", "image", "png"),
        ):
            values = [getattr(row, role) for row in rows]
            if all(value is None for value in values):
                continue
            if None in values:
                encoding = "json"
            columns[name] = (encoding, None)
            for cell, value in zip(cells, values, strict=True):
                cell.append(_encoded(encoding, value))
        write_mds(path, columns, cells)


def _encoded(encoding: str, value: Any) -> bytes:
    if encoding == "json":
        return json.dumps(value).encode()
    return value.encode() if encoding == "str" else bytes(value)
