"""One library for a whole job: what decides, that it is remembered, and that nothing else does."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dataloader_svc.config.schema import Config
from dataloader_svc.loader.agreement import decide_backend, first_texts
from dataloader_svc.sources.reader import SourceReader
from dataloader_svc.transforms.tokenizers import Tokenizer
from dataloader_svc.transforms.tokenizers.base import Encoder, Encoders, Flat

from .conftest import TEXTS, configured, write_jsonl


class Counting:
    """An encoder that counts its texts and is wrong about those that contain `word`."""

    def __init__(self, right: Encoder, word: str) -> None:
        self.right, self.word, self.seen = right, word, 0

    def encode(self, texts: Sequence[str]) -> Flat:
        self.seen += len(texts)
        ids, offsets = self.right.encode(texts)
        ids = ids.copy()
        for i, text in enumerate(texts):
            if self.word in text:
                ids[offsets[i]] += 1
        return ids, offsets


def fast(tokenizer: Tokenizer, wrong_about: str = "\n never") -> tuple[Tokenizer, Counting]:
    encoder = Counting(tokenizer.reference.first, wrong_about)
    return replace(tokenizer, _encoders=Encoders(encoder, encoder)), encoder


def readers(config: Config, folder: Path) -> dict[str, SourceReader]:
    return {
        name: SourceReader(name, source, folder, folder / "index", config.seed)
        for name, source in config.sources.items()
    }


def test_they_agree(config: Config, folder: Path, tokenizer: Tokenizer, caplog: Any) -> None:
    told: list[str] = []
    same, encoder = fast(tokenizer)
    library, why = decide_backend(same, readers(config, folder), folder / "index", told.append)
    assert library == "fastokens"
    assert re.fullmatch(
        r"its ids are those of tokenizers on \d+ hard strings and on the first block of every source", why
    )
    assert told == ["web", "captions"]
    assert encoder.seen > 2
    assert not caplog.records


def test_a_source_that_differs_decides_for_all(
    config: Config, folder: Path, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    wrong, _ = fast(tokenizer, "three")  # in captions alone
    with caplog.at_level(logging.WARNING):
        library, why = decide_backend(wrong, readers(config, folder), folder / "index")
    assert library == "tokenizers"
    assert why.startswith("not fastokens: on the first block of captions its ids differ for 'two of three")
    (record,) = caplog.records
    assert "on the first block of captions its ids differ for 'two of three" in record.getMessage()
    # The same from what was kept, by whoever starts the job next.
    again, encoder = fast(tokenizer, "three")
    assert decide_backend(again, readers(config, folder), folder / "index") == (library, why)
    assert encoder.seen == 0


def test_what_was_found_is_kept_by_what_it_depends_on(
    config: Config, folder: Path, tokenizer: Tokenizer
) -> None:
    cache = folder / "index"
    decide_backend(fast(tokenizer)[0], readers(config, folder), cache)
    unchanged, encoder = fast(tokenizer)
    decide_backend(unchanged, readers(config, folder), cache)
    assert encoder.seen == 0
    other_tokenizer, encoder = fast(replace(tokenizer, digest="other"))
    decide_backend(other_tokenizer, readers(config, folder), cache)
    assert encoder.seen > 0
    write_jsonl(folder / "captions.jsonl", [{"text": "new", "image": "pictures/0.png"}])
    other_data, encoder = fast(tokenizer)
    decide_backend(other_data, readers(config, folder), cache)
    assert encoder.seen == 1
    for file in cache.glob("*.agreement"):
        file.write_text("{torn")
    torn, encoder = fast(tokenizer)
    assert decide_backend(torn, readers(config, folder), cache).library == "fastokens"
    assert encoder.seen > 1


def test_the_reference_is_not_compared_with_itself(config: Config, folder: Path) -> None:
    tokenizer = Tokenizer.load(folder / "tokenizer", "tokenizers")
    found = decide_backend(tokenizer, readers(config, folder), folder / "index")
    assert found == ("tokenizers", "as tokenizer_backend says")
    assert not list((folder / "index").glob("*.agreement"))


def test_the_first_texts_are_those_of_the_first_block(config: Config, folder: Path) -> None:
    reader = readers(config, folder)["web"]
    first = {TEXTS[reader.locate_row(0, position).row] for position in range(reader.order(0).block_starts[1])}
    assert set(first_texts(reader, 10**6)) == first
    few = list(first_texts(reader, 30))
    assert sum(map(len, few)) == 30
    assert any(text.startswith(few[0]) for text in first)


def test_strings_of_messages_and_bad_rows(folder: Path) -> None:
    rows = [
        {"chat": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]},
        {"chat": "no chat"},
    ]
    write_jsonl(folder / "chat.jsonl", rows)
    config = configured(
        sources={"chat": {"format": "jsonl", "path": "chat.jsonl", "messages": "chat"}},
        mixture={"schedule": [{"step": 0, "chat": 1}]},
    )
    found = list(first_texts(readers(config, folder)["chat"], 10**6))
    assert found == ["user", "hi", "assistant", "yo"]
