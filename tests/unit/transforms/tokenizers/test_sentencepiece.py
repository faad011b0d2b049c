"""SentencePiece models. The oracle is the package on the untouched model, one text at a time."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataloader_svc.errors import ConfigError
from dataloader_svc.testing.tokenizer import make_sentencepiece
from dataloader_svc.transforms.tokenizers import HARD_STRINGS, Tokenizer

sentencepiece = pytest.importorskip("sentencepiece")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sentencepiece(tmp_path_factory.mktemp("sp") / "tokenizer.model")


@pytest.fixture(scope="module")
def oracle(model: Path) -> Any:
    return sentencepiece.SentencePieceProcessor(model_file=str(model))


def folder(model: Path, tmp_path: Path, **settings: Any) -> Path:
    (tmp_path / "tokenizer.model").write_bytes(model.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path


def ids(tokenizer: Tokenizer, text: str, *, inner: bool = False) -> list[int]:
    return tokenizer.encode_batch([text], np.array([inner]))[0].tolist()


def test_ids_are_those_of_the_library(model: Path, oracle: Any) -> None:
    tokenizer = Tokenizer.load(model)
    assert tokenizer.backend_used == tokenizer.library == "sentencepiece"
    texts = [text for text in HARD_STRINGS if "<|" not in text]
    found, offsets = tokenizer.encode_batch(texts)
    assert found.dtype == np.int32
    for i, text in enumerate(texts):
        assert found[offsets[i] : offsets[i + 1]].tolist() == oracle.encode(text)
    assert tokenizer.vocab_size == oracle.get_piece_size()


def test_ends_and_starts_are_the_models(model: Path, oracle: Any) -> None:
    tokenizer = Tokenizer.load(model)
    assert (tokenizer.bos_id(True), tokenizer.eos_id()) == (oracle.bos_id(), oracle.eos_id())
    assert tokenizer.eos_id("<s>") == oracle.bos_id()
    with pytest.raises(ConfigError, match="'nothing' is not in the vocabulary"):
        tokenizer.token_id("nothing")


@pytest.mark.parametrize("word", ["<s>", "</s>", "<unk>", "[INST]", "<|bar|>"])
def test_typed_control_words_are_text(model: Path, word: str) -> None:
    tokenizer = Tokenizer.load(model)
    text = f"the {word}fox {word}"
    found = ids(tokenizer, text)
    assert not set(found) & set(tokenizer.control.values())
    assert tokenizer.decode(found) == text
    assert tokenizer.split_control(f"a{word}b") == ["a", tokenizer.control[word], "b"]


def test_a_user_defined_piece_is_ordinary_vocabulary(model: Path, oracle: Any) -> None:
    tokenizer = Tokenizer.load(model)
    assert oracle.piece_to_id("<keep>") in ids(tokenizer, "the <keep> fox")
    assert "<keep>" not in tokenizer.control


def test_decode_spells_control_tokens_out(model: Path) -> None:
    tokenizer = Tokenizer.load(model)
    found = [tokenizer.control["<s>"], *ids(tokenizer, "the fox"), tokenizer.control["[INST]"]]
    assert tokenizer.decode(found) == "<s>the fox[INST]"


class TestFolders:
    def test_special_tokens_of_the_settings_stay_text(self, model: Path, tmp_path: Path, oracle: Any) -> None:
        number = oracle.piece_to_id("<keep>")
        added = {str(number): {"content": "<keep>", "special": True}}
        tokenizer = Tokenizer.load(folder(model, tmp_path, added_tokens_decoder=added, eos_token="<keep>"))
        assert number not in ids(tokenizer, "the <keep> fox")
        assert tokenizer.control["<keep>"] == number == tokenizer.eos_id()

    def test_tokens_behind_the_model(self, model: Path, tmp_path: Path, oracle: Any) -> None:
        size = oracle.get_piece_size()
        added = {
            str(size): {"content": "<pad>", "special": True},
            str(size + 3): {"content": "<think>", "special": False},
        }
        tokenizer = Tokenizer.load(folder(model, tmp_path, added_tokens_decoder=added))
        assert ids(tokenizer, "<pad> fox") == oracle.encode("<pad> fox")
        assert size + 3 in ids(tokenizer, "a<think>b")
        assert tokenizer.control["<pad>"] == size
        assert tokenizer.vocab_size == size + 4
        assert tokenizer.decode(ids(tokenizer, "the <think> fox")) == "the <think> fox"

    def test_a_wrong_id(self, model: Path, tmp_path: Path) -> None:
        added = {"5": {"content": "<pad>", "special": True}}
        with pytest.raises(ConfigError, match="call id 5 '<pad>', the model '.*'"):
            Tokenizer.load(folder(model, tmp_path, added_tokens_decoder=added))


@pytest.mark.parametrize(
    ("settings", "prefix", "start", "inner"),
    [
        ({}, "each", "▁the", "the"),
        ({"legacy": True}, "each", "▁the", "the"),
        ({"legacy": False}, "first", "▁the", "the"),
        ({"add_prefix_space": False}, "never", "the", "the"),
    ],
)
def test_the_space_in_front(
    model: Path, tmp_path: Path, settings: dict[str, Any], prefix: str, start: str, inner: str
) -> None:
    tokenizer = Tokenizer.load(folder(model, tmp_path, **settings))
    assert tokenizer.prefix == prefix

    def spelled(text: str, *, within: bool) -> str:
        return "".join(str(tokenizer.token(i)) for i in ids(tokenizer, text, inner=within))

    assert spelled("the", within=False) == start
    assert spelled("the", within=True) == inner
    assert spelled(" the", within=True) == "▁the"


def test_half_a_surrogate_pair_is_refused(model: Path) -> None:
    with pytest.raises((UnicodeEncodeError, TypeError)):
        Tokenizer.load(model).encode_batch(["a\ud800b"])


def test_no_model(tmp_path: Path) -> None:
    for content in (b"\x00garbage", b""):
        (tmp_path / "x.model").write_bytes(content)
        with pytest.raises(ConfigError, match=r"x.model: not a SentencePiece model"):
            Tokenizer.load(tmp_path / "x.model")


def test_other_libraries_do_not_read_it(model: Path) -> None:
    with pytest.raises(ConfigError, match="is read by sentencepiece, not by tokenizers; set tokenizer_back"):
        Tokenizer.load(model, "tokenizers")
    with pytest.raises(ConfigError, match="fastokens can't be used: it does not read what sentencepiece"):
        Tokenizer.load(model, "fastokens")


def test_the_missing_package_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("sentencepiece"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"pip install 'dataloader-svc\[sentencepiece\]'"):
        Tokenizer.load(model)
