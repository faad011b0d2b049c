"""The plan log as commands read it: what was planned, from the store alone, with no planner running."""

from __future__ import annotations

from collections.abc import Iterator

from dataloader_client._pb import plan_pb2
from dataloader_svc.errors import StoreError
from dataloader_svc.planner.session import GENERATION_POINTER, Generation
from dataloader_svc.store.base import Store

_AT_ONCE = 64


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
