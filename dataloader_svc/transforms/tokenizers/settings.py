"""Tokens that lie beside a vocabulary: what a Hugging Face folder's settings name and add.

A token that the settings add is one whether or not the vocabulary's own file has it. What the settings are
read from: `config/tokenizer_files.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dataloader_svc.errors import ConfigError
from dataloader_svc.transforms.tokenizers.base import AddedToken, in_bars

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def setting_word(settings: Mapping[str, Any], name: str) -> str | None:
    """A token that the settings name (`eos_token`, ...), as text."""
    return _word(settings.get(name))


def added_tokens(
    settings: Mapping[str, Any], where: object, id_of: Callable[[str], int | None]
) -> list[AddedToken]:
    """Tokens that the settings add, or call special where the vocabulary (`id_of`) has them; by id.

    `where` words the errors.
    """
    found: dict[str, AddedToken] = {}
    for word, number in (settings.get("added_tokens") or {}).items():
        if isinstance(number, int):
            found[word] = AddedToken(word, number, in_bars(word))
    decoder = settings.get("added_tokens_decoder")
    for number, entry in decoder.items() if isinstance(decoder, Mapping) else ():
        content = _word(entry)
        if content is None or not str(number).isdigit():
            raise ConfigError(
                f"tokenizer settings in {where}: added_tokens_decoder[{number!r}] must be {{content: text, "
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
