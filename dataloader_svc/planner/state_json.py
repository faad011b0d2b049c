"""The text of a state: its versions, and how little room a source takes in it. Pure.

Version 2 is what is written; version 1 is read, and is what hashes are made of for ever: a session that began
under it must know its ranks again. The two differ in three places, by which 306 sources that all differ take
63 KiB, not 83:

- `credits` are a list, by the order of the sources' names, and no mapping;
- a source has `shards` and `index` in one, [shards, index];
- a source whose settings no other has holds their hashes itself, as `hash`.

Hashes are hexadecimal digits in `State`. In version 2 they are base64 behind an "=", which none begins with.
"""

from __future__ import annotations

import binascii
import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.planner.pieces import Pieces

if TYPE_CHECKING:
    from dataloader_svc.planner.state import SourceState, State

VERSION = 2
HASHED_VERSION = 1
READ_VERSIONS = (1, 2)

_MOST_WAITING = 1 << 24  # pieces; a step's worth waits, of a document that is split as well
_PACKED = "="
_GROUP = 4  # hexadecimal digits of the hash of one setting


def to_values(state: State, version: int = VERSION) -> dict[str, Any]:
    """All of a state, as JSON has it. Equal states give equal values, in one order."""
    compact, sources = version > 1, state.sources
    own = _own_hashes(state.names, state.config) if compact else {}
    shared = {entry: hashes for entry, hashes in state.config.items() if entry not in own}
    credits_ = {name: source.credit for name, source in sources.items()}
    values: dict[str, Any] = {
        "version": version,
        "seed": state.seed,
        "step": state.step,
        "sources": {
            name: _compact_source(source, own.get(f"source/{name}")) if compact else _source(source)
            for name, source in sources.items()
        },
        "credits": list(credits_.values()) if compact else credits_,
        "waiting": _waiting(state.names, state.waiting, state.age),
        "largest": state.largest,
        "config": _config(shared),
    }
    if state.ended:
        values["ended"] = True
    if state.readmitted != (0, 0):
        values["readmitted"] = list(state.readmitted)
    if state.job:
        values["job"] = state.job
    if state.skips:
        values["skips"] = [skip.to_json() for skip in state.skips]
    if state.mixture:
        values["mixture"] = [change.to_json() for change in state.mixture]
    return values


# ---- sources


def _source(source: SourceState) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "epoch": source.epoch,
        "position": source.position,
        "samples": source.samples,
        "tokens": source.tokens,
    }
    if source.index:
        entry["index"] = source.index
    if source.shards:
        entry["shards"] = source.shards
    if source.before:
        entry["before"] = [list(listing) for listing in source.before]
    if source.bad:
        entry["bad"] = dict(sorted(source.bad.items()))
    return entry


def _compact_source(source: SourceState, own: str | None) -> dict[str, Any]:
    entry = _source(source)
    if source.index or source.shards:
        entry.pop("shards", None)
        entry["index"] = [source.shards, _packed(source.index)]
    if own is not None:
        entry["hash"] = _packed(own, _GROUP)
    return entry


def listing_of(entry: Mapping[str, Any]) -> tuple[int, str]:
    """Shards and index of a source, 0 and "" where it has none yet."""
    index = entry.get("index", "")
    if isinstance(index, list):
        shards, packed = index
        return int(shards), _unpacked(packed)
    return int(entry.get("shards", 0)), _plain(str(index))


def credits_of(values: Mapping[str, Any]) -> dict[str, float]:
    """Source -> what it is owed. ValueError, KeyError: not one for each source."""
    found = values["credits"]
    if isinstance(found, list):
        found = dict(zip(sorted(values["sources"]), found, strict=True))
    return {name: float(found[name]) for name in values["sources"]}


# ---- hashes of settings


def _own_hashes(names: tuple[str, ...], config: Mapping[str, str]) -> dict[str, str]:
    """Entries of sources that no other entry is equal to."""
    times: dict[str, int] = {}
    for hashes in config.values():
        times[hashes] = times.get(hashes, 0) + 1
    entries = (f"source/{name}" for name in names)
    return {entry: config[entry] for entry in entries if entry in config and times[config[entry]] == 1}


def _config(config: Mapping[str, str]) -> dict[str, str | list[str]]:
    """Entry -> hashes, or hashes -> its entries where several share them: of 300 sources most are alike."""
    entries: dict[str, list[str]] = {}
    for entry, hashes in sorted(config.items()):
        entries.setdefault(hashes, []).append(entry)
    rows = [(same[0], hashes) if len(same) == 1 else (hashes, same) for hashes, same in entries.items()]
    return dict(sorted(rows))


def config_of(values: Mapping[str, Any]) -> dict[str, str]:
    """The inverse of both: entry -> hashes."""
    rows = [
        (str(entry), _plain(str(key if isinstance(value, list) else value)))
        for key, value in values["config"].items()
        for entry in (value if isinstance(value, list) else [key])
    ]
    for name, source in values["sources"].items():
        if "hash" in source:
            rows.append((f"source/{name}", _unpacked(source["hash"], _GROUP)))
    return dict(sorted(rows))


@functools.lru_cache(maxsize=8192)  # each is packed anew in every step
def _packed(digits: str, group: int = 0) -> str:
    """Hexadecimal digits as base64; what is none, or would not come back the same, as it is.

    group   digits between dashes; 0: there are no dashes
    """
    try:
        data = bytes.fromhex(digits.replace("-", ""))
    except ValueError:
        return digits
    packed = _PACKED + binascii.b2a_base64(data, newline=False).decode().rstrip("=")
    return packed if data and _unpacked(packed, group) == digits else digits


def _plain(digits: str) -> str:
    if digits.startswith(_PACKED):
        raise ValueError(f"{digits!r} is no digest")
    return digits


def _unpacked(text: str, group: int = 0) -> str:
    """The inverse. ValueError: it is no base64."""
    if not text.startswith(_PACKED):
        return text
    data = binascii.a2b_base64(text[1:] + "=" * (-len(text[1:]) % 4), strict_mode=True)
    return data.hex("-", -group // 2) if group else data.hex()


# ---- what waits


def _waiting(names: tuple[str, ...], waiting: Pieces, age: NDArray[np.int64]) -> list[list[Any]]:
    """[source, epoch, position, start, length, patches, block, age, piece length] of each run of pieces, and
    where it has any, its mel frames and number of media.

    A run is what follows in the same document without media, in pieces of one length, the last perhaps
    shorter: what a very long document leaves over is one entry.
    """
    if not len(waiting):
        return []
    follows = waiting.start[1:] == waiting.start[:-1] + waiting.length[:-1]
    follows &= ~waiting.has_media[1:] & ~waiting.has_media[:-1] & (age[1:] == age[:-1])
    for column in (waiting.source, waiting.epoch, waiting.position):
        follows &= column[1:] == column[:-1]
    follows &= waiting.length[1:] <= waiting.length[:-1]
    shortens = follows & (waiting.length[1:] < waiting.length[:-1])
    follows[1:] &= ~shortens[:-1]  # nothing follows the shorter last piece of a run
    first = np.flatnonzero(np.concatenate([[True], ~follows]))
    run, length = waiting.take(first), np.add.reduceat(waiting.length, first)
    columns = (
        *(run.epoch, run.position, run.start, length, run.patches, run.block),
        *(age[first], run.length, run.frames, run.media),
    )
    rows = np.stack(columns, axis=1).tolist()
    for row in rows:
        while len(row) > 8 and not row[-1]:  # as it was written before there were these two
            row.pop()
    return [[names[source], *row] for source, row in zip(run.source.tolist(), rows, strict=True)]


def waiting_of(names: tuple[str, ...], runs: list[list[Any]]) -> tuple[Pieces, NDArray[np.int64]]:
    """The inverse. ValueError, KeyError, TypeError: it is none."""
    number = {name: index for index, name in enumerate(names)}
    table = np.array([[number[name], *row, 0, 0][:11] for name, *row in runs], np.int64).reshape(-1, 11)
    source, epoch, position, start, length, patches, block, age, piece, frames, media = table.T
    if (table < 0).any() or (piece < 1).any() or (length // np.maximum(piece, 1)).sum() > _MOST_WAITING:
        raise ValueError("waiting samples have numbers that can't be")
    whole = Pieces(source, epoch, position, start, length, patches, block, frames, media)
    pieces, index = cut_each(whole, piece)
    return pieces, age[index]


def cut_each(pieces: Pieces, limit: NDArray[np.int64]) -> tuple[Pieces, NDArray[np.int64]]:
    """Pieces of at most `limit` (n,) tokens, and which of `pieces` each is of."""
    counts = -(-pieces.length // limit)
    index = np.repeat(np.arange(len(pieces)), counts)
    before = (np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)) * limit[index]
    cut = pieces.take(index)
    length = np.minimum(limit[index], cut.length - before)
    return replace(cut, start=cut.start + before, length=length), index
