"""Tiny Arrow IPC streams, as Hugging Face `datasets` writes its cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from dataloader_svc.testing.data import WRITERS, TinyRow

_ROWS_PER_BATCH = 8  # several extents even in a tiny file


def tiny_table(rows: Sequence[TinyRow]) -> pa.Table:
    """Columns id (that nobody maps), and those of content, picture {bytes, path}, messages that a row has."""
    columns: dict[str, pa.Array] = {"id": pa.array(range(len(rows)))}
    if any(row.text is not None for row in rows):
        columns["content"] = pa.array([row.text for row in rows], pa.string())
    if any(row.image is not None for row in rows):
        cells = [None if row.image is None else {"bytes": row.image, "path": None} for row in rows]
        columns["picture"] = pa.array(cells, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    if any(row.messages is not None for row in rows):
        message = pa.struct({"role": pa.string(), "content": pa.string()})
        columns["messages"] = pa.array([row.messages for row in rows], pa.list_(message))
    return pa.table(columns)


@WRITERS.register("arrow")
class ArrowWriter:
    """A stream with small batches."""

    suffix = ".arrow"
    fields: Mapping[str, str] = {"text": "content", "image": "picture", "messages": "messages"}

    def write(self, path: Path, rows: Sequence[TinyRow]) -> None:
        """Batches of a few rows."""
        table = tiny_table(rows)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=_ROWS_PER_BATCH)
