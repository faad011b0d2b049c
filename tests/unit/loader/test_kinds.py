"""Kinds of documents in the loader: what a mapped function made of them, and pictures that are none."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dataloader_svc.errors import Reason
from dataloader_svc.loader.decode import PieceRange, decode, take
from dataloader_svc.loader.read import HeldBlock, read_block
from dataloader_svc.loader.rules import sample_rule
from dataloader_svc.sample import BlockId
from dataloader_svc.sources.reader import SourceReader
from dataloader_svc.testing import tokenizer as tiny
from dataloader_svc.transforms.tokenizers import Tokenizer

from .conftest import configured, picture, write_jsonl

MAPPED = """
def change(row):
    if "messages" in row:
        row["messages"] = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "so"}]
        if row["n"]:
            row["messages"] = [{"from": "nobody"}]
    else:
        row["input_ids"] = row["input_ids"][:1] if not row["n"] else row["input_ids"] / 2
    return row
"""


class Read:
    """The first block of a JSONL source over `rows`."""

    def __init__(self, folder: Path, rows: list[Any], pool: ThreadPoolExecutor, **source: Any) -> None:
        write_jsonl(folder / "rows.jsonl", rows)
        values = {"format": "jsonl", "path": "rows.jsonl", "shuffle": False, **source}
        config = configured(sources={"s": values}, mixture={"schedule": [{"step": 0, "s": 1}]})
        self.tokenizer = Tokenizer.load(folder / "tokenizer")
        self.reader = SourceReader("s", config.sources["s"], folder, None, 0)
        self.rule = sample_rule(config, "s", folder, self.tokenizer)
        self.held: HeldBlock = read_block(self.reader, BlockId("s", 0, 0), self.rule, pool)

    def text(self, row: int) -> str:
        first, last = self.held.id_offsets[row : row + 2]
        return self.tokenizer.decode(self.held.ids[first:last].tolist())

    def reasons(self) -> dict[int, str]:
        return {row.position: row.reason for row in self.held.bad}


@pytest.fixture
def mapped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    (folder / "kinds_of_test.py").write_text(MAPPED)
    monkeypatch.syspath_prepend(str(folder))
    return [{"map": {"function": "kinds_of_test:change", "columns": ["n"]}}]


def test_what_a_function_made_is_looked_at_as_a_row_is(
    folder: Path, pool: ThreadPoolExecutor, mapped: list[dict[str, Any]]
) -> None:
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    rows = [{"messages": chat, "n": n} for n in (0, 1)]
    read = Read(folder, rows, pool, messages="messages", transforms=mapped)
    assert "user\nhi" in read.text(0)
    assert read.reasons() == {1: Reason.BAD_MESSAGES}
    rows = [{"x": [5, 6, 7], "n": n} for n in (0, 1)]
    ids = Read(folder, rows, pool, input_ids="x", transforms=mapped)
    assert ids.held.ids.tolist() == [5, ids.tokenizer.control[tiny.EOS]]
    assert ids.reasons() == {1: Reason.WRONG_TYPE}


@pytest.mark.parametrize("rule", ["skip_document", "drop"])
def test_pictures_that_can_not_be_read(folder: Path, pool: ThreadPoolExecutor, rule: str) -> None:
    gone = ["no://where/a.png", "pictures/none.png", "pictures/cut.png", "web.jsonl", None]
    rows = [{"texts": ["a", None, "b"], "images": [None, image, None]} for image in gone]
    read = Read(folder, rows, pool, interleaved={"style": "obelics", "on_bad_image": rule, "separator": "|"})
    if rule == "drop":
        assert not read.held.bad
        assert [read.text(row) for row in range(5)] == [f"a|b{tiny.EOS}"] * 5
        assert not len(read.held.media.kind)
    else:
        assert read.reasons() == {
            0: Reason.MISSING_FILE,
            1: Reason.MISSING_FILE,
            2: Reason.TRUNCATED,
            3: Reason.NOT_MEDIA,
            4: Reason.MISSING_FIELD,
        }


def test_a_dropped_picture_leaves_the_others_in_their_places(folder: Path, pool: ThreadPoolExecutor) -> None:
    parts = [{"type": "image", "image": f"pictures/{name}.png"} for name in ("0", "none", "1", "cut", "2")]
    words = [{"type": "text", "text": word} for word in "abcde"]
    row = {"parts": [part for pair in zip(words, parts, strict=True) for part in pair]}
    read = Read(folder, [row], pool, interleaved={"style": "parts", "on_bad_image": "drop"})
    assert read.text(0).replace(tiny.IMAGE, "") == f"abcde{tiny.EOS}"
    assert read.held.media.data == ("pictures/0.png", "pictures/1.png", "pictures/2.png")
    before = [read.tokenizer.decode([token]) for token in read.held.ids[read.held.media.start - 1].tolist()]
    assert before == ["a", "c", "de"], "texts that no picture parts are encoded as one"


def test_damage_seen_when_decoded_takes_the_document(folder: Path, pool: ThreadPoolExecutor) -> None:
    whole = picture(56, 56, 1)
    middle = len(whole) // 2
    (folder / "pictures" / "spoilt.png").write_bytes(whole[:middle] + bytes(100) + whole[middle + 100 :])
    rows = [{"parts": [{"type": "text", "text": "a"}, {"type": "image", "image": "pictures/spoilt.png"}]}]
    read = Read(folder, rows, pool, interleaved={"style": "parts", "on_bad_image": "drop"})
    assert len(read.held.media.kind) == 1, "the header is sound"
    length = int(read.held.id_offsets[1])
    frame = decode([take(read.held, PieceRange(0, 0, length), read.reader, read.rule)], 14, pool)
    assert frame.arrays["ok"].tolist() == [0]
