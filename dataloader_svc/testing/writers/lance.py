"""Tiny Lance data sets of one version and one fragment. Registered where the package pylance is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from dataloader_svc.testing.data import WRITERS, TinyRow
from dataloader_svc.testing.writers.arrow import tiny_table


class LanceWriter:
    """A data set a shard: what is read is the data file in it."""

    suffix = ".lance"
    shards = "part-*.lance/data/*.lance"
    options: ClassVar[Mapping[str, object]] = {"version": 1}
    fields: Mapping[str, str] = {"text": "content", "image": "picture", "messages": "messages"}

    def write(self, path: Path, rows: Sequence[TinyRow]) -> None:
        """Version 1."""
        import lance

        lance.write_dataset(tiny_table(rows), str(path))


if importlib.util.find_spec("lance") is not None:
    WRITERS.register("lance")(LanceWriter)
