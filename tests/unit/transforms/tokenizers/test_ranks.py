"""tiktoken and tekken files. The oracle is a byte-pair merge of ten lines after the package's description."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataloader_svc.config.schema import TokenizerOptions
from dataloader_svc.errors import ConfigError
from dataloader_svc.testing.tokenizer import byte_pair_ranks, write_ranks
from dataloader_svc.transforms.tokenizers import HARD_STRINGS, Tokenizer

pytest.importorskip("tiktoken")

PATTERN = r" ?\w+| ?[^\s\w]+|\s+"
EOS, STOP = "<|endoftext|>", "[STOP]"


def merged(ranks: dict[bytes, int], text: str) -> list[int]:
    ids: list[int] = []
    for piece in re.findall(PATTERN, text):
        parts = [bytes([byte]) for byte in piece.encode()]
        while len(parts) > 1:
            pairs = [
                (ranks.get(a + b, 10**9), i) for i, (a, b) in enumerate(zip(parts, parts[1:], strict=False))
            ]
            rank, i = min(pairs)
            if rank == 10**9:
                break
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        ids += [ranks[part] for part in parts]
    return ids


@pytest.fixture(scope="session")
def ranks(folder: Path) -> dict[bytes, int]:
    return byte_pair_ranks(folder)


@pytest.fixture
def file(ranks: dict[bytes, int], tmp_path: Path) -> Path:
    return write_ranks(tmp_path / "mine.tiktoken", ranks)


OPTIONS = TokenizerOptions(pattern=PATTERN, special_tokens=[EOS, STOP])


@pytest.mark.parametrize("backend", ["fastokens", "tiktoken"])
def test_ids(file: Path, ranks: dict[bytes, int], backend: Any) -> None:
    tokenizer = Tokenizer.load(file, backend, OPTIONS)
    assert (tokenizer.backend_used, tokenizer.library) == (backend, "tiktoken")
    texts = ["the quick brown fox", "", " hello\n\nworld! ", "déjà vu", f"a{EOS}b", "\x00\x01", "x" * 300]
    ids, offsets = tokenizer.encode_batch(texts)
    for i, text in enumerate(texts):
        assert ids[offsets[i] : offsets[i + 1]].tolist() == merged(ranks, text)
        assert tokenizer.decode(ids[offsets[i] : offsets[i + 1]]) == text
    assert ids.dtype == np.int32


def test_control_tokens(file: Path, ranks: dict[bytes, int]) -> None:
    tokenizer = Tokenizer.load(file, "auto", OPTIONS)
    assert tokenizer.control == {EOS: len(ranks), STOP: len(ranks) + 1}
    assert tokenizer.vocab_size == len(ranks) + 2
    assert tokenizer.eos_id() == len(ranks)
    assert tokenizer.token(len(ranks) + 1) == STOP
    assert tokenizer.token(10**6) is None
    assert tokenizer.token_id("the") == ranks[b"the"]
    assert tokenizer.split_control(f"a{STOP}b") == ["a", len(ranks) + 1, "b"]
    assert tokenizer.decode([len(ranks), ranks[b"the"]]) == f"{EOS}the"
    numbered = TokenizerOptions(pattern=PATTERN, special_tokens={EOS: 1000})
    assert Tokenizer.load(file, "auto", numbered).vocab_size == 1001


@pytest.mark.parametrize("backend", ["fastokens", "tiktoken"])
def test_half_a_surrogate_pair_is_refused(file: Path, backend: Any) -> None:
    with pytest.raises((UnicodeEncodeError, TypeError)):
        Tokenizer.load(file, backend, OPTIONS).encode_batch(["a\ud800b"])


class TestUnclear:
    def test_nothing_says_how_text_is_cut(self, file: Path) -> None:
        with pytest.raises(ConfigError, match=r"nothing says how text is cut .* \{preset: gpt2 \| cl100k"):
            Tokenizer.load(file)

    def test_a_name_alone_does_not_decide(self, ranks: dict[bytes, int], tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="nothing says how text is cut"):
            Tokenizer.load(write_ranks(tmp_path / "gpt2.tiktoken", ranks))

    def test_a_preset_of_another_size(self, file: Path, ranks: dict[bytes, int]) -> None:
        with pytest.raises(ConfigError, match=f"has {len(ranks)} ranks, preset qwen has 151643"):
            Tokenizer.load(file, "auto", TokenizerOptions(preset="qwen"))
        with pytest.raises(ConfigError, match="unknown 'gtp2'; known: .*did you mean 'gpt2'"):
            Tokenizer.load(file, "auto", TokenizerOptions(preset="gtp2"))

    def test_a_preset_with_tokens_of_ones_own(self, file: Path, ranks: dict[bytes, int]) -> None:
        options = TokenizerOptions(preset="gpt2", special_tokens=[EOS])
        tokenizer = Tokenizer.load(file, "auto", options)
        assert tokenizer.control == {EOS: len(ranks)}
        assert tokenizer.decode(tokenizer.encode_batch(["it's 12 o'clock"])[0]) == "it's 12 o'clock"

    def test_a_broken_line(self, tmp_path: Path) -> None:
        (tmp_path / "x.tiktoken").write_bytes(b"IQ== 0\nnonsense\n")
        with pytest.raises(ConfigError, match="line 2: expected `base64 rank`"):
            Tokenizer.load(tmp_path / "x.tiktoken", "auto", OPTIONS)

    def test_a_pattern_that_is_none(self, file: Path) -> None:
        with pytest.raises(ConfigError, match="tiktoken can't use it"):
            Tokenizer.load(file, "auto", TokenizerOptions(pattern="(", special_tokens=[]))


def tekken(ranks: dict[bytes, int], **changes: Any) -> dict[str, Any]:
    vocab = [
        {"rank": r, "token_bytes": base64.b64encode(t).decode(), "token_str": None} for t, r in ranks.items()
    ]
    config = {"pattern": PATTERN, "default_vocab_size": len(ranks) + 20, "default_num_special_tokens": 30}
    return {"config": config, "vocab": vocab, **changes}


class TestTekken:
    def test_ids_stand_behind_the_special_ones(self, ranks: dict[bytes, int], tmp_path: Path) -> None:
        (tmp_path / "tekken.json").write_text(json.dumps(tekken(ranks)))
        kept = {token: rank for token, rank in ranks.items() if rank < len(ranks) - 10}
        for backend in ("auto", "tiktoken"):
            tokenizer = Tokenizer.load(tmp_path, backend)  # type: ignore[arg-type]
            ids, _ = tokenizer.encode_batch(["the quick [INST] fox", "</s>"])
            assert ids.tolist() == [
                30 + i for i in merged(kept, "the quick [INST] fox") + merged(kept, "</s>")
            ]
            assert tokenizer.decode([3, *ids]) == "[INST]the quick [INST] fox</s>"
        assert (tokenizer.bos_id(True), tokenizer.eos_id()) == (1, 2)
        assert (tokenizer.token(29), tokenizer.vocab_size) == ("<SPECIAL_29>", len(ranks) + 20)

    def test_named_special_tokens(self, ranks: dict[bytes, int], tmp_path: Path) -> None:
        words = ["<unk>", "<s>", "</s>", "[THINK]"]
        named = [{"rank": i, "token_str": word, "is_control": True} for i, word in enumerate(words)]
        (tmp_path / "t.json").write_text(json.dumps(tekken(ranks, special_tokens=named)))
        assert Tokenizer.load(tmp_path / "t.json").control["[THINK]"] == 3

    def test_broken(self, tmp_path: Path) -> None:
        (tmp_path / "t.json").write_text('{"config": {}, "vocab": []}')
        with pytest.raises(ConfigError, match="not a tekken file: KeyError"):
            Tokenizer.load(tmp_path / "t.json")


def test_hard_strings_agree_with_the_reference(file: Path) -> None:
    tokenizer = Tokenizer.load(file, "fastokens", OPTIONS)
    for flat in zip(
        tokenizer.encode_batch(HARD_STRINGS), tokenizer.encode_reference(HARD_STRINGS), strict=True
    ):
        np.testing.assert_array_equal(*flat)
