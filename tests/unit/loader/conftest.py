"""A folder with a tokenizer, pictures and two small sources, and the configuration of a job over them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dataloader_svc.config.schema import Config
from dataloader_svc.loader.rules import SampleRule, sample_rule
from dataloader_svc.testing import tokenizer as tiny
from dataloader_svc.transforms.tokenizers import Tokenizer

TEXTS = [f"document {i} " + "the quick brown fox " * (i % 7 + 1) for i in range(40)]


def picture(width: int, height: int, seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.make_tokenizer(tmp_path / "tokenizer")
    write_jsonl(tmp_path / "web.jsonl", [{"text": text} for text in TEXTS])
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for i in range(4):
        (pictures / f"{i}.png").write_bytes(picture(60 + 40 * i, 90, i))
    (pictures / "cut.png").write_bytes(picture(50, 50, 9)[:200])
    rows = [
        {"text": "one <image> here", "image": "pictures/0.png"},
        {"text": "two <image> and <image>", "image": ["pictures/1.png", "pictures/2.png"]},
        {"text": "cut <image>", "image": "pictures/cut.png"},
        {"text": "in front", "image": "pictures/3.png"},
        {"text": "gone <image>", "image": "pictures/none.png"},
        {"text": "two of three <image>", "image": ["pictures/0.png", "pictures/1.png"]},
        {"text": "", "image": "pictures/0.png"},
    ]
    write_jsonl(tmp_path / "captions.jsonl", rows)
    return tmp_path


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def config() -> Config:
    return configured()


def configured(**changes: Any) -> Config:
    base: dict[str, Any] = {
        "job": "j",
        "seed": 5,
        "tokenizer": "tokenizer",
        "sequence_length": 512,
        "global_batch": {"sequences": 1},
        "sources": {
            "web": {
                "format": "jsonl",
                "path": "web.jsonl",
                "text": "text",
                "extent": 300,
                "shuffle": {"block": 1000},
            },
            "captions": {
                "format": "jsonl",
                "path": "captions.jsonl",
                "text": "text",
                "image": "image",
                "shuffle": False,
            },
        },
        "mixture": {"schedule": [{"step": 0, "web": 1, "captions": 1}]},
        "media_tokens": {"image": tiny.IMAGE},
        "images": {"patch": 14, "merge": 2, "min_pixels": 784, "max_pixels": 7840},
    }
    return Config.model_validate({**base, **changes})


@pytest.fixture
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder / "tokenizer")


@pytest.fixture
def rules(config: Config, folder: Path, tokenizer: Tokenizer) -> dict[str, SampleRule]:
    return {name: sample_rule(config, name, folder, tokenizer) for name in config.sources}


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool
