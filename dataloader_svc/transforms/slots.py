"""Media slots: the places that a chat or an interleaved document gives its media, and the media for them.

A row says where media go in one of two ways. Markers in its text (`<image>`) stand for the media of the row's
own fields. Or parts of type image and video are slots, exact ones: then a marker typed beside them is text.
A slot holds its medium (`medium`), or takes the next of the row's own. Here a row's media are listed in the
order of their slots; `document.py` places them, `chat.py` shows slots to the template.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.transforms.base import MEDIA_KINDS

Medium = tuple[int, bytes | str | BadSample]
"""Kind, and data: or what is wrong with it."""


def may_have_media(columns: Mapping[str, Any]) -> bool:
    """Whether rows with these columns, by role, can have media."""
    return any(role in columns for role in (*MEDIA_KINDS, "messages", "interleaved"))


def row_media(columns: Mapping[str, Any], row: int, kinds: Collection[int]) -> list[Medium]:
    """The media of a row: in the order of its slots where it has some, else kind after kind.

    columns   role -> values, as in `sources.base.Rows`
    kinds     what the job can take

    Raises BadSample where the row's own media are more or fewer than the slots that hold none, and for a
    kind that the job can't take.
    """
    own = {kind: columns[name][row] for kind, name in enumerate(MEDIA_KINDS) if name in columns}
    interleaved = "interleaved" in columns
    if interleaved:
        found = slots(columns["interleaved"][row])
    else:
        found = chat_slots(columns["messages"][row]) if "messages" in columns else []
        if not found:
            return [(kind, data) for kind in sorted(own) for data in own[kind]]
    for part in found:
        if MEDIA_KINDS.index(part["type"]) not in kinds:
            name = part["type"]
            raise BadSample(Reason.BAD_MESSAGES, f"the row holds {name}s, but media_tokens.{name} is not set")
    return _in_slots(found, own, null_is_dead=interleaved)


def slots(content: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The parts of a document that are slots, in order."""
    return [part for part in content if part["type"] in MEDIA_KINDS]


def chat_slots(messages: Any) -> list[Mapping[str, Any]]:
    """The slots of a chat, in order; none where media have markers, or there are no media."""
    contents = [message["content"] for message in messages]
    return [part for content in contents if isinstance(content, list) for part in slots(content)]


def without_dead(documents: Sequence[Any], dead: Mapping[int, Collection[int]]) -> list[Any]:
    """Interleaved documents without some of their slots: `dead` has their numbers, by row."""
    left = list(documents)
    for row, numbers in dead.items():
        counted = itertools.count()
        left[row] = [
            part for part in left[row] if part["type"] not in MEDIA_KINDS or next(counted) not in numbers
        ]
    return left


def _in_slots(
    found: Sequence[Mapping[str, Any]], own: Mapping[int, Sequence[bytes | str]], *, null_is_dead: bool
) -> list[Medium]:
    """The media for the slots `found`, in their order.

    null_is_dead   a slot that holds none, where the row has no field for its kind, is a dead medium
    """
    left = {kind: iter(media) for kind, media in own.items()}
    empty = [0] * len(MEDIA_KINDS)
    media: list[Medium] = []
    for part in found:
        kind = MEDIA_KINDS.index(part["type"])
        if "medium" in part:
            media.append((kind, part["medium"]))
        elif null_is_dead and kind not in own:
            media.append((kind, BadSample(Reason.MISSING_FIELD, f"a part of type {part['type']} is empty")))
        else:
            empty[kind] += 1
            if (mine := next(left.get(kind, iter(())), None)) is not None:
                media.append((kind, mine))
    for kind, name in enumerate(MEDIA_KINDS):
        have = len(own.get(kind, ()))
        if empty[kind] != have:
            detail = f"{empty[kind]} parts of type {name} that hold none, and {have} {name}s of the row's own"
            raise BadSample(Reason.MARKER_MISMATCH, detail)
    return media
