"""Typed parts, of which a chat message's content or an interleaved document may be made.

As OpenAI's messages and Hugging Face's processors have them:

    {"type": "text", "text": "..."}
    {"type": "image", "image": MEDIUM}    also "path", "url", "bytes"; a medium as in `values.medium_value`
    {"type": "image_url", "image_url": {"url": MEDIUM}}    or MEDIUM itself; video and audio alike
    {"type": "input_audio", "input_audio": {"data": BASE64, "format": "wav"}}
    {"type": "image"}    the next of the row's own pictures

Keys with null count as absent: Arrow gives every part all keys. Every spelling becomes one, `{"type": "text",
"text"}` or `{"type": "image" | "video" | "audio", "medium"?}`, so that whoever reads it needs to know no
other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.registry import nearest
from dataloader_svc.sources.values import base64_value, kind_of, medium_value, wrong_type

_TYPES = ["text", "image", "image_url", "video", "video_url", "audio", "audio_url", "input_audio"]
_INSIDE = ("url", "path", "bytes")
"""Where in an object the medium may be."""


def part_value(value: object, name: str, *, keep_dead: bool = False) -> dict[str, Any]:
    """One part in the one spelling. Raises BadSample that names what is wrong with it.

    keep_dead   what is wrong with a medium stands in its place, for whoever may leave it out
    """
    if not isinstance(value, Mapping):
        raise wrong_type(name, value, "a part: an object with a type")
    part = {key: item for key, item in value.items() if item is not None}
    kind = part.get("type")
    if kind not in _TYPES:
        found = "absent" if kind is None else repr(kind)[:60]
        hint = nearest(kind, _TYPES) if isinstance(kind, str) else ""
        raise BadSample(
            Reason.WRONG_TYPE, f"field '{name}.type' must be {', '.join(_TYPES)}; is {found}{hint}"
        )
    if kind == "text":
        text = part.get("text")
        if not isinstance(text, str):
            raise wrong_type(f"{name}.text", text, "a string")
        return {"type": "text", "text": text}
    base = str(kind).removesuffix("_url").removeprefix("input_")
    if "medium" in part:  # it is in our spelling already
        return {"type": base, "medium": part["medium"]}
    key = next((key for key in (kind, f"{base}_url", base, *_INSIDE) if key in part), None)
    if key is None:
        return {"type": base}
    try:
        return {"type": base, "medium": _medium(part[key], f"{name}.{key}")}
    except BadSample as problem:
        if not keep_dead:
            raise
        return {"type": base, "medium": problem}


def _medium(value: object, name: str) -> bytes | str:
    """A medium, or an object with one in it."""
    if isinstance(value, Mapping):
        if isinstance(value.get("data"), str):  # OpenAI's input_audio
            return base64_value(value["data"], f"{name}.data")
        inner = {key: item for key, item in value.items() if key in _INSIDE and item}
        key = next((key for key in ("bytes", "url", "path") if key in inner), None)
        if key is None:
            found = ", ".join(map(str, value))[:60] or "nothing"
            reason = Reason.MISSING_FIELD if set(value) & set(_INSIDE) else Reason.WRONG_TYPE
            raise BadSample(reason, f"field {name!r} must have one of {', '.join(_INSIDE)}; has {found}")
        return medium_value(inner[key], f"{name}.{key}")
    if not isinstance(value, str | bytes):
        raise BadSample(
            Reason.WRONG_TYPE, f"field {name!r} must be a path, a URL or bytes, is {kind_of(value)}"
        )
    return medium_value(value, name)


def parts_value(value: object, name: str, *, keep_dead: bool = False) -> list[dict[str, Any]]:
    """A list of parts, each in the one spelling."""
    if not isinstance(value, list):
        raise wrong_type(name, value, "a list of parts")
    return [part_value(item, f"{name}[{number}]", keep_dead=keep_dead) for number, item in enumerate(value)]
