"""Tiny WebDataset folders as `energon prepare` leaves them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from dataloader_svc.testing.data import WRITERS, TinyRow, WebDatasetWriter

DATASET = {
    "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
    "field_map": {"image": "png", "caption": "txt"},
}


@WRITERS.register("energon")
class EnergonWriter(WebDatasetWriter):
    """All shards are `train`. The picture is called as in Energon's sample, text and chat as in the tar."""

    pattern = ""
    fields: Mapping[str, str] = {"text": "txt", "image": "image", "messages": "json"}

    def write(self, path: Path, rows: Sequence[TinyRow]) -> None:
        """A shard, and its entry in split.yaml and .info.json."""
        super().write(path, rows)
        meta = path.parent / ".nv-meta"
        meta.mkdir(exist_ok=True)
        info = meta / ".info.json"
        counts = json.loads(info.read_text())["shard_counts"] if info.exists() else {}
        counts[path.name] = len(rows)
        info.write_text(json.dumps({"energon_version": "7.0.0", "shard_counts": counts}))
        splits = {"exclude": [], "split_parts": {"train": sorted(counts), "val": []}}
        (meta / "split.yaml").write_text(yaml.safe_dump(splits))
        (meta / "dataset.yaml").write_text(yaml.safe_dump(DATASET))
