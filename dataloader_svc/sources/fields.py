"""Raw values of a row -> what each role promises in `base.Rows`, or a BadSample that says why not.

Knows nothing of files. The rules, which hold for every format:

- a field that a row lacks, or a null text, is MISSING_FIELD: never the word "None", never a silent skip;
- empty and blank texts pass: the document rules (`transforms/`) judge them;
- media are a list: one picture is a list of one; a null *list* is no pictures, a null *picture* is missing;
- a medium is encoded bytes, or a path; the Hugging Face struct {bytes, path} is the bytes, else the path.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from dataloader_svc.config.schema import Source
from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.registry import nearest
from dataloader_svc.sources.base import Fields
from dataloader_svc.transforms.per_source import columns_of, make_transforms

_NAMES_SHOWN = 30  # a row may have thousands of keys, and a source millions of such rows


def fields_of(source: Source) -> Fields:
    """The mapping of a source's YAML, and what its transforms look at. ConfigError for a wrong transform."""
    image = [source.image] if isinstance(source.image, str) else source.image
    names: dict[str, tuple[str, ...]] = {}
    if source.text is not None:
        names["text"] = (source.text,)
    if source.messages is not None:
        names["messages"] = (source.messages,)
    if image is not None:
        names["image"] = tuple(image)
    if source.video is not None:
        names["video"] = (source.video.field,)
    return Fields(names, raw=columns_of(make_transforms(source)))


def raw_root(name: str, found: Collection[str]) -> str | None:
    """Of `found`, the field that `name` means or lies in ("json.width", else "json"); None for neither."""
    parts = name.split(".")
    candidates = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((candidate for candidate in candidates if candidate in found), None)


def raw_value(row: Mapping[str, object], name: str) -> object:
    """The field `name` of a row, dotted for one inside another; None where the row has none."""
    root = raw_root(name, row)
    return None if root is None else value_inside(row[root], root, name)


def value_inside(value: object, root: str, name: str) -> object:
    """What `name` means, of the value of its `raw_root`."""
    for part in name[len(root) + 1 :].split(".") if name != root else ():
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def text_value(value: object, name: str) -> str:
    """The string itself; numbers are not turned into text."""
    if value is None:
        raise BadSample(Reason.MISSING_FIELD, f"field {name!r} is null")
    if not isinstance(value, str):
        raise _wrong_type(name, value, "a string")
    return value


def messages_value(value: object, name: str) -> list[dict[str, Any]]:
    """Chat messages with string `role` and `content`; other keys are kept unless null."""
    if value is None:
        raise BadSample(Reason.MISSING_FIELD, f"field {name!r} is null")
    if not isinstance(value, list):
        raise _wrong_type(name, value, "a list of {role, content}")
    if not value:
        raise BadSample(Reason.BAD_MESSAGES, f"field {name!r} has no messages")
    messages: list[dict[str, Any]] = []
    for number, item in enumerate(value):
        if not isinstance(item, dict):
            raise _wrong_type(f"{name}[{number}]", item, "an object with role and content")
        for key in ("role", "content"):
            if not isinstance(item.get(key), str):
                found = kind_of(item[key]) if key in item else f"absent{nearest(key, [str(k) for k in item])}"
                raise BadSample(Reason.BAD_MESSAGES, f"{name}[{number}].{key} must be a string, is {found}")
        messages.append({key: part for key, part in item.items() if part is not None})
    return messages


def media_value(value: object, name: str, *, null_is_none: bool = True) -> list[bytes | str]:
    """Encoded bytes or paths of a row's media, in order. `null_is_none`: a null stands for a null list."""
    if value is None and null_is_none:
        return []
    if isinstance(value, list):
        return [_medium(item, f"{name}[{number}]") for number, item in enumerate(value)]
    return [_medium(value, name)]


def _medium(value: object, name: str) -> bytes | str:
    if isinstance(value, Mapping):
        if "bytes" not in value and "path" not in value:
            found = ", ".join(map(str, value))
            raise BadSample(Reason.WRONG_TYPE, f"field {name!r} must have bytes or path, has {found}")
        data, path = value.get("bytes"), value.get("path")
        value = data if data else path
    if value is None:
        raise BadSample(Reason.MISSING_FIELD, f"field {name!r} is null")
    if not isinstance(value, bytes | str):
        raise _wrong_type(name, value, "bytes, a path, {bytes, path}, or a list of them")
    if not value:
        raise BadSample(Reason.MISSING_FIELD, f"field {name!r} is empty")
    return value


NORMALISE: Mapping[str, Callable[[object, str], Any]] = {
    "text": text_value,
    "messages": messages_value,
    "image": media_value,
    "video": media_value,
}


def row_values(fields: Fields, row: Mapping[str, object]) -> dict[str, Any]:
    """Value by role, of a row given as raw value by name. Raises BadSample for the first that can't serve."""
    values = {}
    for role, names in fields.names.items():
        present = [name for name in names if name in row]
        if not present:
            raise missing_field(names, row)
        name = next((name for name in present if row[name] is not None), present[0])
        values[role] = NORMALISE[role](row[name], name)
    return values


def missing_field(names: tuple[str, ...], found: Mapping[str, object]) -> BadSample:
    """A row that has none of `names`."""
    return BadSample(Reason.MISSING_FIELD, f"no field {describe_missing(names, list(found))}")


def describe_missing(names: tuple[str, ...], found: list[str]) -> str:
    """`'content'; found: text, url; did you mean ...?` with the found names cut where they are many."""
    few = [name[:60] for name in found[:_NAMES_SHOWN]]
    shown = ", ".join(few) + (f", ... ({len(found)} in all)" if len(found) > len(few) else "")
    hint = next((hint for name in names if (hint := nearest(name, few))), "")
    return f"{' or '.join(map(repr, names))}; found: {shown or 'nothing'}{hint}"


def _wrong_type(name: str, value: object, wanted: str) -> BadSample:
    return BadSample(Reason.WRONG_TYPE, f"field {name!r} must be {wanted}, is {kind_of(value)}")


def kind_of(value: object) -> str:
    """What a value is in JSON's words, as the person knows them who wrote the file."""
    names = {type(None): "null", dict: "an object", list: "a list", bool: "a boolean", str: "a string"}
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "a number"
    return names.get(type(value), type(value).__name__)
