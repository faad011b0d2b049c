"""Which files make the tokenizer that `tokenizer:` names: what is loaded, and what a digest must cover.

Knows names and JSON, no vocabulary: `transforms/tokenizers/load.py` looks into the files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dataloader_svc.errors import ConfigError

_MODELS = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
_ADDED = "added_tokens.json"
_SETTINGS = ("special_tokens_map.json", "tokenizer_config.json")  # later ones win
_TEMPLATE, _WRAPPED_TEMPLATE = "chat_template.jinja", "chat_template.json"

IDS_DEPEND_ON = (
    "add_prefix_space",
    "added_tokens",
    "added_tokens_decoder",
    "additional_special_tokens",
    "bos_token",
    "cls_token",
    "eos_token",
    "legacy",
    "mask_token",
    "pad_token",
    "sep_token",
    "tokenizer_class",
    "unk_token",
)
"""Settings that can change the ids of a document, besides its chat template."""


def vocabulary_files(path: Path) -> tuple[Path, ...]:
    """The vocabulary: `path` itself, or in a folder the first of what the formats call it; () for none.

    Two files where the vocabulary is `vocab.json` and `merges.txt`.
    """
    if not path.is_dir():
        return (path,) if path.exists() else ()
    for name in ("tokenizer.json", "tekken.json", *_MODELS):
        if (path / name).is_file():
            return (path / name,)
    ranks = sorted(path.glob("*.tiktoken"))
    if len(ranks) == 1:
        return (ranks[0],)
    pair = (path / "vocab.json", path / "merges.txt")
    return pair if all(file.is_file() for file in pair) else ()


def read_settings(path: Path) -> dict[str, Any]:
    """What lies beside a vocabulary in a Hugging Face folder, as one; {} where nothing does.

    `tokenizer_config.json` wins over `special_tokens_map.json`, a chat template in a file of its own over
    both. `added_tokens` is the content of added_tokens.json. Raises ConfigError for broken files.
    """
    folder = path if path.is_dir() else path.parent
    settings: dict[str, Any] = {}
    for name in _SETTINGS:
        settings.update(_read_json(folder / name))
    if added := _read_json(folder / _ADDED):
        settings["added_tokens"] = added
    jinja = folder / _TEMPLATE
    if jinja.is_file():
        try:
            settings["chat_template"] = jinja.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"tokenizer settings {jinja}: not UTF-8: {error}") from None
    elif "chat_template" not in settings and "chat_template" in (
        found := _read_json(folder / _WRAPPED_TEMPLATE)
    ):
        settings["chat_template"] = found["chat_template"]
    return settings


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_bytes())
    except ValueError as error:
        raise ConfigError(f"tokenizer settings {file}: not JSON: {error}") from None
    return found if isinstance(found, dict) else {}
