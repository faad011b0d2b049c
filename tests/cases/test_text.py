"""Trouble cases 40, 47, 60, 61: rows and texts that broke other loaders, from the file to the probe columns.
What is right stands beside each in data/."""

from __future__ import annotations

import io
import json
import math
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dataloader_svc.config.schema import Config
from dataloader_svc.errors import Reason, StateError
from dataloader_svc.loader.decode import PieceRange, decode, take
from dataloader_svc.loader.read import HeldBlock, probe_columns, read_block
from dataloader_svc.loader.rules import SampleRule, sample_rule
from dataloader_svc.sample import BlockId
from dataloader_svc.sources.reader import SourceReader
from dataloader_svc.testing import tokenizer as tiny
from dataloader_svc.transforms.tokenizers import Tokenizer

DATA = Path(__file__).parent / "data"


class Loaded:
    """The one block of a file, as a loader holds it: row number is position."""

    def __init__(self, folder: Path, source: dict[str, Any]) -> None:
        tiny.make_tokenizer(folder / "tokenizer")
        config = Config.model_validate(
            {
                "job": "case",
                "tokenizer": "tokenizer",
                "sequence_length": 64,
                "global_batch": {"sequences": 1},
                "sources": {"s": {"shuffle": False, **source}},
                "mixture": {"schedule": [{"step": 0, "s": 1}]},
                "media_tokens": {"image": tiny.IMAGE},
                "images": {"min_pixels": 784},
            }
        )
        self.tokenizer = Tokenizer.load(folder / "tokenizer")
        self.rule: SampleRule = sample_rule(config, "s", folder, self.tokenizer)
        self.reader = SourceReader("s", config.sources["s"], folder, None, 0)
        with ThreadPoolExecutor(1) as pool:
            self.held: HeldBlock = read_block(self.reader, BlockId("s", 0, 0), self.rule, pool)
        self.probe = probe_columns(self.held)

    def ids(self, row: int) -> list[int]:
        return self.held.ids[self.held.id_offsets[row] : self.held.id_offsets[row + 1]].tolist()

    def texts(self) -> dict[int, str]:
        """Row -> text of each delivered document, without its end and pictures."""
        leave_out = {self.tokenizer.control[tiny.EOS], self.tokenizer.control[tiny.IMAGE]}
        return {
            row: self.tokenizer.decode([i for i in self.ids(row) if i not in leave_out])
            for row in np.flatnonzero(self.probe.tokens).tolist()
        }

    def bad(self) -> dict[int, str]:
        return {row.position: row.reason for row in self.probe.bad}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def copied(folder: Path, case: str) -> Path:
    for file in (DATA / case).iterdir():
        shutil.copy(file, folder)
    return folder


class Test40ParquetNullRows:
    CASE = "40-parquet-null-rows"

    def test_text_and_image(self, folder: Path) -> None:
        source = {"format": "parquet", "path": "nulls.parquet", "text": "text", "image": "image"}
        loaded = Loaded(copied(folder, self.CASE), source)
        assert loaded.texts() == {0: "ok", 5: "ok again"}
        assert loaded.bad() == {
            1: Reason.MISSING_FIELD,
            2: Reason.EMPTY_TEXT,
            3: Reason.MISSING_FIELD,
            4: Reason.MISSING_FILE,
        }

    def test_text_only(self, folder: Path) -> None:
        source = {"format": "parquet", "path": "nulls.parquet", "text": "text"}
        loaded = Loaded(copied(folder, self.CASE), source)
        assert loaded.texts() == {0: "ok", 3: "no picture", 4: "path only", 5: "ok again"}
        assert loaded.bad() == {1: Reason.MISSING_FIELD, 2: Reason.EMPTY_TEXT}


class Test47JsonlMixedTypes:
    CASE = "47-jsonl-mixed-types"

    def test_text(self, folder: Path) -> None:
        source = {"format": "jsonl", "path": "mixed.jsonl", "text": "text"}
        loaded = Loaded(copied(folder, self.CASE), source)
        assert loaded.texts() == {0: "a", 1: "b", 4: "e", 6: "f", 10: "g"}
        assert loaded.bad() == {
            2: Reason.MISSING_FIELD,
            3: Reason.WRONG_TYPE,
            5: Reason.WRONG_TYPE,
            7: Reason.WRONG_TYPE,
            8: Reason.WRONG_TYPE,
            9: Reason.WRONG_TYPE,
        }

    def test_a_picture_and_a_list_of_one_are_the_same(self, folder: Path) -> None:
        source = {"format": "jsonl", "path": "mixed.jsonl", "text": "text", "image": "images"}
        loaded = Loaded(copied(folder, self.CASE), source)
        assert loaded.texts() == {0: "a", 1: "b"}
        assert loaded.probe.patches[0] == loaded.probe.patches[1] > 0
        assert loaded.ids(0)[:-2] == loaded.ids(1)[:-2]


class Test60ImageSpanAtCutoff:
    """The loader's part: spans that the planner can trust, and no piece that cuts one."""

    LAYOUT = json.loads((DATA / "60-image-span-at-cutoff" / "layout.json").read_text())

    def load(self, folder: Path, spans: list[tuple[str, int]]) -> Loaded:
        text, pictures = "", []
        for number, (kind, tokens) in enumerate(spans):
            if kind == "text":
                text += "~" * (tokens - (number == len(spans) - 1))  # the last is the document's end
            else:
                text += "<image>"
                pictures.append(self.picture(folder, number, tokens))
        row = {"text": text, "image": pictures}
        (folder / "a.jsonl").write_text(json.dumps(row) + "\n")
        return Loaded(folder, {"format": "jsonl", "path": "a.jsonl", "text": "text", "image": "image"})

    def picture(self, folder: Path, number: int, tokens: int) -> str:
        """A picture of exactly so many tokens: 28 pixels a side each."""
        down = next(n for n in range(math.isqrt(tokens), 0, -1) if tokens % n == 0)
        file = io.BytesIO()
        Image.new("RGB", (tokens // down * 28, down * 28), (number, 99, 99)).save(file, "PNG")
        (folder / f"{number}.png").write_bytes(file.getvalue())
        return f"{number}.png"

    @pytest.mark.parametrize("spans", [LAYOUT["spans"], LAYOUT["also"][2]["spans"] + [["text", 1]]])
    def test_spans(self, folder: Path, spans: list[tuple[str, int]]) -> None:
        loaded = self.load(folder, spans)
        assert not loaded.bad()
        starts = np.cumsum([0, *(tokens for _, tokens in spans)])
        images = [i for i, (kind, _) in enumerate(spans) if kind == "image"]
        assert loaded.probe.tokens.tolist() == [starts[-1]]
        assert loaded.probe.media_start.tolist() == [starts[i] for i in images]
        assert loaded.probe.media_tokens.tolist() == [spans[i][1] for i in images]
        image = loaded.tokenizer.control[tiny.IMAGE]
        assert loaded.ids(0).count(image) == sum(spans[i][1] for i in images)

    def test_features_equal_tokens_in_every_piece(self, folder: Path) -> None:
        loaded = self.load(folder, self.LAYOUT["spans"])
        image = loaded.tokenizer.control[tiny.IMAGE]
        with ThreadPoolExecutor(1) as pool:
            for start, length, pictures in ((0, 36, 1), (36, 22, 1), (0, 58, 2), (0, 10, 0)):
                piece = take(loaded.held, PieceRange(0, start, length), loaded.reader, loaded.rule)
                frame = decode([piece], 14, pool)
                assert len(frame.arrays["media_kind"]) == pictures
                assert (frame.arrays["ids"] == image).sum() * 4 == len(frame.arrays["pixels"])
        with pytest.raises(StateError, match="cuts the image at 36:52"):
            take(loaded.held, PieceRange(0, 0, 40), loaded.reader, loaded.rule)


class Test61EmptyAndSpecialText:
    CASE = "61-empty-and-special-text"

    def rows(self) -> list[str]:
        lines = (DATA / self.CASE / "texts.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line)["text"] for line in lines]

    @pytest.fixture
    def loaded(self, folder: Path) -> Loaded:
        source = {"format": "jsonl", "path": "texts.jsonl", "text": "text"}
        return Loaded(copied(folder, self.CASE), source)

    def test_empty_and_blank_are_skipped(self, loaded: Loaded) -> None:
        assert loaded.bad() == dict.fromkeys((0, 1, 2), Reason.EMPTY_TEXT)

    def test_all_others_decode_to_the_same_string(self, loaded: Loaded) -> None:
        rows = self.rows()
        assert len(rows) == 12
        assert loaded.texts() == {row: rows[row] for row in range(3, 12)}

    def test_typed_control_words_are_text(self, loaded: Loaded) -> None:
        for row in (4, 5):
            *typed, end = loaded.ids(row)
            assert end == loaded.tokenizer.control[tiny.EOS]
            assert not set(typed) & set(loaded.tokenizer.control.values())

    def test_every_position_can_be_learnt(self, loaded: Loaded) -> None:
        """One-token texts too: the document end is a target, so no document is without one."""
        assert loaded.held.targets.all()
        assert loaded.probe.tokens[3] == 2
