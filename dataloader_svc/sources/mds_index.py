"""What index.json of a Mosaic MDS folder says of its shards. Knows JSON only; `mds.py` opens the shards."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any, NamedTuple, Protocol

from dataloader_svc.errors import SourceError

_XXHASH = ("xxh32", "xxh64", "xxh128", "xxh3_64", "xxh3_128")


class ShardFile(NamedTuple):
    """A file that a shard may be in: raw, or compressed. `hashes`: algorithm -> hex digest."""

    name: str
    size: int
    hashes: Mapping[str, str]


class Shard(NamedTuple):
    """One shard as the index has it."""

    samples: int
    raw: ShardFile
    compressed: ShardFile | None


class Hasher(Protocol):
    """As in hashlib."""

    def update(self, data: bytes, /) -> None:
        """Take more bytes."""
        ...

    def hexdigest(self) -> str:
        """The digest of all bytes so far."""
        ...


def shards_of(path: str, data: bytes) -> list[Shard]:
    """The shards that an index.json lists, in its order. Raises SourceError that names it."""
    try:
        index = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: is not JSON: {error}") from error
    listed = index.get("shards") if isinstance(index, dict) else None
    if not isinstance(listed, list):
        raise SourceError(f'{path}: must be an object with a list "shards"')
    if not listed:
        raise SourceError(f"{path}: lists no shards; was the writer finished?")
    found = []
    for number, entry in enumerate(listed):
        try:
            found.append(_shard(entry))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
            raise SourceError(f"{path}: shard {number}: {what}") from error
    return found


def hasher(hashes: Mapping[str, str]) -> tuple[str, Hasher] | None:
    """The first of the algorithms that is here: (its name, a new one); None for none of them."""
    for name in hashes:
        if name in hashlib.algorithms_guaranteed and not name.startswith("shake"):
            return name, hashlib.new(name, usedforsecurity=False)
        if name in _XXHASH:
            try:
                make: Callable[[], Hasher] = getattr(importlib.import_module("xxhash"), name)
            except ModuleNotFoundError:
                continue
            return name, make()
    return None


def _shard(entry: Any) -> Shard:
    kind = entry["format"]
    if kind != "mds":
        raise ValueError(f"is {kind!r}, not 'mds'")
    compressed = entry.get("zip_data")
    samples = entry["samples"]
    if not isinstance(samples, int) or samples < 0:
        raise ValueError(f"samples: {samples!r} is no count")
    return Shard(samples, _file(entry["raw_data"]), None if compressed is None else _file(compressed))


def _file(entry: Any) -> ShardFile:
    name, size, hashes = entry["basename"], entry["bytes"], entry.get("hashes") or {}
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.name or "\0" in name:
        raise ValueError(f"basename {name!r} is no name below the folder")
    if not isinstance(size, int):
        raise TypeError(f"bytes: {size!r} is no number")
    return ShardFile(name, size, {str(key): str(value) for key, value in hashes.items()})
