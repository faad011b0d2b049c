"""What lies beside a vocabulary in a Hugging Face folder: control tokens, added tokens, chat template.

`tokenizer_config.json` wins over `special_tokens_map.json`; a `chat_template.jinja` of its own wins over
both. A token that these files add is one whether or not the vocabulary's own file has it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dataloader_svc.config.tokenizer_files import CHAT_TEMPLATES, SETTINGS
from dataloader_svc.errors import ConfigError
from dataloader_svc.transforms.tokenizers.base import AddedToken, in_bars

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def read_settings(folder: Path) -> dict[str, Any]:
    """All settings of a folder as one; {} where there are none. Raises ConfigError for broken files."""
    settings: dict[str, Any] = {}
    for name in SETTINGS:
        settings.update(_read_json(folder / name))
    jinja, wrapped = (folder / name for name in CHAT_TEMPLATES)
    if jinja.is_file():
        try:
            settings["chat_template"] = jinja.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"tokenizer settings {jinja}: not UTF-8: {error}") from None
    elif "chat_template" not in settings and "chat_template" in (found := _read_json(wrapped)):
        settings["chat_template"] = found["chat_template"]
    return settings


def setting_word(settings: Mapping[str, Any], name: str) -> str | None:
    """A token that the settings name (`eos_token`, ...), as text."""
    return _word(settings.get(name))


def added_tokens(
    settings: Mapping[str, Any], folder: Path, id_of: Callable[[str], int | None]
) -> list[AddedToken]:
    """Tokens that the settings add, or call special where the vocabulary (`id_of`) has them; by id."""
    found: dict[str, AddedToken] = {}
    for word, number in _read_json(folder / "added_tokens.json").items():
        if isinstance(number, int):
            found[word] = AddedToken(word, number, in_bars(word))
    decoder = settings.get("added_tokens_decoder")
    for number, entry in decoder.items() if isinstance(decoder, Mapping) else ():
        content = _word(entry)
        if content is None or not str(number).isdigit():
            raise ConfigError(
                f"tokenizer settings in {folder}: added_tokens_decoder[{number!r}] must be {{content: text, "
                f"...}} under a token id, found {entry!r:.60}"
            )
        strips = bool(entry.get("lstrip")), bool(entry.get("rstrip"))
        special = bool(entry.get("special")) or in_bars(content)
        found[content] = AddedToken(content, int(number), special, *strips)
    additional = settings.get("additional_special_tokens")
    for value in (*(settings.get(name) for name in _NAMED), *(additional or ())):
        named = _word(value)
        if named is None:
            continue
        known = found[named].id if named in found else id_of(named)
        if known is not None:
            before = found.get(named, AddedToken(named, known, special=True))
            found[named] = before._replace(special=True)
    return sorted(found.values(), key=lambda token: token.id)


def _word(value: object) -> str | None:
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_bytes())
    except ValueError as error:
        raise ConfigError(f"tokenizer settings {file}: not JSON: {error}") from None
    return found if isinstance(found, dict) else {}
