"""The steps that the plan log holds, for commands that look back: from the store alone, whoever runs.

A log lives in generations (`planner/session.py`). The current one counts; steps before its base are those of
the generation that it branched from, where that can be told.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from dataloader_balancers import segment_sum
from dataloader_svc.errors import StateError
from dataloader_svc.planner.history import current_generation
from dataloader_svc.planner.plan import Plan
from dataloader_svc.planner.session import SESSION_KEY, Generation, Session
from dataloader_svc.planner.state import State
from dataloader_svc.store.base import Store

_NO_CAP = 2**31 - 1


class NoPlans(StateError):
    """Nothing was planned yet."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Steps `first` to `stop` - 1 of the log are those of `generation`."""

    generation: Generation
    first: int
    stop: int


@dataclass(frozen=True, slots=True, eq=False)
class PlanLog:
    """parts: newest first, without gaps between them. session: what the ranks agreed on last, if anything."""

    store: Store
    parts: tuple[Part, ...]
    session: Session | None

    @classmethod
    def of(cls, store: Store) -> Self:
        """What a store holds. NoPlans where that is nothing."""
        current = current_generation(store)
        if current is None:
            raise NoPlans("nothing was planned in it yet: no trainer has joined")
        value = store.get(SESSION_KEY)
        session = None if value is None else Session.from_json(value)
        last = store.last(current.log)
        parts = [Part(current, current.base.step, current.base.step if last is None else last[0] + 1)]
        while parts[-1].first > 0:
            before = _branched_from(store, parts[-1].generation)
            if before is None:
                break
            parts.append(Part(before, before.base.step, parts[-1].first))
        return cls(store, tuple(parts), session)

    def words(self) -> str:
        """`it has steps 0 to 12`."""
        first, stop = self.parts[-1].first, self.parts[0].stop
        if stop == first:
            return "it has no step yet"
        return f"it has steps {first} to {stop - 1}" if stop - first > 1 else f"it has step {first} alone"

    def read(self, step: int, sequence_length: int) -> tuple[Generation, Plan]:
        """The plan of a step, and whose it is. StateError, with the steps that are there, where it isn't.

        `sequence_length` is the configured one; a step that was planned with a longer one keeps its own.
        """
        for part in self.parts:
            if part.first <= step < part.stop:
                rows = self.store.read(part.generation.log, step, 1)
                if rows and rows[0][0] == step:
                    # The caps of then are not those of now.
                    plan = Plan.from_bytes(rows[0][1], _NO_CAP)
                    longest = int(np.max(segment_sum(plan.pieces.length, plan.sequence_offsets), initial=0))
                    return part.generation, replace(plan, sequence_length=max(sequence_length, longest))
        raise StateError(f"step {step} is not in the plan log: {self.words()}")


def _branched_from(store: Store, generation: Generation) -> Generation | None:
    """The newest earlier generation that reached this one's base; None for a state from somewhere else."""
    base = generation.base
    for number in range(generation.number - 1, 0, -1):
        value = store.get(Generation.key(number))
        if value is None:
            continue
        earlier = Generation.from_json(value)
        if earlier.base.step == base.step and _same_place(earlier.base, base):
            return _branched_from(store, earlier)
        rows = store.read(earlier.log, base.step - 1, 1) if earlier.base.step < base.step else []
        there = bool(rows) and rows[0][0] == base.step - 1
        if there and _same_place(Plan.from_bytes(rows[0][1], _NO_CAP).state, base):
            return earlier
    return None


def _same_place(one: State, other: State) -> bool:
    """Whether both have read the same; a branch may have other settings, and sources added or removed."""
    shared = one.sources.keys() & other.sources.keys()
    return bool(shared) and all(
        (one.sources[name].epoch, one.sources[name].position)
        == (other.sources[name].epoch, other.sources[name].position)
        for name in shared
    )
