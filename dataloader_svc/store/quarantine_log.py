"""Samples that were skipped, and why, and which came back: entries under prefixes of any store.

A view for people; what a step skipped or readmitted also stands in its plan record, which is what `audit`
counts. The key is the sample's name, so adding one twice (a replay, another planner) leaves one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote

from dataloader_svc.sample import RowRef, SampleId
from dataloader_svc.store.base import Store

PREFIX = "quarantine/"
READMITTED = "readmitted/"


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A bad sample: its name, where it lies, an `errors.Reason`, and what was found.

    delivered   a step has it, without loss: only its pixels turned out to be bad
    step        that skipped or has it, in this `generation` of the plan log; both None where an earlier
                version of the service wrote the entry
    """

    sample: SampleId
    row: RowRef
    reason: str
    detail: str = ""
    delivered: bool = False
    step: int | None = None
    generation: int | None = None


def add_quarantine(store: Store, rows: Iterable[Quarantined]) -> None:
    """Write `rows` in one transaction. Idempotent by sample; the last reason given stays."""
    write_rows(store, PREFIX, rows)


def quarantine(store: Store, source: str | None = None) -> list[Quarantined]:
    """All quarantined samples, or those of one source, ordered by (source, epoch, position)."""
    return read_rows(store, PREFIX, source)


def add_readmitted(store: Store, samples: Iterable[SampleId], generation: int, step: int) -> None:
    """Write that a step put these samples in line, in one transaction. By sample, the last stays."""
    value = json.dumps([generation, step]).encode()
    values = {_key(READMITTED, sample): value for sample in samples}
    if values:
        store.put_many(values)


def readmitted(store: Store) -> Mapping[SampleId, tuple[int, int]]:
    """Sample -> (generation, step) that put it in line last."""
    found = store.items(READMITTED).items()
    return {_sample(key.removeprefix(READMITTED)): tuple(json.loads(value)) for key, value in found}


def write_rows(store: Store, prefix: str, rows: Iterable[Quarantined]) -> None:
    """Entries under `prefix`, in one transaction."""
    values = {_key(prefix, row.sample): _value(row) for row in rows}
    if values:
        store.put_many(values)


def read_rows(store: Store, prefix: str, source: str | None = None) -> list[Quarantined]:
    """Entries under `prefix`, or those of one source, ordered by (source, epoch, position)."""
    inside = prefix if source is None else f"{prefix}{quote(source, safe='')}/"
    return [_parse(key.removeprefix(prefix), value) for key, value in store.items(inside).items()]


def _key(prefix: str, sample: SampleId) -> str:
    # Numbers of fixed width, so that the order of keys is the order of samples.
    return f"{prefix}{quote(sample.source, safe='')}/{sample.epoch:08d}/{sample.position:014d}"


def _value(row: Quarantined) -> bytes:
    values = [row.row.shard, row.row.row, str(row.reason), row.detail]
    return json.dumps([*values, row.delivered, row.step, row.generation]).encode()


def _parse(name: str, value: bytes) -> Quarantined:
    shard, row, reason, detail, *later = json.loads(value)
    delivered, step, generation = (*later, None, None, None)[:3]  # an earlier version wrote less
    return Quarantined(_sample(name), RowRef(shard, row), reason, detail, bool(delivered), step, generation)


def _sample(name: str) -> SampleId:
    source, epoch, position = name.split("/")
    return SampleId(unquote(source), int(epoch), int(position))
