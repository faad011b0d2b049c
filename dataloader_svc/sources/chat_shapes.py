r"""Chats as people have them -> messages with `role` and `content`. The shape is seen, never asked for.

    {"role": "user", "content": "..."}                      plain; content may be typed parts (`parts.py`)
    {"from": "human", "value": "<image>\nWhat is it?"}      ShareGPT and LLaVA; speakers become roles

Each message is looked at by itself. A speaker of ShareGPT that nobody knows is an error with those that are
known; what roles a plain chat may have is its template's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.registry import nearest
from dataloader_svc.sources.parts import parts_value
from dataloader_svc.sources.values import kind_of, wrong_type

SPEAKERS: Mapping[str, str] = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
}
"""ShareGPT's `from` -> role, as its many users write it."""


def messages_value(value: object, name: str) -> list[dict[str, Any]]:
    """Messages with string `role`, and `content` a string or parts; other keys are kept unless null."""
    if value is None:
        raise BadSample(Reason.MISSING_FIELD, f"field {name!r} is null")
    if not isinstance(value, list):
        raise wrong_type(name, value, "a list of {role, content} or {from, value}")
    if not value:
        raise BadSample(Reason.BAD_MESSAGES, f"field {name!r} has no messages")
    return [_message(item, f"{name}[{number}]") for number, item in enumerate(value)]


def _message(item: object, name: str) -> dict[str, Any]:
    if not isinstance(item, Mapping):
        raise wrong_type(name, item, "an object with role and content")
    message = {key: part for key, part in item.items() if part is not None}
    if "role" not in message and "from" in message:
        return _of_speaker(message, name)
    if not isinstance(message.get("role"), str):
        raise _not_a_string("role", item, name)
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = parts_value(content, f"{name}.content")
    elif not isinstance(content, str):
        raise _not_a_string("content", item, name, " or a list of parts")
    return message


def _of_speaker(message: dict[Any, Any], name: str) -> dict[str, Any]:
    speaker, value = message.pop("from"), message.pop("value", None)
    role = SPEAKERS.get(speaker.lower()) if isinstance(speaker, str) else None
    if role is None:
        known = sorted(SPEAKERS)
        hint = nearest(speaker, known) if isinstance(speaker, str) else ""
        raise BadSample(
            Reason.BAD_MESSAGES,
            f"{name}.from is {repr(speaker)[:60]}; speakers: {', '.join(known)}{hint}",
        )
    if not isinstance(value, str):
        raise BadSample(Reason.BAD_MESSAGES, f"{name}.value must be a string, is {kind_of(value)}")
    return {"role": role, "content": value, **message}


def _not_a_string(key: str, item: Mapping[Any, Any], name: str, other: str = "") -> BadSample:
    found = kind_of(item[key]) if key in item else f"absent{nearest(key, [str(k) for k in item])}"
    return BadSample(Reason.BAD_MESSAGES, f"{name}.{key} must be a string{other}, is {found}")
