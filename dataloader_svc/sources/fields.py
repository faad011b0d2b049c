"""The fields of a row -> by role what `base.Rows` promises, or a BadSample that says why not.

Knows nothing of files. The rules, which hold for every format:

- a field that a row lacks, or a null text, is MISSING_FIELD: never the word "None", never a silent skip;
- empty and blank texts pass: the document rules (`transforms/`) judge them;
- a chat may do without media: there an absent field is none;
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
from dataloader_svc.sources.chat_shapes import messages_value
from dataloader_svc.sources.id_arrays import numbers_value
from dataloader_svc.sources.interleaved import list_value, parts_of_document
from dataloader_svc.sources.preference import PAIR_ROLES, turns_value
from dataloader_svc.sources.values import media_value, text_value
from dataloader_svc.transforms.base import MEDIA_KINDS
from dataloader_svc.transforms.per_source import columns_of, make_transforms

NUMBERS = ("input_ids", "loss_mask")
"""Roles that are arrays of whole numbers."""

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
    if source.video is not None and source.video.field is not None:
        names["video"] = (source.video.field,)
    if source.audio is not None and source.audio.names:
        names["audio"] = source.audio.names
    if source.interleaved is not None:
        names |= {role: (name,) for role, name in source.interleaved.names.items()}
    if source.preference is not None:
        names |= {role: (name,) for role, name in source.preference.names.items()}
    for role in ("input_ids", "loss_mask"):
        if (name := getattr(source, role)) is not None:
            names[role] = (name,)
    return Fields(
        names,
        columns_of(make_transforms(source)),
        optional=frozenset(MEDIA_KINDS) & names.keys() if source.is_chat else frozenset(),
        id_type=source.id_type,
        pairs_are_text=source.preference is not None and source.preference.style == "text",
    )


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


NORMALISE: Mapping[str, Callable[[object, str], Any]] = {
    "text": text_value,
    "messages": messages_value,
    "image": media_value,
    "video": media_value,
    "audio": media_value,
    "texts": list_value,
    "images": list_value,
    "interleaved": parts_of_document,
}
"""By role; but for `input_ids` and `loss_mask`, which need the source's `id_type` too, and PAIR_ROLES."""


def is_text(fields: Fields, role: str) -> bool:
    """Whether the role's values are strings as they stand."""
    return role == "text" or (fields.pairs_are_text and role in PAIR_ROLES)


def role_value(fields: Fields, role: str, value: object, name: str) -> Any:
    """What a role makes of the value of field `name`. Raises BadSample."""
    if role in NUMBERS:
        return numbers_value(value, name, fields.id_type)
    if role in PAIR_ROLES:
        return text_value(value, name) if is_text(fields, role) else turns_value(value, name, role)
    return NORMALISE[role](value, name)


def row_values(fields: Fields, row: Mapping[str, object]) -> dict[str, Any]:
    """Value by role, of a row given as raw value by name. Raises BadSample for the first that can't serve."""
    values: dict[str, Any] = {}
    for role, names in fields.names.items():
        present = [name for name in names if name in row]
        if not present and role in fields.optional:
            values[role] = []
            continue
        if not present:
            raise missing_field(names, row)
        name = next((name for name in present if row[name] is not None), present[0])
        values[role] = role_value(fields, role, row[name], name)
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
