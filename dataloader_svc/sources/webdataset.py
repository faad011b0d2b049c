"""WebDataset: tar shards whose members with one key (the name up to the first dot) make a sample.

Extents are byte ranges of whole samples; reading one walks the headers inside its range again, so that the
index needs no table of members and a read is one request. Rules for what archives really hold:

- the parts of a sample stand next to each other. A key that comes back later makes the shard unusable, with
  an error that names it: half samples would look like whole ones;
- a part that comes twice makes that one sample bad;
- folders, links, hidden files (macOS's ._x) and names without an extension are passed over;
- a cut shard gives its whole samples and a warning;
- a gzip or zstd shard is read as what it holds, whatever its name.

Extensions are compared in lower case. What is no text and no medium (`messages`, `interleaved`, ...) is read
from a JSON member, or from what lies in it: "json.conversations"; a text may lie in one too. Token ids may be
a `.npy` or raw bytes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dataloader_svc.errors import BadSample, Reason, SourceError
from dataloader_svc.sources.base import SOURCES, Extent, FormatContext, Rows, ShardIndex, SourceFormat
from dataloader_svc.sources.fields import (
    NUMBERS,
    describe_missing,
    is_text,
    missing_field,
    raw_root,
    role_value,
    value_inside,
)
from dataloader_svc.sources.tar import BLOCK, Damaged, Member, check_header, members
from dataloader_svc.transforms.base import MEDIA_KINDS


@dataclass(slots=True)
class _Sample:
    """Consecutive members of one key."""

    key: str
    start: int
    stop: int = 0
    parts: dict[str, Member] = field(default_factory=dict)  # by extension
    twice: str | None = None  # a name that came twice

    def add(self, extension: str, member: Member) -> None:
        if extension in self.parts:
            self.twice = member.name
        self.parts[extension] = member
        self.stop = member.stop


@SOURCES.register("webdataset")
class WebDataset(SourceFormat):
    """WebDataset tar, members of one name after each other a sample; gzip and zstd too.

    `offset`, `length`: byte range, of the expanded file. `num_bytes` counts the mapped members only.
    """

    index_version = 2
    suffixes = (".tar", ".tar.gz", ".tar.zst")

    def __init__(self, context: FormatContext) -> None:
        super().__init__(context)
        self._names = context.fields.names
        self._extent_bytes = context.extent_bytes

    def index_shard(self, path: str) -> ShardIndex:
        """Walk the headers; data is not read."""
        opened = self.context.storage.open_expanded(path)
        size, warnings = opened.size, list[str]()
        with opened.file as file:
            if size == 0:
                return ShardIndex((), (f"{path}: is an empty file",))

            def read(offset: int, length: int) -> bytes:
                file.seek(offset)
                return file.read(length)

            try:
                _check_is_tar(path, read(0, BLOCK))
                extents, extensions = self._walk(path, members(read, 0, size), warnings)
                if not warnings and read(max(0, size - BLOCK), BLOCK).strip(b"\0"):
                    warnings.append(f"{path}: has no end mark; it may be cut")
            except OSError as error:
                raise SourceError(f"{path}: {error.strerror}") from error
        if not extents:
            return ShardIndex((), (*warnings, f"{path}: has no samples"))
        missing = {
            role: describe_missing(names, extensions)
            for role, names in self._names.items()
            if not any(_lookup(self._kind(role), name, extensions) for name in names)
        }
        return ShardIndex(tuple(extents), tuple(warnings), missing)

    def read(self, path: str, extent: Extent) -> Rows:
        """All samples of a byte range: one read, then views of it."""
        data = self.context.storage.read_expanded(path, extent.offset, extent.length)
        columns: dict[str, list[Any]] = {role: [] for role in self._names}
        raw: dict[str, list[Any]] = {name: [] for name in self.context.fields.raw}
        bad: dict[int, BadSample] = {}
        row = 0
        try:
            for sample in _samples(members(lambda offset, n: data[offset : offset + n], 0, len(data))):
                found: dict[str, object] = {}
                try:
                    found = _raw_values(sample.parts, data, self.context.fields.raw)
                    values = self._values(sample, data)
                except BadSample as error:
                    bad[row] = BadSample(error.reason, f"sample {sample.key!r}: {error.detail}")
                    values = dict.fromkeys(self._names)
                for role, value in values.items():
                    columns[role].append(value)
                for name, column in raw.items():
                    column.append(found.get(name))
                row += 1
        except Damaged as error:
            raise SourceError(f"{path}: {error} (from byte {extent.offset} on)") from error
        if row != extent.num_rows:
            raise SourceError(
                f"{path}: {extent.num_rows} samples when indexed, {row} now, at byte {extent.offset}"
            )
        return Rows(row, dict(columns), bad, dict(raw))

    def columns(self, path: str, extent: Extent) -> tuple[str, ...]:
        """Extensions of the members."""
        data = self.context.storage.read_expanded(path, extent.offset, extent.length)
        found: dict[str, None] = {}
        try:
            for sample in _samples(members(lambda offset, n: data[offset : offset + n], 0, len(data))):
                found.update(dict.fromkeys(sample.parts))
        except Damaged as error:
            raise SourceError(f"{path}: {error} (from byte {extent.offset} on)") from error
        return tuple(found)

    def leaves_out(self, key: str) -> bool:  # noqa: ARG002
        """Whether the sample of this key is passed over: for formats made of this one."""
        return False

    def _walk(
        self, path: str, found: Iterator[Member], warnings: list[str]
    ) -> tuple[list[Extent], list[str]]:
        """Extents of about `extent_bytes`, and the extensions met, in order of appearance."""
        extents: list[Extent] = []
        extensions: dict[str, None] = {}
        keys: set[str] = set()
        start, rows, num_bytes, first_row, stop = 0, 0, 0, 0, 0
        for sample in _whole_samples(path, found, warnings):
            if sample.key in keys:
                raise SourceError(
                    f"{path}: parts of sample {sample.key!r} are not next to each other; "
                    "write the members sorted by name (tar --sort=name)"
                )
            keys.add(sample.key)
            extensions.update(dict.fromkeys(sample.parts))
            if rows and sample.stop - start > self._extent_bytes:
                extents.append(Extent(first_row, rows, start, stop - start, max(1, num_bytes)))
                first_row, rows, num_bytes = first_row + rows, 0, 0
            if not rows:
                start = sample.start
            rows, stop = rows + 1, sample.stop
            mapped = {root for root, _ in self._mapped(sample.parts).values()}
            num_bytes += sum(sample.parts[root].size for root in mapped)
        if rows:
            extents.append(Extent(first_row, rows, start, stop - start, max(1, num_bytes)))
        return extents, list(extensions)

    def _kind(self, role: str) -> str:
        """`role`, or "text" where its values are strings as they stand."""
        return "text" if is_text(self.context.fields, role) else role

    def _mapped(self, parts: Mapping[str, Member]) -> dict[str, tuple[str, str]]:
        """By role, the extension of the first member that can serve it, and the name that means it."""
        mapped: dict[str, tuple[str, str]] = {}
        for role, names in self._names.items():
            roots = ((_lookup(self._kind(role), name, parts), name) for name in names)
            found = ((root, name) for root, name in roots if root is not None)
            if (first := next(found, None)) is not None:
                mapped[role] = first
        return mapped

    def _values(self, sample: _Sample, data: bytes) -> dict[str, Any]:
        if self.leaves_out(sample.key):
            raise BadSample(Reason.FILTERED)
        if sample.twice is not None:
            raise BadSample(Reason.BAD_RECORD, f"member {sample.twice!r} is there twice")
        mapped = self._mapped(sample.parts)
        parsed: dict[str, object] = {}
        values: dict[str, Any] = {}
        for role, names in self._names.items():
            if role not in mapped:
                if role not in self.context.fields.optional:
                    raise missing_field(names, sample.parts)
                values[role] = []
                continue
            root, name = mapped[role]
            member = sample.parts[root]
            content = data[member.data : member.data + member.size]
            if self._kind(role) == "text" and root == name.lower():
                values[role] = _utf8(content, member.name)
            elif not content:
                raise BadSample(Reason.MISSING_FIELD, f"member {member.name!r} is empty")
            elif role in MEDIA_KINDS:
                values[role] = [content]
            elif role in NUMBERS and root.split(".")[-1] != "json":
                values[role] = role_value(self.context.fields, role, content, member.name)
            else:
                if root not in parsed:
                    parsed[root] = _json(content, member.name)
                inside = name[len(root) :]
                value = value_inside(parsed[root], root, root + inside)
                values[role] = role_value(self.context.fields, role, value, member.name + inside)
        return values


def _lookup(role: str, name: str, found: Collection[str]) -> str | None:
    """Of the extensions found, that of the member which the field `name` means, or lies in."""
    name = name.lower()
    if name in found or role in MEDIA_KINDS:
        return name if name in found else None
    root = raw_root(name, found)
    inside = role != "text" or (root is not None and root.split(".")[-1] == "json")
    return root if inside else None


def _whole_samples(path: str, found: Iterator[Member], warnings: list[str]) -> Iterator[_Sample]:
    """Samples up to the end or the damage."""
    try:
        yield from _samples(found)
    except Damaged as error:
        warnings.append(f"{path}: {error}; what follows is lost")


def _samples(found: Iterator[Member]) -> Iterator[_Sample]:
    """Group consecutive members by key.

    Before damage passes through, the sample in hand is given, unless the cut member is one of its parts. If
    the damage hides other parts of it, then it lacks a mapped field and is bad, or they are not mapped.
    """
    sample: _Sample | None = None
    try:
        for member in found:
            split = _key_and_extension(member.name)
            if split is None:
                continue
            key, extension = split
            if sample is not None and sample.key != key:
                yield sample
                sample = None
            sample = sample or _Sample(key, member.start)
            sample.add(extension, member)
    except Damaged as error:
        cut = _key_and_extension(error.name or "")
        if sample is not None and (cut is None or cut[0] != sample.key):
            yield sample
        raise
    if sample is not None:
        yield sample


def _key_and_extension(name: str) -> tuple[str, str] | None:
    """`./a/0001.seg.png` -> ("a/0001", "seg.png"); None for hidden files and names without extension."""
    folder, slash, file = name.removeprefix("./").rpartition("/")
    base, _, extension = file.partition(".")
    if not base or not extension or folder.partition("/")[0] == "__MACOSX":
        return None
    return folder + slash + base, extension.lower()


def _check_is_tar(path: str, head: bytes) -> None:
    for magic, kind in (
        (b"\x1f\x8b", "gzip twice"),
        (b"BZh", "bzip2"),
        (b"\xfd7z", "xz"),
    ):
        if head.startswith(magic):
            raise SourceError(f"{path}: is compressed ({kind}): decompress it, or use gzip or zstd")
    try:
        check_header(head)
    except Damaged as error:
        raise SourceError(f"{path}: is not a tar archive: {error}") from error


def _raw_values(parts: Mapping[str, Member], data: bytes, names: Sequence[str]) -> dict[str, object]:
    """What `names` mean: a JSON member as it stands, dotted for what lies in it; others as text, else bytes.

    Raises BadSample for a JSON member that is none.
    """
    members: dict[str, object] = {}
    values: dict[str, object] = {}
    for name in names:
        root = raw_root(name.lower(), parts)
        if root is not None and root not in members:
            members[root] = _raw_member(parts[root], data, is_json=root.split(".")[-1] == "json")
        values[name] = None if root is None else value_inside(members[root], root, name)
    return values


def _raw_member(member: Member, data: bytes, *, is_json: bool) -> object:
    content = data[member.data : member.data + member.size]
    if is_json:
        return _json(content, member.name)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content


def _utf8(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadSample(Reason.BAD_RECORD, f"member {name!r} is not UTF-8 at byte {error.start}") from error


def _json(content: bytes, name: str) -> object:
    try:
        value: object = json.loads(_utf8(content, name))
    except (ValueError, RecursionError) as error:
        raise BadSample(Reason.BAD_RECORD, f"member {name!r} is not JSON: {error}") from error
    return value
