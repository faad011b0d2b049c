"""What a Hugging Face folder says besides its vocabulary, and vocabularies of two files. The oracle is the
`tokenizers` library on the whole text, control words allowed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from dataloader_svc.config.schema import TokenizerOptions
from dataloader_svc.errors import ConfigError
from dataloader_svc.testing import tokenizer as tiny
from dataloader_svc.transforms.tokenizers import HARD_STRINGS, Tokenizer


def copied(folder: Path, tmp_path: Path, files: dict[str, Any], **changes: Any) -> Path:
    document = json.loads((folder / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**document, **changes}))
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / name).write_text(text)
    return tmp_path


class TestSettings:
    def test_ends_named_by_the_map(self, folder: Path, tmp_path: Path) -> None:
        files = {"special_tokens_map.json": {"eos_token": tiny.STOP, "bos_token": {"content": tiny.BOS}}}
        tokenizer = Tokenizer.load(copied(folder, tmp_path, files))
        assert tokenizer.eos_id() == tokenizer.control[tiny.STOP]
        assert tokenizer.bos_id(True) == tokenizer.control[tiny.BOS]

    def test_the_configuration_wins_over_the_map(self, folder: Path, tmp_path: Path) -> None:
        files = {
            "special_tokens_map.json": {"eos_token": tiny.STOP},
            "tokenizer_config.json": {"eos_token": tiny.EOS},
        }
        tokenizer = Tokenizer.load(copied(folder, tmp_path, files))
        assert tokenizer.eos_id() == tokenizer.control[tiny.EOS]

    @pytest.mark.parametrize(
        ("files", "expected"),
        [
            ({"chat_template.jinja": "J", "tokenizer_config.json": {"chat_template": "C"}}, "J"),
            ({"chat_template.json": {"chat_template": "W"}}, "W"),
            ({"tokenizer_config.json": {"chat_template": "C"}}, "C"),
            ({}, None),
        ],
    )
    def test_the_chat_template(
        self, folder: Path, tmp_path: Path, files: dict[str, Any], expected: str | None
    ) -> None:
        assert Tokenizer.load(copied(folder, tmp_path, files)).settings.get("chat_template") == expected

    @pytest.mark.parametrize("backend", ["fastokens", "tokenizers"])
    def test_added_tokens(self, folder: Path, tmp_path: Path, backend: Any) -> None:
        size = Tokenizer.load(folder).vocab_size
        decoder = {
            str(size): {"content": "<turn>", "special": True},
            str(size + 1): {"content": "<code>", "special": False},
        }
        files = {"tokenizer_config.json": {"added_tokens_decoder": decoder}}
        tokenizer = Tokenizer.load(copied(folder, tmp_path, files), backend)
        ids = tokenizer.encode_batch(["a<turn>b<code>c"])[0].tolist()
        assert size not in ids, "typed"
        assert size + 1 in ids, "ordinary vocabulary"
        assert tokenizer.decode([*ids, size]) == "a<turn>b<code>c<turn>"
        assert tokenizer.split_control("x<turn>") == ["x", size]

    def test_an_ordinary_word_that_is_named_is_control(self, folder: Path, tmp_path: Path) -> None:
        files = {"tokenizer_config.json": {"additional_special_tokens": [tiny.THINK]}}
        tokenizer = Tokenizer.load(copied(folder, tmp_path, files))
        assert tiny.THINK in tokenizer.control
        assert len(tokenizer.encode_batch([tiny.THINK])[0]) > 1

    def test_ids_that_do_not_fit(self, folder: Path, tmp_path: Path) -> None:
        decoder = {"9999": {"content": "<turn>", "special": True}}
        files = {"tokenizer_config.json": {"added_tokens_decoder": decoder}}
        with pytest.raises(ConfigError, match="'<turn>' should have id 9999, but the vocabulary puts it at"):
            Tokenizer.load(copied(folder, tmp_path, files))
        files = {"tokenizer_config.json": {"added_tokens_decoder": {"x": 3}}}
        with pytest.raises(ConfigError, match=r"added_tokens_decoder\['x'\] must be"):
            Tokenizer.load(copied(folder, tmp_path, files))


class TestTwoFiles:
    """vocab.json and merges.txt."""

    @staticmethod
    def folder(source: Path, target: Path, **settings: Any) -> Path:
        model = json.loads((source / "tokenizer.json").read_text())["model"]
        vocab = {**model["vocab"], tiny.EOS: len(model["vocab"])}
        merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
        (target / "vocab.json").write_text(json.dumps(vocab))
        (target / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
        (target / "tokenizer_config.json").write_text(json.dumps({"eos_token": tiny.EOS, **settings}))
        return target

    @pytest.mark.parametrize("backend", ["fastokens", "tokenizers"])
    @pytest.mark.parametrize("prefix", [False, True])
    def test_gpt2(self, folder: Path, tmp_path: Path, backend: Any, prefix: bool) -> None:
        made = self.folder(folder, tmp_path, tokenizer_class="GPT2TokenizerFast", add_prefix_space=prefix)
        tokenizer = Tokenizer.load(made, backend)
        library = tokenizers.Tokenizer(
            tokenizers.models.BPE.from_file(str(made / "vocab.json"), str(made / "merges.txt"))
        )
        library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=prefix)
        ids, offsets = tokenizer.encode_batch(HARD_STRINGS)
        library.add_special_tokens([tiny.EOS])
        library.encode_special_tokens = True
        for i, text in enumerate(HARD_STRINGS):
            expected = library.encode(text).ids
            assert ids[offsets[i] : offsets[i + 1]].tolist() == expected
        assert tokenizer.eos_id() == tokenizer.control[tiny.EOS]
        assert tokenizer.prefix == ("each" if prefix else "never")

    def test_qwen2_normalizes(self, folder: Path, tmp_path: Path) -> None:
        tokenizer = Tokenizer.load(self.folder(folder, tmp_path, tokenizer_class="Qwen2Tokenizer"))
        composed, decomposed = (tokenizer.encode_batch([text])[0] for text in ("caf\u00e9", "cafe\u0301"))
        np.testing.assert_array_equal(composed, decomposed)

    def test_nothing_says_how_text_is_cut(self, folder: Path, tmp_path: Path) -> None:
        made = self.folder(folder, tmp_path)
        with pytest.raises(ConfigError, match="no tokenizer_class is named; set tokenizer_options"):
            Tokenizer.load(made)
        self.folder(folder, tmp_path, tokenizer_class="MyTokenizer")
        with pytest.raises(ConfigError, match="tokenizer_class 'MyTokenizer' is not known"):
            Tokenizer.load(made)
        assert Tokenizer.load(made, "auto", TokenizerOptions(preset="gpt2")).vocab_size > 256


PRE_TOKENIZERS = {
    "first": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False},
    "always": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": False},
    "never": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": False},
    "old": {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True},
}
PREPEND = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ],
}


def metaspace(tmp_path: Path, pre_tokenizer: Any, normalizer: Any = None) -> Path:
    """A vocabulary of letters and ▁-words with one control token: every character is a token, but `▁the`."""
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyz:", "th", "the", "▁the"]
    document = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": len(letters),
                "content": "<|c|>",
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
        ],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "decoder": None,
        "post_processor": None,
        "model": {
            "type": "BPE",
            "vocab": {word: i for i, word in enumerate(letters)},
            "merges": ["t h", "th e", "▁ the"],
        },
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    return tmp_path / "tokenizer.json"


@pytest.mark.parametrize(
    ("pre_tokenizer", "normalizer", "prefix"),
    [
        (PRE_TOKENIZERS["first"], None, "first"),
        (PRE_TOKENIZERS["always"], None, "each"),
        (PRE_TOKENIZERS["never"], None, "never"),
        (PRE_TOKENIZERS["old"], None, "each"),
        ({"type": "Sequence", "pretokenizers": [PRE_TOKENIZERS["first"]]}, None, "first"),
        (None, PREPEND, "each"),
    ],
)
def test_the_space_in_front_is_where_the_library_puts_it(
    tmp_path: Path, pre_tokenizer: Any, normalizer: Any, prefix: str
) -> None:
    """A text behind a control token is encoded as the library encodes it inside the whole."""
    file = metaspace(tmp_path, pre_tokenizer, normalizer)
    tokenizer = Tokenizer.load(file)
    assert tokenizer.prefix == prefix
    library = tokenizers.Tokenizer.from_file(str(file))
    control = tokenizer.control["<|c|>"]
    whole = library.encode("the<|c|>the", add_special_tokens=False).ids
    at = whole.index(control)
    first, inner = (tokenizer.encode_batch(["the"], np.array([side]))[0].tolist() for side in (False, True))
    assert whole[:at] == first
    assert whole[at + 1 :] == (first if prefix == "each" else inner)
    assert inner == [tokenizer.token_id("the")]


def test_both_kinds_in_one_call(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(metaspace(tmp_path, PRE_TOKENIZERS["first"]))
    texts = ["the", "the cat", "", "a"]
    inner = np.array([True, False, True, False])
    ids, offsets = tokenizer.encode_batch(texts, inner)
    for i, text in enumerate(texts):
        alone, _ = tokenizer.encode_batch([text], inner[i : i + 1])
        assert ids[offsets[i] : offsets[i + 1]].tolist() == alone.tolist()
