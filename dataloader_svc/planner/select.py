"""The pieces of the next step, and the sequences they make up. Pure: (rules, state, probes) -> step.

First in line is what waits from steps before; then samples are drawn by the mixture (`draw.py`). Of a step
that is given in sequences or tokens, until a little more than its tokens is there: a packer then fills
exactly `num_sequences` sequences, and what does not fit waits. Of one that is given in samples, until it has
exactly `num_samples`: all of them are packed, in as many sequences as they need, and nothing waits. Relaxed
strategies also let outliers wait for their like (`waiting.py`), and draw as much more.
The result never depends on which probes happen to be at hand: where one is missing, nothing is selected and
the missing block is named. Nothing here knows the mesh. `plan.py` makes the record of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from dataloader_balancers import PACKERS, Limit, pack_all
from dataloader_balancers.strategy.nodes import CONCATENATE
from dataloader_svc.config.methods import NONE
from dataloader_svc.planner.concatenate import Packed, concatenated, sequences_needed
from dataloader_svc.planner.draw import Draw
from dataloader_svc.planner.pieces import Pieces, SkippedRow
from dataloader_svc.planner.rules import Rules
from dataloader_svc.planner.state import SourceState, State
from dataloader_svc.planner.supply import Cursor, Lack, Supply
from dataloader_svc.planner.waiting import held, mean_delay, mixture_error

__all__ = ["Ended", "Needed", "Rules", "Selected", "select"]

PATIENT_STEPS = 2
"""What has waited this long is placed before all that is younger, oldest first: nothing waits for ever."""

GAP_SHARE = 0.1
"""Of what is overdrawn, the share that the packer gets to fill gaps with."""

_MOST_TRIES = 3

_MOST_DRAWS = 8
"""Each but the first is for what the one before left lacking, since outliers of it wait."""


@dataclass(frozen=True, slots=True, eq=False)
class Selected:
    """A step. Sequence i holds pieces [sequence_offsets[i], sequence_offsets[i+1]).

    skipped   (source, epoch, row) passed over since the step before
    state     after the step
    readmitted   (source, epoch, position) put in line before it was selected
    """

    step: int
    pieces: Pieces
    sequence_offsets: NDArray[np.int64]
    skipped: tuple[tuple[int, int, SkippedRow], ...]
    state: State
    metrics: Mapping[str, float]
    readmitted: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Needed:
    """Nothing was selected: these must be at hand first."""

    lacking: tuple[Lack, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """There is no such step. `last_batch: drop` leaves out so many tokens, of so many samples."""

    left_tokens: int
    left_samples: int


@dataclass(frozen=True, slots=True, eq=False)
class _Pool:
    """What a step is made of: waiting pieces, then drawn ones, with the steps that each has waited.

    sources, largest, ended   of the state after the step
    holds                     bool (n,) outliers, which wait whatever room there is
    """

    pieces: Pieces
    age: NDArray[np.int64]
    sources: Mapping[str, SourceState]
    skipped: tuple[tuple[int, int, SkippedRow], ...]
    largest: int
    ended: bool
    holds: NDArray[np.bool_]

    @property
    def free(self) -> int:
        """Tokens that do not wait for their like."""
        return int(self.pieces.length[~self.holds].sum())


def select(rules: Rules, state: State, supplies: Mapping[str, Supply]) -> Selected | Needed | Ended:
    """The step `state.step`. Raises DataError where a source has too many bad samples or none at all."""
    assert state.names == rules.names, "the state was adapted to the configuration"
    pool = _pool(rules, state, supplies)
    if isinstance(pool, Needed):
        return pool
    pieces, age = pool.pieces, pool.age
    if pool.ended and (not len(pieces) or (rules.last_batch == "drop" and not _is_full(rules, pieces, age))):
        return Ended(pieces.tokens, pieces.num_samples)
    packed = _concatenate(rules, pool) if rules.pack == CONCATENATE else _pack(rules, pool)
    after = replace(
        state,
        step=state.step + 1,
        sources=pool.sources,
        waiting=packed.waiting,
        age=packed.waiting_age + 1,
        largest=pool.largest,
        ended=pool.ended,
    )
    filled = packed.placed.tokens / ((len(packed.offsets) - 1) * rules.sequence_length)
    metrics = _metrics(rules, after, filled, mean_delay(packed.placed, packed.placed_age))
    return Selected(state.step, packed.placed, packed.offsets, pool.skipped, after, metrics)


def _pool(rules: Rules, state: State, supplies: Mapping[str, Supply]) -> _Pool | Needed:
    """What waits and what is drawn; where outliers wait, as many tokens more as they have.

    Each draw begins anew: what waited may go with what comes, and then less is lacking. A step never starves
    for what it holds back: of data that is nearly all outliers, the oldest fill it up.
    """
    beyond = 0
    for _ in range(_MOST_DRAWS):
        draw = _draw(rules, state, supplies, beyond)
        if isinstance(draw, Needed):
            return draw
        pool = _drawn(rules, state, draw)
        lacking = rules.wanted - pool.free
        if rules.wait is None or pool.ended or lacking <= 0:
            return pool
        beyond += lacking
    holding = np.flatnonzero(pool.holds)  # oldest first
    before = pool.free + np.cumsum(pool.pieces.length[holding]) - pool.pieces.length[holding]
    pool.holds[holding[before < rules.size]] = False
    return pool


def _drawn(rules: Rules, state: State, draw: Draw) -> _Pool:
    parts, sources, skipped = [state.waiting], {}, []
    for number, (name, cursor) in enumerate(zip(rules.names, draw.cursors, strict=True)):
        pieces, sources[name] = cursor.finished(number, state.sources[name], float(draw.credits[number]))
        parts.append(pieces)
        skipped += [(number, epoch, row) for epoch, row in cursor.skipped]
    pieces, ended = Pieces.concat(parts), state.ended or draw.ended
    age = np.concatenate([state.age, np.zeros(len(pieces) - len(state.age), np.int64)])
    holds = np.zeros(len(pieces), np.bool_)
    if rules.wait is not None and rules.num_sequences is not None and not ended:
        costs, mean = rules.llm_cost.of_documents(pieces.length), rules.size // rules.num_sequences
        longest = rules.sequence_length
        holds = held(rules.wait, pieces.length, age, costs, rules.num_sequences, mean, longest)
    return _Pool(pieces, age, sources, tuple(skipped), draw.largest, ended, holds)


def _draw(rules: Rules, state: State, supplies: Mapping[str, Supply], beyond: int) -> Draw | Needed:
    """The step's samples and `beyond` tokens more, drawn knowing what the step will draw in all where that
    matters.
    """
    expected = 0
    for _ in range(_MOST_TRIES):
        draw = _new_draw(rules, state, supplies, expected)
        lacking = [] if state.ended else draw.run(rules.wanted + beyond, rules.size)
        if lacking:
            return Needed(tuple(lacking))
        if draw.foreseen or draw.ended or draw.total == expected:
            break
        expected = draw.total
    return draw


def _new_draw(rules: Rules, state: State, supplies: Mapping[str, Supply], expected: int) -> Draw:
    repeat = rules.exhausted == "repeat"
    samples = sum(source.samples for source in state.sources.values())
    tokens = sum(source.tokens for source in state.sources.values())
    return Draw(
        cursors=[
            Cursor(supplies[name], source, rules.bad_limit[name], repeat=repeat)
            for name, source in state.sources.items()
        ],
        schedule=rules.schedule,
        step=state.step,
        credits=np.array([source.credit for source in state.sources.values()]),
        largest=state.largest,
        by_samples=rules.unit == "samples",
        in_samples=rules.num_samples is not None,
        mean=tokens / samples if samples else float(rules.sequence_length),
        drop=rules.exhausted == "drop",
        gone=np.zeros(len(rules.names), np.bool_),
        gathered=state.waiting.tokens if rules.num_samples is None else state.waiting.num_samples,
        expected=expected,
    )


def _is_full(rules: Rules, pool: Pieces, age: NDArray[np.int64]) -> bool:
    """Whether what is left makes a step as large as every other, in the unit that the user gave.

    In sequences: it needs as many as a step has, so that none is empty, however full the last one is.
    """
    if rules.batch_unit != "sequences":
        return rules.size <= (pool.tokens if rules.batch_unit == "tokens" else pool.num_samples)
    assert rules.num_sequences is not None, "the unit of a step's size"
    if pool.tokens > rules.size - rules.sequence_length:
        return True
    if rules.pack == CONCATENATE:
        return sequences_needed(pool, rules.uncut(pool), rules.sequence_length) >= rules.num_sequences
    needed = pack_all(rules.pack, pool.length, rules.sequence_length, **_preferences(rules, pool, age))
    return int(needed.max()) + 1 >= rules.num_sequences


def _concatenate(rules: Rules, pool: _Pool) -> Packed:
    """The pool in its order: nothing is held back, as a cut piece fills any gap."""
    taking_part = np.ones(len(pool.pieces), np.bool_)
    if rules.num_samples is not None:
        taking_part = pool.pieces.sample < rules.num_samples
    pieces, age = pool.pieces.take(taking_part), pool.age[taking_part]
    packed = concatenated(pieces, age, rules.uncut(pieces), rules.sequence_length, rules.num_sequences)
    rest = pool.pieces.take(~taking_part)
    waiting = Pieces.concat([packed.waiting, rest])
    return packed._replace(
        waiting=waiting, waiting_age=np.concatenate([packed.waiting_age, pool.age[~taking_part]])
    )


def _pack(rules: Rules, pool: _Pool) -> Packed:
    """By the packer, of whole pieces."""
    pieces, age = pool.pieces, pool.age
    taking_part = _taking_part(rules, pool)
    length = pieces.length[taking_part]
    preferences = _preferences(rules, pieces.take(taking_part), age[taking_part])
    if rules.pack == NONE:
        placed, count = np.arange(len(length), dtype=np.int32), len(length)
    elif rules.num_sequences is None:
        placed = pack_all(rules.pack, length, rules.sequence_length, **preferences)
        count = int(placed.max()) + 1
    else:
        count = rules.num_sequences
        placed = PACKERS[rules.pack](length, count, rules.sequence_length, **preferences)
    sequence = np.full(len(pieces), -1, np.int64)
    sequence[taking_part] = placed
    order = np.argsort(sequence, kind="stable")
    order = order[sequence[order] >= 0]  # by sequence, then in order of the pool: deterministic
    offsets = np.searchsorted(sequence[order], np.arange(count + 1))
    waits = np.flatnonzero(sequence < 0)
    return Packed(pieces.take(order), age[order], offsets.astype(np.int64), pieces.take(waits), age[waits])


def _taking_part(rules: Rules, pool: _Pool) -> NDArray[np.bool_]:
    """What the packer is given. Where more waits than a step takes, only the oldest take part.

    So it is with the rest of a very long document; and, of steps in samples, where a state comes from larger
    steps, or from steps in another unit.
    """
    if rules.num_samples is not None:
        return pool.pieces.sample < rules.num_samples
    free = ~pool.holds
    length = np.where(free, pool.pieces.length, 0)
    before = np.cumsum(length) - length
    taking_part = free & (before < rules.wanted)
    fixed = pool.age > 0
    if rules.wait is not None and rules.num_sequences is not None:
        # Outliers that go, go together: whatever came last, it is not they that are left over.
        costs = rules.llm_cost.of_documents(pool.pieces.length)
        together = free & (costs > costs[taking_part].sum() / rules.num_sequences)
        taking_part, fixed = taking_part | together, fixed | together
    return _hold_back(rules, pool.pieces.length, fixed, taking_part)


class _Preferences(TypedDict):
    """What packers are told beside lengths."""

    priority: NDArray[np.int64]
    costs: NDArray[np.float64]
    limits: Sequence[Limit]


def _preferences(rules: Rules, pieces: Pieces, age: NDArray[np.int64]) -> _Preferences:
    return _Preferences(
        priority=np.where(age >= PATIENT_STEPS, age, 0),
        costs=rules.llm_cost.of_documents(pieces.length),
        limits=rules.limits(pieces),
    )


def _hold_back(
    rules: Rules, length: NDArray[np.int64], fixed: NDArray[np.bool_], mask: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """`mask` without the longest pieces that are not `fixed`, as far as the packer has more than it needs.

    A packer leaves the smallest pieces over, hundreds of them, and all of them would stand in the state. It
    needs few to fill its gaps; of the rest of what was overdrawn, the longest wait, which are one or two.
    """
    spare = int(length[mask].sum()) - rules.size - int(rules.size * rules.overdraw * GAP_SHARE)
    new = np.flatnonzero(mask & ~fixed)
    new = new[np.argsort(length[new], kind="stable")]  # ascending: the longest that fits is found at once
    result = mask.copy()
    while len(new) and spare > 0:
        new = new[: int(np.searchsorted(length[new], spare, "right"))]
        if len(new):
            result[new[-1]] = False
            spare -= int(length[new[-1]])
            new = new[:-1]
    return result


def _metrics(rules: Rules, after: State, filled: float, delay: float) -> dict[str, float]:
    """Of the step: share of its sequences that is filled; what waits after it; steps that a token of it has
    waited; largest distance of what is drawn from the mixture, in samples, and of what is placed, as a share.
    """
    credits_ = [abs(source.credit) for source in after.sources.values()]
    return {
        "packing_efficiency": filled,
        "waiting_tokens": float(after.waiting.tokens),
        "waiting_steps": float(after.age.max()) if len(after.age) else 0.0,
        "delay_steps": delay,
        "mixture_deviation": max(credits_) / after.largest if after.largest else 0.0,
        "mixture_error": mixture_error(after, by_samples=rules.unit == "samples"),
    }
