"""What a worker process does with a shard whose fields nobody knows: index it, read it, look at values.

A worker, because formats too are native code on a stranger's bytes. Two operations, for `WorkerPool.call`:

    open_shard      index the shard, and find out from its first rows what each field holds (`profile.py`)
    check_extent    read an extent; which rows are bad, and the media in them, which another worker decodes

Arguments of both: `format`, `options`, `path`, `scratch` (folder for expanded files), `scratch_bytes`.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dataloader_svc.cli.folder.profile import LOOKED_AT, Judge, Profile, profile_of
from dataloader_svc.errors import SourceError
from dataloader_svc.media.worker_wire import Answer
from dataloader_svc.sources.base import SOURCES, Extent, Fields, FormatContext, Rows, SourceFormat
from dataloader_svc.storage import Storage
from dataloader_svc.storage.expanded import ExpandedFiles

EXTENT_BYTES = 2**20
_MOST_EXTENTS = 16  # that are read for the profile


def open_shard(arguments: dict[str, Any], payload: bytes) -> Answer:  # noqa: ARG001 - an operation's signature
    """Value: `warnings`, `profile`; array: the extents, int64 (E, 6). Or `error`: why it can't be used."""
    try:
        index = _format(arguments, ()).index_shard(arguments["path"])
    except SourceError as error:
        return Answer({"error": str(error)})
    profile = profile_of(_beginning(arguments, index.extents), Path(arguments["path"]).parent)
    extents = np.array(index.extents, np.int64).reshape(-1, len(Extent._fields))
    return Answer({"warnings": list(index.warnings), "profile": profile.as_json()}, [extents])


def check_extent(arguments: dict[str, Any], payload: bytes) -> Answer:  # noqa: ARG001
    """Besides: `extent` (a list), `profile`. Value: `bad` [[row, field, reason, detail], ...], the first of
    each row; `media` [[row, field, kind, bytes or path], ...]: so many bytes of the array uint8 (n,) that
    comes with them, one after the other. Or `error`: why the extent can't be read.
    """
    try:
        rows = _read(arguments, Extent(*arguments["extent"]))
    except SourceError as error:
        return Answer({"error": str(error)})
    judge = Judge(Profile.of(arguments["profile"]), Path(arguments["path"]).parent)
    judge.look_at(rows)
    bad = [[row, name, error.reason.value, error.detail] for row, (name, error) in sorted(judge.bad.items())]
    media, parts = [], []
    for row, name, kind, medium in judge.media:
        media.append([row, name, kind, medium if isinstance(medium, str) else len(medium)])
        if isinstance(medium, bytes):
            parts.append(medium)
    return Answer(
        {"bad": bad, "media": media, "remote": judge.remote}, [np.frombuffer(b"".join(parts), np.uint8)]
    )


def _beginning(arguments: dict[str, Any], extents: tuple[Extent, ...]) -> Iterator[Rows]:
    """The first rows, an extent at a time; those that can't be read are told by `check_extent`."""
    seen = 0
    for extent in itertools.islice(extents, _MOST_EXTENTS):
        try:
            rows = _read(arguments, extent)
        except SourceError:
            continue
        yield rows
        seen += rows.num_rows
        if seen >= LOOKED_AT:
            return


def _read(arguments: dict[str, Any], extent: Extent) -> Rows:
    """All fields that the format can name. Raises SourceError."""
    names = _format(arguments, ()).columns(arguments["path"], extent)
    return _format(arguments, names).read(arguments["path"], extent)


def _format(arguments: dict[str, Any], names: tuple[str, ...]) -> SourceFormat:
    scratch = (arguments["scratch"], arguments["scratch_bytes"])
    return _made(arguments["format"], json.dumps(arguments["options"], sort_keys=True), names, *scratch)


@functools.lru_cache(maxsize=8)
def _made(name: str, options: str, names: tuple[str, ...], scratch: str, scratch_bytes: int) -> SourceFormat:
    made = SOURCES.get(name)
    checked = made.Options.model_validate(json.loads(options))
    context = FormatContext(Fields({}, names), _storage(scratch, scratch_bytes), EXTENT_BYTES, checked)
    return made(context)


@functools.cache
def _storage(scratch: str, scratch_bytes: int) -> Storage:
    return Storage(scratch=ExpandedFiles(Path(scratch), scratch_bytes))
