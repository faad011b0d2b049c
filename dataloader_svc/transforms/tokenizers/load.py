"""From a path to a `TokenizerFile`: which kind of file it is, told by its content. Never asks the network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dataloader_svc.config.schema import TokenizerOptions
from dataloader_svc.config.tokenizer_files import read_settings, vocabulary_files
from dataloader_svc.errors import ConfigError
from dataloader_svc.transforms.tokenizers import hf_json, ranks
from dataloader_svc.transforms.tokenizers.base import TokenizerFile
from dataloader_svc.transforms.tokenizers.presets import PRESETS, TOKENIZER_CLASSES, preset_named
from dataloader_svc.transforms.tokenizers.sentencepiece_model import from_sentencepiece

_EXPECTED = (
    "a tokenizers JSON file, a SentencePiece .model, a .tiktoken or tekken file, or a folder that holds one "
    "(or vocab.json and merges.txt)"
)


def load_file(path: Path, options: TokenizerOptions) -> TokenizerFile:
    """What `path` holds. Raises ConfigError: nothing there, no tokenizer, or not clear how to use it."""
    files = vocabulary_files(path)
    if not files:
        what = f"a folder without a vocabulary{_listing(path)}" if path.is_dir() else "No such file"
        raise ConfigError(f"tokenizer {path}: {what}; expected {_EXPECTED}")
    file = files[0]
    settings = read_settings(file)
    if len(files) == 2:
        return _byte_pairs(*files, settings, options)
    raw = _read(file)
    if raw.lstrip()[:1] in (b"{", b"[") or file.suffix == ".json":
        return _from_json(raw, file, settings)
    if ranks.is_ranks(raw):
        return ranks.from_tiktoken(raw, file, settings, options)
    if ".model" in file.name:
        return from_sentencepiece(raw, file, settings)
    raise ConfigError(
        f"tokenizer {file}: not JSON, no SentencePiece model by its name, no ranks: {_EXPECTED}"
    )


def _from_json(raw: bytes, file: Path, settings: Mapping[str, Any]) -> TokenizerFile:
    try:
        found = json.loads(raw)
    except ValueError as error:
        raise ConfigError(f"tokenizer {file}: not JSON: {error}") from None
    if isinstance(found, dict) and "model" not in found and "vocab" in found and "config" in found:
        return ranks.from_tekken(found, raw, file)
    return hf_json.from_document(hf_json.checked(found, file), file, settings)


def _byte_pairs(
    vocabulary: Path, merges: Path, settings: Mapping[str, Any], options: TokenizerOptions
) -> TokenizerFile:
    """vocab.json and merges.txt: byte-level pairs, which don't say how text is cut."""
    name = str(settings.get("tokenizer_class", "")).removesuffix("Fast")
    known = options.preset or TOKENIZER_CLASSES.get(name)
    preset = preset_named(known) if known else None
    pattern = options.pattern or (preset.pattern if preset else None)
    if pattern is None:
        found = f"tokenizer_class {name!r} is not known" if name else "no tokenizer_class is named"
        raise ConfigError(
            f"tokenizer {vocabulary.parent}: vocab.json and merges.txt, and nothing says how text is cut for "
            f"them: {found}; set tokenizer_options: {{preset: {' | '.join(PRESETS)}}} or {{pattern: ...}}"
        )
    raw = _read(vocabulary), _read(merges)
    try:
        vocab = json.loads(raw[0])
        lines = raw[1].decode().splitlines()
    except ValueError as error:
        raise ConfigError(f"tokenizer {vocabulary.parent}: vocab.json or merges.txt: {error}") from None
    pairs = [line for line in lines if line and not line.startswith("#version")]
    document = hf_json.byte_level_document(
        vocab,
        pairs,
        None if pattern == PRESETS["gpt2"].pattern else pattern,
        preset.normalizer if preset else None,
        add_prefix_space=bool(settings.get("add_prefix_space")),
    )
    special = options.numbered(1 + max(vocab.values(), default=-1)) or {}
    return hf_json.from_document(document, vocabulary, settings, special)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"tokenizer {file}: {error.strerror}; expected {_EXPECTED}") from None


def _listing(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir())[:12]
    return f" (it holds {', '.join(names)})" if names else " (it is empty)"
