"""Tiny CSV manifests with their pictures beside them."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from dataloader_svc.testing.data import WRITERS, TinyRow


@WRITERS.register("manifest")
class ManifestWriter:
    """Every cell in quotes, and a byte order mark. CSV has no null: a field that is None ends its row."""

    suffix = ".csv"
    fields: Mapping[str, str] = {"text": "caption", "image": "file", "messages": "chat"}

    def write(self, path: Path, rows: Sequence[TinyRow]) -> None:
        """Columns id (that nobody maps), and those of file, chat, caption that any row has."""
        names = [
            name
            for name, role in (("file", "image"), ("chat", "messages"), ("caption", "text"))
            if any(getattr(row, role) is not None for row in rows)
        ]
        with path.open("w", encoding="utf-8-sig", newline="") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL)
            writer.writerow(["id", *names])
            for number, row in enumerate(rows):
                cells: dict[str, str] = {}
                if row.image is not None:
                    cells["file"] = f"{path.stem}-{number}.png"
                    (path.parent / cells["file"]).write_bytes(row.image)
                if row.messages is not None:
                    cells["chat"] = json.dumps(list(row.messages))
                if row.text is not None:
                    cells["caption"] = row.text
                writer.writerow([str(number), *(cells[name] for name in names if name in cells)])
