"""The sides of a preference pair as people have them -> a string, or messages. Each field by itself.

    "..."                                    text; in style messages the user's turn or the assistant's
    [{"role": ..., "content": ...}, ...]     messages in every shape of `chat_shapes.py` (UltraFeedback)
    {"from": "gpt", "value": "..."}          one message (ShareGPT pairs)
    {"messages": [...]}                      messages one level down (`input` of OpenAI's preference files)

What of a side is the prompt, and what both have in common, is for `transforms/pairs.py` to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dataloader_svc.sources.chat_shapes import messages_value
from dataloader_svc.sources.values import text_value

PAIR_ROLES = ("prompt", "chosen", "rejected")

_SPEAKER = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}
"""Whose turn a string is."""


def pair_value(value: object, name: str) -> str | list[dict[str, Any]]:
    """A value of one of PAIR_ROLES in its normal form, after somebody changed it. Raises BadSample."""
    return messages_value(value, name) if isinstance(value, list) else text_value(value, name)


def turns_value(value: object, name: str, role: str) -> list[dict[str, Any]]:
    """The messages of one of PAIR_ROLES, at least one. Raises BadSample."""
    if isinstance(value, str):
        return [{"role": _SPEAKER[role], "content": value}]
    if isinstance(value, Mapping):
        if "messages" in value:
            return messages_value(value["messages"], f"{name}.messages")
        return messages_value([value], name)
    return messages_value(value, name)
