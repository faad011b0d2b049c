"""The plan log as it looks from its end: what was planned, from the store alone, with no planner running.

A log lives in generations (`session.py`). The current one counts; steps before its base are those of the
generation that it branched from, where that can be told.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from dataloader_client._pb import plan_pb2
from dataloader_client._pb.control_service_pb2 import LossesRequest
from dataloader_svc.config.digest import first_name
from dataloader_svc.errors import StoreError
from dataloader_svc.planner.change import Change
from dataloader_svc.planner.plan import Plan
from dataloader_svc.planner.session import GENERATION_POINTER, Generation
from dataloader_svc.planner.state import State
from dataloader_svc.store.base import Store

_AT_ONCE = 64
_NO_CAP = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Steps `first` to `stop` - 1 of the log are those of `generation`; before `kept` they were removed."""

    generation: Generation
    first: int
    stop: int
    kept: int = 0


def current_generation(store: Store) -> Generation | None:
    """The generation that plans are made in, or None before the first join."""
    pointer = store.get(GENERATION_POINTER)
    if pointer is None:
        return None
    value = store.get(Generation.key(int(pointer)))
    if value is None:
        raise StoreError(f"the store names generation {int(pointer)}, which it does not have")
    return Generation.from_json(value)


def read_records(store: Store, generation: Generation | None = None) -> Iterator[plan_pb2.PlanRecord]:
    """The records of a generation's log, by step; of the current one by default."""
    generation = generation or current_generation(store)
    if generation is None:
        return
    start = generation.base.step
    while rows := store.read(generation.log, start, _AT_ONCE):
        for _, data in rows:
            yield plan_pb2.PlanRecord.FromString(data)
        start = rows[-1][0] + 1


def read_changes(store: Store, generation: Generation) -> tuple[Change, ...]:
    """The changes of the mixture in a generation, as they came. Blocks."""
    changes, start = list(generation.changes), 0
    while rows := store.read(generation.mixture_log, start, _AT_ONCE):
        changes += (Change.from_json(json.loads(value)) for _, value in rows)
        start = rows[-1][0] + 1
    return tuple(changes)


def read_losses(store: Store, log: str) -> list[tuple[int, LossesRequest]]:
    """What ranks reported to have lost, by number, as it came. Blocks."""
    found: list[tuple[int, LossesRequest]] = []
    while rows := store.read(log, found[-1][0] + 1 if found else 0, _AT_ONCE):
        found += ((number, LossesRequest.FromString(value)) for number, value in rows)
    return found


def lineage(store: Store) -> tuple[Part, ...]:
    """The history of the current generation: newest part first, without gaps. Empty before the first join."""
    current = current_generation(store)
    if current is None:
        return ()
    last = store.last(current.log)
    stop = current.base.step if last is None else last[0] + 1
    parts = [_part(store, current, stop)]
    while parts[-1].first > 0:
        before = branched_from(store, parts[-1].generation)
        if before is None:
            break
        parts.append(_part(store, before, parts[-1].first))
    return tuple(parts)


def _part(store: Store, generation: Generation, stop: int) -> Part:
    rows = store.read(generation.log, 0, 1)
    kept = rows[0][0] if rows else generation.base.step
    return Part(generation, generation.base.step, stop, min(kept, stop))


def branched_from(store: Store, generation: Generation) -> Generation | None:
    """The newest earlier generation that reached this one's base; None for a state from somewhere else.

    Written down when the generation begins, since the record that shows it may be removed later. Blocks.
    """
    if generation.origin is not None:
        value = store.get(Generation.key(generation.origin)) if generation.origin else None
        return None if value is None else Generation.from_json(value)
    base = generation.base
    for number in range(generation.number - 1, 0, -1):
        value = store.get(Generation.key(number))
        if value is None:
            continue
        earlier = Generation.from_json(value)
        if earlier.base.step == base.step and same_place(earlier.base, base):
            return branched_from(store, earlier)
        rows = store.read(earlier.log, base.step - 1, 1) if earlier.base.step < base.step else []
        there = bool(rows) and rows[0][0] == base.step - 1
        if there and same_place(Plan.from_bytes(rows[0][1], _NO_CAP).state, base):
            return earlier
    return None


def same_place(one: State, other: State) -> bool:
    """Whether both have read the same; settings may differ, and sources be added, removed or renamed."""
    places = [
        {first_name(state.config, name): (at.epoch, at.position) for name, at in state.sources.items()}
        for state in (one, other)
    ]
    shared = places[0].keys() & places[1].keys()
    return (
        bool(shared)
        and one.readmitted == other.readmitted
        and all(places[0][name] == places[1][name] for name in shared)
    )
