"""What a field of unknown rows holds, and which of its values a job that maps it could not take.

Nobody has said what a field is for, so the first rows say it (`profile_of`): a field is text, media, or paths
of media where more than half of its values are, and one that more than half of the rows have is *expected*:
a row without it is bad, as it would be for the job that maps it. Fields that are mostly empty, and what is
neither text nor media, may be there or not. Whatever the field, a string must be Unicode, and bytes that
begin as a medium must be one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Literal

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.media.sniff import Kind, kind_of_suffix, sniff
from dataloader_svc.sources.base import Rows
from dataloader_svc.sources.values import medium_value, wrong_type
from dataloader_svc.transforms.plain_text import NO_UNICODE
from dataloader_svc.transforms.unicode import is_unicode

LOOKED_AT = 200
"""Rows that decide on a profile, at least, where there are so many."""

Holds = Literal["text", "media", "paths", "any"]

_LONGEST_PATH = 1024


@dataclass(frozen=True, slots=True)
class FieldProfile:
    """holds: what most of its values are. expected: a row must have it. kind: of its media."""

    holds: Holds
    expected: bool
    kind: Kind | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """By name of field."""

    fields: Mapping[str, FieldProfile]

    def as_json(self) -> dict[str, list[Any]]:
        """For the wire."""
        return {name: [each.holds, each.expected, each.kind] for name, each in self.fields.items()}

    @classmethod
    def of(cls, values: Mapping[str, Sequence[Any]]) -> Profile:
        """The way back."""
        return cls({name: FieldProfile(*each) for name, each in values.items()})


def profile_of(beginning: Iterable[Rows], folder: Path) -> Profile:
    """From the first rows of a shard in `folder`."""
    rows = 0
    seen: dict[str, Counter[str]] = {}
    for part in beginning:
        good = [row for row in range(part.num_rows) if row not in part.bad]
        rows += len(good)
        for name, values in part.raw.items():
            counts = seen.setdefault(name, Counter())
            for row in good:
                counts.update(_classes(values[row], folder))
    return Profile({name: _field_profile(name, counts, rows) for name, counts in seen.items()})


def _classes(value: object, folder: Path) -> Iterator[str]:
    """What a value counts as; "there": it is neither null nor blank."""
    if _is_nothing(value) or (isinstance(value, str) and value.isspace()):
        return
    yield "there"
    if isinstance(value, str):
        kind = _kind_of_path(value)
        if _is_data_url(value):
            yield "media"
        elif kind is None:
            yield "text"
        else:
            yield "paths"
            yield kind
            if _is_there(folder / value):
                yield "exists"
    elif isinstance(value, bytes):
        found = sniff(value)
        if found is not None:
            yield "media"
            yield found.kind
        elif _decodes(value):
            yield "text"
    elif _is_struct(value):
        yield "media"
        yield next(_kinds_of_struct(value), "image")


def _field_profile(name: str, counts: Counter[str], rows: int) -> FieldProfile:
    """Of so many values of each class."""
    there = counts["there"]
    holds: Holds = "any"
    majority: tuple[Holds, ...] = ("text", "media", "paths")
    for each in majority:
        if counts[each] * 2 > there:
            holds = each
    named = kind_of_suffix(f".{name.rpartition('.')[2]}")
    if holds == "paths" and not counts["exists"]:
        holds = "text"  # names of files that were somewhere once
    elif holds == "text" and named is not None:
        holds = "media"  # a member `jpg` that holds text holds the wrong thing
    kinds: tuple[Kind, ...] = ("image", "video", "audio")
    found = max(kinds, key=lambda each: counts[each])
    kind = found if counts[found] else None if holds == "text" else named
    return FieldProfile(holds, holds != "any" and there * 2 > rows, kind)


@dataclass(slots=True)
class Judge:
    """Looks at rows by a profile.

    bad     row -> the field and what is wrong with it, the first of its fields that is bad
    media   (row, field, kind, encoded bytes or path), all that are to be decoded
    remote  media at addresses of the web, which nobody fetches
    """

    profile: Profile
    folder: Path
    bad: dict[int, tuple[str, BadSample]] = field(default_factory=dict)
    media: list[tuple[int, str, Kind, bytes | str]] = field(default_factory=list)
    remote: int = 0

    def look_at(self, rows: Rows) -> None:
        """All rows of an extent."""
        for row, error in rows.bad.items():
            self.bad[row] = ("", error)
        nothing: list[Any] = [None] * rows.num_rows
        for name in dict.fromkeys([*self.profile.fields, *rows.raw]):
            of = self.profile.fields.get(name, FieldProfile("any", expected=False))
            for row, value in enumerate(rows.raw.get(name, nothing)):
                if row in rows.bad:
                    continue
                try:
                    self._judge(row, name, value, of)
                except BadSample as error:
                    self.bad.setdefault(row, (name, error))

    def _judge(self, row: int, name: str, value: object, of: FieldProfile) -> None:
        """Raises BadSample."""
        if isinstance(value, bytes) and of.holds == "text" and sniff(value) is None:
            value = _text_of(value, name)
        if of.holds != "any" and _is_nothing(value):
            self._lacking(name, value, of)
        elif isinstance(value, str) and _is_data_url(value):
            self._add(row, name, medium_value(value, name), of.kind)
        elif of.holds == "media" and isinstance(value, bytes | str):
            # Formats give a member as text where it can be read as that.
            self._add(row, name, value.encode() if isinstance(value, str) else value, of.kind)
        elif of.holds == "paths" and isinstance(value, str):
            self._add(row, name, medium_value(value, name), of.kind)
        elif of.holds == "text" and of.expected and not isinstance(value, str | bytes):
            raise wrong_type(name, value, "a string, as in most rows")
        else:
            if of.holds == "text" and of.expected and isinstance(value, str) and value.isspace():
                raise BadSample(Reason.EMPTY_TEXT, f"field {name!r} is blank")
            self._look_inside(row, name, value, of)

    def _lacking(self, name: str, value: object, of: FieldProfile) -> None:
        if not of.expected:
            return
        if value is not None and of.holds == "text":
            raise BadSample(Reason.EMPTY_TEXT, f"field {name!r} is empty")
        what = "null or absent" if value is None else "empty"
        raise BadSample(Reason.MISSING_FIELD, f"field {name!r} is {what}, and most rows have it")

    def _look_inside(self, row: int, name: str, whole: object, of: FieldProfile) -> None:
        """Strings and media, of lists and structs too, as deep as they go."""
        stack = [whole]
        while stack:
            value = stack.pop()
            if isinstance(value, str):
                if not is_unicode(value):
                    raise NO_UNICODE
                kind = _kind_of_path(value)
                if kind is not None and of.holds == "any" and _is_there(self.folder / value):
                    self._add(row, name, value, kind)
            elif isinstance(value, bytes):
                if sniff(value) is not None:
                    self._add(row, name, value, of.kind)
            elif _is_struct(value):
                self._add(row, name, medium_value(value, name), next(_kinds_of_struct(value), of.kind))
            elif isinstance(value, Mapping):
                stack.extend(reversed(list(value.values())))
            elif isinstance(value, list):
                stack.extend(reversed(value))

    def _add(self, row: int, name: str, medium: bytes | str, kind: Kind | None) -> None:
        """A medium, of the kind that its bytes or its name say; else of `kind`."""
        if isinstance(medium, bytes):
            found = sniff(medium)
            self.media.append((row, name, found.kind if found is not None else kind or "image", medium))
        elif "://" in medium and not medium.startswith("file://"):
            self.remote += 1
        else:
            path = self.folder / medium.removeprefix("file://")
            self.media.append((row, name, kind_of_suffix(path.suffix) or kind or "image", str(path)))


def _kind_of_path(text: str) -> Kind | None:
    """Of what looks like the path of a medium on this machine."""
    if len(text) > _LONGEST_PATH or "\n" in text or "\0" in text or "://" in text:
        return None
    return kind_of_suffix(PurePath(text).suffix)


def _is_data_url(text: str) -> bool:
    """Whether it holds a medium itself: `data:image/png;base64,...`."""
    return text[:11].lower().startswith(("data:image/", "data:video/", "data:audio/"))


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that is too long
        return False


def _is_nothing(value: object) -> bool:
    return value is None or (isinstance(value, str | bytes) and not value)


def _is_struct(value: object) -> bool:
    """The struct {bytes, path} of Hugging Face, or one half of it."""
    return isinstance(value, Mapping) and bool(value) and set(value) <= {"bytes", "path"}


def _kinds_of_struct(value: object) -> Iterator[Kind]:
    assert isinstance(value, Mapping)
    data, path = value.get("bytes"), value.get("path")
    if isinstance(data, bytes) and (found := sniff(data)) is not None:
        yield found.kind
    if isinstance(path, str) and (kind := kind_of_suffix(PurePath(path).suffix)) is not None:
        yield kind


def _text_of(value: bytes, name: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise BadSample(Reason.BAD_RECORD, f"field {name!r} is not UTF-8 at byte {error.start}") from error


def _decodes(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
