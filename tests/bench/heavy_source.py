"""A source that is dear to begin with: 1,000 shards to open, and a `map` whose module imports torch.

Written by `write`; read by `recovery.py`, which kills its loader.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from dataloader_svc.testing.data import TinyRow, write_source
from dataloader_svc.testing.tokenizer import make_tokenizer

SHARDS, ROWS = 1000, 40_000
MAP = '''"""A function of a user, who needs torch for it."""

import torch


def keep(row: dict) -> dict:
    """As it is; `torch` counts."""
    return row if torch.numel(torch.zeros(1)) else {}
'''


def write(folder: Path) -> Path:
    """The data and the configuration, whose path is returned."""
    rows = [
        TinyRow(text=f"document {number}: " + "some words of it " * (number % 40)) for number in range(ROWS)
    ]
    write_source(folder / "docs", "jsonl", rows, shards=SHARDS)
    make_tokenizer(folder / "tokenizer")
    (folder / "heavy_map.py").write_text(MAP)
    values = {
        "job": "heavy",
        "seed": 17,
        "tokenizer": "tokenizer",
        "sequence_length": 2048,
        "global_batch": {"sequences": 8},
        "sources": {
            "docs": {
                "format": "jsonl",
                "path": "docs/*.jsonl",
                "text": "text",
                "shuffle": {"block": "256KiB"},
                "transforms": [{"map": "heavy_map:keep"}],
            }
        },
        "mixture": {"schedule": [{"step": 0, "docs": 1.0}]},
    }
    path = folder / "heavy.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return path
