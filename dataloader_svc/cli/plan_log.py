"""The steps that the plan log holds, for commands that look back: from the store alone, whoever runs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from dataloader_balancers import segment_sum
from dataloader_svc.errors import StateError
from dataloader_svc.planner.history import Part, lineage
from dataloader_svc.planner.plan import Plan
from dataloader_svc.planner.session import SESSION_KEY, Generation, Session
from dataloader_svc.planner.state import State
from dataloader_svc.store.base import Store

_NO_CAP = 2**31 - 1
_KEEP = "planner.keep says how many stay"


class NoPlans(StateError):
    """Nothing was planned yet."""


@dataclass(frozen=True, slots=True, eq=False)
class PlanLog:
    """parts: newest first, without gaps between them. session: what the ranks agreed on last, if anything."""

    store: Store
    parts: tuple[Part, ...]
    session: Session | None

    @classmethod
    def of(cls, store: Store) -> Self:
        """What a store holds. NoPlans where that is nothing."""
        parts = lineage(store)
        if not parts:
            raise NoPlans("nothing was planned in it yet: no trainer has joined")
        value = store.get(SESSION_KEY)
        session = None if value is None else Session.from_json(value)
        return cls(store, parts, session)

    def words(self) -> str:
        """`it has steps 0 to 12`."""
        first, stop = self.parts[-1].first, self.parts[0].stop
        if stop == first:
            return "it has no step yet"
        kept = self.kept
        there = f"it has steps {kept} to {stop - 1}" if stop - kept > 1 else f"it has step {kept} alone"
        if kept > first:
            there += f"; those before were removed after the trainers had committed later ones ({_KEEP})"
        return there

    @property
    def kept(self) -> int:
        """The first step from which on all records are there."""
        kept = self.parts[0].kept
        for newer, part in itertools.pairwise(self.parts):
            if newer.kept > newer.first or part.kept == part.stop > part.first:
                break
            kept = part.kept
        return kept

    @property
    def begins(self) -> tuple[int, State]:
        """The first step of which the state before it is known, too, and that state."""
        if self.kept == self.parts[-1].first:
            return self.kept, self.parts[-1].generation.base
        return self.kept + 1, self.read(self.kept, _NO_CAP)[1].state

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
        if step in range(self.parts[-1].first, self.kept):
            raise StateError(f"step {step} is not in the plan log any more: {self.words()}")
        raise StateError(f"step {step} is not in the plan log: {self.words()}")
