"""Changes that people make to a state by hand, and what each does to "every position once". Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from dataloader_svc.errors import StateError
from dataloader_svc.planner.pieces import Pieces
from dataloader_svc.planner.state import SourceState, State
from dataloader_svc.registry import nearest


@dataclass(frozen=True, slots=True)
class Move:
    """Read `source` from here on: all before `position` of `epoch` counts as delivered, nothing after."""

    source: str
    epoch: int
    position: int


def moved(state: State, moves: Iterable[Move]) -> tuple[State, list[str]]:
    """The state with sources at other places, and what that repeats or leaves out.

    What waits of a moved source is dropped where it lies at or after its new place, since it will be drawn
    again. StateError: no such source.
    """
    notes: list[str] = []
    for move in moves:
        source = _source(state, move.source)
        before, after = (source.epoch, source.position), (move.epoch, move.position)
        if before == after:
            continue
        verb = "repeated" if after < before else "never delivered"
        low, high = sorted([before, after])
        span = f"epoch {low[0]} position {low[1]} up to epoch {high[0]} position {high[1]}"
        notes.append(f"{move.source}: {span} is {verb}")
        state, dropped = _without_waiting(state, move.source, after)
        if dropped:
            notes.append(f"{move.source}: {dropped} waiting pieces are dropped; they will be drawn again")
        placed = replace(source, epoch=move.epoch, position=move.position)
        state = replace(state, sources={**state.sources, move.source: placed}, ended=False)
    return state, notes


def without(state: State, names: Iterable[str]) -> tuple[State, list[str]]:
    """The state without sources, as after a configuration that had left them out."""
    notes: list[str] = []
    for name in names:
        source = _source(state, name)
        if len(state.sources) == 1:
            raise StateError(f"{name!r} is the only source of the state: start without a state instead")
        state, dropped = _without_waiting(state, name, (0, 0))
        if dropped:
            notes.append(f"{name}: {dropped} waiting pieces are dropped, never delivered")
        notes.append(f"{name}: if it comes back, it starts at its first sample")
        rest = {other: entry for other, entry in state.sources.items() if other != name}
        # What it was owed is shared out, so that the debts of all sources sum to nothing.
        share = source.credit / len(rest)
        rest = {other: replace(entry, credit=entry.credit + share) for other, entry in rest.items()}
        kept = np.array([other != name for other in state.sources])
        renumbered = np.cumsum(kept) - 1
        waiting = replace(state.waiting, source=renumbered[state.waiting.source].astype(np.int64))
        of_it = (f"source/{name}", f"was/{name}")
        config = {entry: digest for entry, digest in state.config.items() if entry not in of_it}
        state = replace(state, sources=rest, waiting=waiting, config=config)
    return state, notes


def without_waiting(state: State) -> tuple[State, list[str]]:
    """The state without the pieces that are drawn and not placed."""
    count = len(state.waiting)
    if not count:
        return state, []
    tokens = int(np.sum(state.waiting.length))
    empty = replace(state, waiting=Pieces.empty(), age=np.empty(0, np.int64))
    return empty, [f"{count} waiting pieces with {tokens} tokens are dropped, never delivered"]


def differences(before: State, after: State) -> list[tuple[str, str, str]]:
    """(what, before, after) of all that differs; sources by their fields, in the order of names."""
    rows = [
        (name, str(getattr(before, name)), str(getattr(after, name)))
        for name in ("job", "seed", "step", "largest", "ended", "readmitted", "mixture", "skips")
        if getattr(before, name) != getattr(after, name)
    ]
    for name in sorted({*before.sources, *after.sources}):
        old, new = before.sources.get(name), after.sources.get(name)
        if old is None or new is None:
            rows.append(
                (name, "absent" if old is None else "present", "absent" if new is None else "present")
            )
            continue
        rows += [
            (f"{name}.{field}", str(getattr(old, field)), str(getattr(new, field)))
            for field in SourceState.__dataclass_fields__
            if getattr(old, field) != getattr(new, field)
        ]
    if before.to_json() != after.to_json() and _waits(before) != _waits(after):
        rows.append(("waiting", _waits(before), _waits(after)))
    for name in sorted({*before.config, *after.config}):
        old_digest, new_digest = before.config.get(name, "absent"), after.config.get(name, "absent")
        if old_digest != new_digest:
            rows.append((f"config.{name}", old_digest, new_digest))
    return rows


def _waits(state: State) -> str:
    return f"{len(state.waiting)} pieces, {int(np.sum(state.waiting.length))} tokens"


def _source(state: State, name: str) -> SourceState:
    if name not in state.sources:
        known = list(state.names)
        raise StateError(f"the state has no source {name!r}; it has {', '.join(known)}{nearest(name, known)}")
    return state.sources[name]


def _without_waiting(state: State, name: str, start: tuple[int, int]) -> tuple[State, int]:
    """Without what waits of a source from a place on; how many pieces that were."""
    waiting = state.waiting
    late = (waiting.epoch > start[0]) | ((waiting.epoch == start[0]) & (waiting.position >= start[1]))
    gone = late & (waiting.source == state.names.index(name))
    return replace(state, waiting=waiting.take(~gone), age=state.age[~gone]), int(np.sum(gone))
