"""Documents of texts and pictures in turn, in the three styles that people have -> a list of typed parts.

    obelics   two lists of one length; at each index a text or a picture, the other is null
    mmc4      a list of sentences, and pictures that each name the sentence they stand in front of
    parts     one list of typed parts (`parts.py`)

A picture that is none (null, no name, broken base64) does not end the document here: the problem stands in
its place, and the loader drops the picture or the document, as `on_bad_image` says. What makes the order
doubtful ends it: lists of unequal lengths, a text and a picture at one index, a sentence that isn't there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dataloader_svc.config.schema import Interleaved
from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.sources.base import Fields, Rows
from dataloader_svc.sources.parts import parts_value
from dataloader_svc.sources.values import base64_value, medium_value, wrong_type

_NO_PICTURE = "has neither a text nor a picture"
_MMC4_KEYS = ("bytes", "image", "image_base64", "image_name", "path")
"""Where a picture of MMC4 may be, first things first. Not `raw_url`: those of MMC4 are long dead."""


def list_value(value: object, name: str) -> list[Any]:
    """A list, as it stands."""
    if value is None:
        raise BadSample(Reason.MISSING_FIELD, f"field {name!r} is null")
    if not isinstance(value, list):
        raise wrong_type(name, value, "a list")
    return value


def parts_of_document(value: object, name: str) -> list[dict[str, Any]]:
    """Style `parts`. Raises BadSample."""
    if value is None:
        raise BadSample(Reason.MISSING_FIELD, f"field {name!r} is null")
    parts = parts_value(value, name, keep_dead=True)
    if not parts:
        raise _empty(name)
    return parts


def obelics_parts(
    texts: Sequence[object], images: Sequence[object], rule: Interleaved
) -> list[dict[str, Any]]:
    """Style `obelics`. Raises BadSample."""
    names = rule.names
    if len(texts) != len(images):
        raise BadSample(
            Reason.BAD_RECORD, f"{len(texts)} {names['texts']} for {len(images)} {names['images']}"
        )
    if not texts:
        raise _empty(names["texts"])
    parts: list[dict[str, Any]] = []
    for number, (text, image) in enumerate(zip(texts, images, strict=True)):
        place = f"{names['images']}[{number}]"
        if text is None or text == "":
            parts.append(_image(image, place, f"index {number} {_NO_PICTURE}"))
            continue
        if image is not None:
            raise BadSample(Reason.BAD_RECORD, f"index {number} has both a text and a picture")
        parts.append({"type": "text", "text": _text(text, f"{names['texts']}[{number}]")})
    return parts


def mmc4_parts(texts: Sequence[object], images: Sequence[object], rule: Interleaved) -> list[dict[str, Any]]:
    """Style `mmc4`: pictures in front of their sentence, in the order listed. Raises BadSample."""
    names = rule.names
    if not texts:
        raise _empty(names["texts"])
    in_front: list[list[dict[str, Any]]] = [[] for _ in texts]
    for number, info in enumerate(images):
        place = f"{names['images']}[{number}]"
        if not isinstance(info, Mapping):
            raise wrong_type(place, info, "an object with matched_text_index")
        index = info.get("matched_text_index")
        if not isinstance(index, int) or isinstance(index, bool):
            raise wrong_type(f"{place}.matched_text_index", index, "a whole number")
        if not 0 <= index < len(texts):
            raise BadSample(
                Reason.BAD_RECORD, f"{place}.matched_text_index is {index}; there are {len(texts)} sentences"
            )
        in_front[index].append(_mmc4_image(info, place))
    parts: list[dict[str, Any]] = []
    for number, (text, pictures) in enumerate(zip(texts, in_front, strict=True)):
        parts += pictures
        parts.append({"type": "text", "text": _text(text, f"{names['texts']}[{number}]")})
    return parts


def roles_of(fields: Fields) -> list[str]:
    """The roles of a source's rows, `with_documents`."""
    return list(dict.fromkeys("interleaved" if role in ("texts", "images") else role for role in fields))


def with_documents(rows: Rows, rule: Interleaved) -> Rows:
    """`rows` with `interleaved` in place of the two lists that it is made of; a bad document is in `bad`."""
    if rule.style == "parts":
        return rows
    make = obelics_parts if rule.style == "obelics" else mmc4_parts
    columns = dict(rows.columns)
    texts, images = columns.pop("texts"), columns.pop("images")
    bad = dict(rows.bad)
    documents: list[list[dict[str, Any]] | None] = [None] * rows.num_rows
    for row in range(rows.num_rows):
        if row not in bad:
            try:
                documents[row] = make(texts[row], images[row], rule)
            except BadSample as problem:
                bad[row] = problem
    return Rows(rows.num_rows, {**columns, "interleaved": documents}, bad, rows.raw)


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise wrong_type(name, value, "a string")
    return value


def _image(value: object, name: str, if_null: str) -> dict[str, Any]:
    if value is None:
        return {"type": "image", "medium": BadSample(Reason.MISSING_FIELD, if_null)}
    try:
        return {"type": "image", "medium": medium_value(value, name)}
    except BadSample as problem:
        return {"type": "image", "medium": problem}


def _mmc4_image(info: Mapping[str, object], name: str) -> dict[str, Any]:
    key = next((key for key in _MMC4_KEYS if info.get(key)), None)
    if key != "image_base64":
        return _image(None if key is None else info[key], f"{name}.{key}", f"{name} names no picture")
    try:
        return {"type": "image", "medium": base64_value(info[key], f"{name}.{key}")}
    except BadSample as problem:
        return {"type": "image", "medium": problem}


def _empty(name: str) -> BadSample:
    return BadSample(Reason.EMPTY_TEXT, f"field {name!r} is an empty list")
