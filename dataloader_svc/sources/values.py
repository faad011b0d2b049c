"""One value of a row -> what its role promises in `base.Rows`, or a BadSample that says why not.

Knows neither formats nor the YAML. Chats are in `chat_shapes.py`, interleaved documents in `interleaved.py`,
token ids in `id_arrays.py`; `fields.py` knows which is for which role.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from urllib.parse import unquote_to_bytes

from dataloader_svc.errors import BadSample, Reason


def text_value(value: object, name: str) -> str:
    """The string itself; numbers are not turned into text."""
    if value is None:
        raise BadSample(Reason.MISSING_FIELD, f"field {name!r} is null")
    if not isinstance(value, str):
        raise wrong_type(name, value, "a string")
    return value


def media_value(value: object, name: str, *, null_is_none: bool = True) -> list[bytes | str]:
    """Encoded bytes or paths of a row's media, in order. `null_is_none`: a null stands for a null list."""
    if value is None and null_is_none:
        return []
    if isinstance(value, list):
        return [medium_value(item, f"{name}[{number}]") for number, item in enumerate(value)]
    return [medium_value(value, name)]


def medium_value(value: object, name: str) -> bytes | str:
    """Encoded bytes, or a path or URL; of a `data:` URL the bytes in it."""
    if isinstance(value, Mapping):
        if "bytes" not in value and "path" not in value:
            found = ", ".join(map(str, value))
            raise BadSample(Reason.WRONG_TYPE, f"field {name!r} must have bytes or path, has {found}")
        data, path = value.get("bytes"), value.get("path")
        value = data if data else path
    if value is None:
        raise BadSample(Reason.MISSING_FIELD, f"field {name!r} is null")
    if not isinstance(value, bytes | str):
        raise wrong_type(name, value, "bytes, a path, {bytes, path}, or a list of them")
    if not value:
        raise BadSample(Reason.MISSING_FIELD, f"field {name!r} is empty")
    if isinstance(value, str) and value[:5].lower() == "data:":
        return _data_url(value, name)
    return value


def base64_value(value: object, name: str) -> bytes:
    """The bytes of a base64 string, as strictly as the standard has it but for line ends."""
    text = text_value(value, name)
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:  # ValueError: it has characters beyond ASCII
        raise BadSample(Reason.BAD_RECORD, f"field {name!r} is not base64: {error}") from error
    if not data:
        raise BadSample(Reason.MISSING_FIELD, f"field {name!r} is empty")
    return data


def _data_url(url: str, name: str) -> bytes:
    """RFC 2397: `data:image/png;base64,...`, or without `;base64` with %xx for bytes."""
    head, comma, body = url.partition(",")
    if not comma:
        raise BadSample(Reason.BAD_RECORD, f"field {name!r} is a data: URL without a comma: {url[:40]!r}")
    if head.lower().rstrip().endswith(";base64"):
        return base64_value(body.replace("%2B", "+").replace("%2F", "/").replace("%3D", "="), name)
    data = unquote_to_bytes(body)
    if not data:
        raise BadSample(Reason.MISSING_FIELD, f"field {name!r} is empty")
    return data


def wrong_type(name: str, value: object, wanted: str) -> BadSample:
    """`field 'x' must be a string, is a list`."""
    return BadSample(Reason.WRONG_TYPE, f"field {name!r} must be {wanted}, is {kind_of(value)}")


def kind_of(value: object) -> str:
    """What a value is in JSON's words, as the person knows them who wrote the file."""
    names = {type(None): "null", dict: "an object", list: "a list", bool: "a boolean", str: "a string"}
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "a number"
    return names.get(type(value), type(value).__name__)
