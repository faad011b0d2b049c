"""A WebDataset that `energon prepare` prepared: which shards are a split's, and what fields mean.

`path:` is the folder with `.nv-meta` in it. `split.yaml` names shards and what is excluded, `dataset.yaml`
may map fields of Energon's samples to members (`caption: txt`, `caption: json[text]`), `.info.json` counts
the samples of each shard. Rows are the business of `webdataset.py`; Energon's index files are not needed, and
its `sample_loader.py` is not run.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from pydantic import Field

from dataloader_svc.config.schema import Model
from dataloader_svc.errors import SourceError, Unreachable
from dataloader_svc.registry import nearest
from dataloader_svc.sources.base import (
    SOURCES,
    Extent,
    Fields,
    FormatContext,
    NoOptions,
    Rows,
    ShardIndex,
    SourceFormat,
)
from dataloader_svc.sources.webdataset import WebDataset
from dataloader_svc.storage import Match, Storage
from dataloader_svc.storage.patterns import expand_braces, scheme_of

_META = ".nv-meta"
_ACCESS = re.compile(r"[^\[\]]+(?:\[[^\[\]]+\])*")


class EnergonOptions(Model):
    """`options:` of an Energon folder."""

    split: str = Field(default="train", description="The split part of split.yaml to read.")


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What `.nv-meta` of a folder says. Shards are named as below the folder.

    members    field of Energon's samples -> the members that can serve it, as our mapping has them
    excluded   shard -> keys of samples that are left out
    counts     shard -> its samples, as Energon counted them
    """

    root: str
    shards: tuple[str, ...]
    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    excluded: Mapping[str, frozenset[str]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)

    def as_text(self) -> str:
        """All of it that an index depends on; equal in every process."""
        excluded = {shard: sorted(keys) for shard, keys in self.excluded.items()}
        return json.dumps([self.shards, dict(self.members), excluded, dict(self.counts)], sort_keys=True)

    def fields(self, fields: Fields) -> Fields:
        """The source's mapping, with Energon's field names turned into members."""

        def members(name: str) -> tuple[str, ...]:
            return self.members.get(name, (name,))

        names = {
            role: tuple(m for name in named for m in members(name)) for role, named in fields.names.items()
        }
        return replace(fields, names=names)


class _Shard(WebDataset):
    """A shard without the samples that split.yaml excludes."""

    def __init__(self, context: FormatContext, excluded: frozenset[str]) -> None:
        super().__init__(context)
        self._excluded = excluded

    def leaves_out(self, key: str) -> bool:
        return key in self._excluded


@SOURCES.register("energon")
class EnergonFolder(SourceFormat):
    """WebDataset folder that `energon prepare` prepared (.nv-meta), by split.

    `offset`, `length`, `num_bytes`: as of webdataset.
    """

    Options = EnergonOptions
    marks = (_META,)

    def __init__(self, context: FormatContext) -> None:
        super().__init__(context)
        assert isinstance(context.options, EnergonOptions)
        self._split = context.options.split
        self._prepared: dict[str, _Prepared] = {}  # by folder of shards
        self.index_version = WebDataset.index_version

    def list_shards(self, patterns: Sequence[str], base_dir: Path) -> list[Match]:
        """The shards of the split, in the order of split.yaml, be they there or not."""
        storage = self.context.storage
        found: dict[str, Match] = {}
        described = []
        for folder in patterns:
            root = storage.join(str(base_dir.absolute()), folder.rstrip("/") or "/")
            prepared = _read(storage, root, self._split)
            described.append(prepared.as_text())
            for name in prepared.shards:
                path = storage.join(root, name)
                self._prepared[path.rpartition("/")[0]] = prepared
                found[path] = Match(path, name)
        # indexes are cached by shard; what .nv-meta says of them is a part of what they depend on
        digest = hashlib.blake2b("\n".join(described).encode(), digest_size=7).digest()
        self.index_version = WebDataset.index_version + int.from_bytes(digest, "big")
        return list(found.values())

    def index_shard(self, path: str) -> ShardIndex:
        """As a WebDataset; the number of samples is compared with Energon's own."""
        prepared, name = self._of(path)
        index = self._format(prepared, name).index_shard(path)
        counted = prepared.counts.get(name, index.num_rows)
        if counted == index.num_rows:
            return index
        warning = f"{path}: holds {index.num_rows} samples, {_META}/.info counts {counted}; prepare it again"
        return replace(index, warnings=(*index.warnings, warning))

    def read(self, path: str, extent: Extent) -> Rows:
        """As a WebDataset; excluded samples are passed over."""
        return self._format(*self._of(path)).read(path, extent)

    def columns(self, path: str, extent: Extent) -> tuple[str, ...]:
        """As a WebDataset."""
        return self._format(*self._of(path)).columns(path, extent)

    def splits(self, folder: str) -> tuple[Mapping[str, object], ...]:
        """Those of split.yaml that have shards."""
        parts = _mapping(_splits(self.context.storage, folder).get("split_parts"))
        return tuple({"split": str(name)} for name, shards in parts.items() if shards)

    def _format(self, prepared: _Prepared, name: str) -> WebDataset:
        context = replace(self.context, fields=prepared.fields(self.context.fields), options=NoOptions())
        return _Shard(context, prepared.excluded.get(name, frozenset()))

    def _of(self, path: str) -> tuple[_Prepared, str]:
        """What is prepared for a shard, and its name there. Looked for above it where it isn't known."""
        folder = path.rpartition("/")[0]
        if folder not in self._prepared:
            self._prepared[folder] = self._search(path)
        prepared = self._prepared[folder]
        return prepared, path.removeprefix(f"{prepared.root}/")

    def _search(self, path: str) -> _Prepared:
        scheme = scheme_of(path)
        head = "" if scheme is None else f"{scheme}://"
        folders = path.removeprefix(head).split("/")[:-1]
        for depth in range(len(folders), 0, -1):
            above = head + "/".join(folders[:depth])
            if _first(self.context.storage, above, "split.yaml", "split.json") is not None:
                return _read(self.context.storage, above, self._split)
        raise SourceError(f"{path}: no folder above it has {_META}/split.yaml")


def _splits(storage: Storage, root: str) -> Mapping[Any, Any]:
    """What split.yaml says."""
    splits = _first(storage, root, "split.yaml", "split.json")
    if splits is None:
        raise SourceError(
            f"{root}: has no {_META}/split.yaml; run `energon prepare`, or read it with `format: webdataset`"
        )
    return splits


def _read(storage: Storage, root: str, split: str) -> _Prepared:
    splits = _splits(storage, root)
    where, parts = f"{root}/{_META}/split.yaml", _mapping(splits.get("split_parts"))
    if split not in parts:
        found = ", ".join(map(str, parts)) or "none"
        raise SourceError(
            f"{where}: no split {split!r}; found: {found}{nearest(split, list(map(str, parts)))}"
        )
    excluded = set(_names(splits.get("exclude"), where))
    shards = [name for name in _names(parts[split], where) if name not in excluded]
    if not shards:
        raise SourceError(f"{where}: split {split!r} has no shards")
    if outside := [name for name in shards if ".." in PurePosixPath(name).parts or name.startswith("/")]:
        raise SourceError(f"{where}: {outside[0]} leads out of the folder")
    keys = {
        shard: frozenset(name.removeprefix(f"{shard}/") for name in excluded if name.startswith(f"{shard}/"))
        for shard in shards
    }
    dataset = _first(storage, root, "dataset.yaml", "dataset.json") or {}
    info = _first(storage, root, ".info.json", ".info.yaml") or {}
    return _Prepared(
        root=root,
        shards=tuple(dict.fromkeys(shards)),
        members={
            str(name): _members(text)
            for name, text in _mapping(dataset.get("field_map")).items()
            if isinstance(text, str)
        },
        excluded={shard: found for shard, found in keys.items() if found},
        counts={
            str(name): count
            for name, count in _mapping(info.get("shard_counts")).items()
            if isinstance(count, int)
        },
    )


def _first(storage: Storage, root: str, *names: str) -> Mapping[Any, Any] | None:
    """The first of these files in .nv-meta that is there, parsed. SourceError for one that is broken."""
    for name in names:
        path = f"{root}/{_META}/{name}"
        try:
            data = storage.read_all(path)
        except Unreachable:
            raise
        except SourceError:
            continue
        parse: Callable[[bytes], Any] = json.loads if name.endswith(".json") else yaml.safe_load
        try:
            value = parse(data)
        except (ValueError, yaml.YAMLError, RecursionError) as error:
            line = str(error).strip().splitlines()[0]
            raise SourceError(f"{path}: can't be read: {line}") from error
        if not isinstance(value, Mapping):
            raise SourceError(f"{path}: must hold fields with values")
        return value
    return None


def _mapping(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _names(value: object, where: str) -> list[str]:
    """Names with their braces expanded, as Energon does it."""
    listed = value if isinstance(value, list) else []
    return [name for text in listed for name in expand_braces(str(text), f"{where}: {text}")]


def _members(text: str) -> tuple[str, ...]:
    """`jpg,png` -> jpg, png: the first that a sample has; `json[a][b]` -> json.a.b, a value inside."""
    return tuple(
        option.replace("[", ".").replace("]", "") if _ACCESS.fullmatch(option) else option
        for option in text.split(",")
    )
