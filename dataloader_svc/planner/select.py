"""The pieces of the next step, and the sequences they make up. Pure: (rules, state, probes) -> step.

First in line is what waits from steps before; then samples are drawn by the mixture (`draw.py`) until a
little more than a step's tokens is there; then a packer fills exactly `num_sequences` sequences. What does
not fit waits. The result never depends on which probes happen to be at hand: where one is missing, nothing is
selected and the missing block is named. Nothing here knows the mesh. `plan.py` makes the record of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from dataloader_balancers import PACKERS, LlmCost
from dataloader_svc.config.schema import Config
from dataloader_svc.errors import ConfigError
from dataloader_svc.planner.draw import Draw
from dataloader_svc.planner.mixture import Schedule
from dataloader_svc.planner.pieces import Pieces, SkippedRow, TooLong
from dataloader_svc.planner.state import State
from dataloader_svc.planner.supply import BadLimit, Cursor, Lack, Supply
from dataloader_svc.registry import nearest

PATIENT_STEPS = 2
"""What has waited this long is placed before all that is younger, oldest first: nothing waits for ever."""

GAP_SHARE = 0.1
"""Of what is overdrawn, the share that the packer gets to fill gaps with."""

_MOST_TRIES = 3


@dataclass(frozen=True, slots=True)
class Rules:
    """What of the configuration decides which pieces make up a step. `names` are sorted."""

    names: tuple[str, ...]
    schedule: Schedule
    unit: Literal["tokens", "samples"]
    exhausted: Literal["repeat", "stop", "drop"]
    sequence_length: int
    num_sequences: int
    overdraw: float
    pack: str
    llm_cost: LlmCost
    last_batch: Literal["pad", "drop"]
    too_long: Mapping[str, TooLong]
    bad_limit: Mapping[str, BadLimit]

    @classmethod
    def of(cls, config: Config) -> Self:
        """Raises ConfigError for a packer or cost preset that does not exist."""
        names = tuple(sorted(config.sources))
        pack = config.strategy.pack
        if pack not in PACKERS:
            known = sorted(PACKERS)
            raise ConfigError(
                f"strategy.pack: unknown packer {pack!r}; known: {', '.join(known)}{nearest(pack, known)}"
            )
        return cls(
            names=names,
            schedule=Schedule.of(config.mixture.schedule, names),
            unit=config.mixture.unit,
            exhausted=config.mixture.exhausted,
            sequence_length=config.sequence_length,
            num_sequences=config.num_sequences,
            overdraw=config.strategy.overdraw,
            pack=pack,
            llm_cost=llm_cost(config),
            last_batch=config.last_batch,
            too_long={name: source.too_long for name, source in config.sources.items()},
            bad_limit={
                name: BadLimit(source.max_bad_fraction, source.max_bad_minimum)
                for name, source in config.sources.items()
            },
        )

    @property
    def capacity(self) -> int:
        """Tokens of a full step."""
        return self.num_sequences * self.sequence_length

    @property
    def wanted(self) -> int:
        """Tokens that are gathered for a step."""
        return int(self.capacity * (1 + self.overdraw))


def llm_cost(config: Config) -> LlmCost:
    """The configured cost of a document. Raises ConfigError for an unknown preset."""
    cost = config.strategy.cost.llm
    if cost.model is None:
        return LlmCost(cost.linear or 0.0, cost.quadratic or 0.0)
    try:
        return LlmCost.preset(cost.model)
    except ValueError as error:
        raise ConfigError(f"strategy.cost.llm.model: {error}") from None


@dataclass(frozen=True, slots=True, eq=False)
class Selected:
    """A step. Sequence i holds pieces [sequence_offsets[i], sequence_offsets[i+1]).

    skipped   (source, epoch, row) passed over since the step before
    state     after the step
    """

    step: int
    pieces: Pieces
    sequence_offsets: NDArray[np.int64]
    skipped: tuple[tuple[int, int, SkippedRow], ...]
    state: State
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Needed:
    """Nothing was selected: these must be at hand first."""

    lacking: tuple[Lack, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """There is no such step. `left_tokens` is what `last_batch: drop` leaves out."""

    left_tokens: int


def select(rules: Rules, state: State, supplies: Mapping[str, Supply]) -> Selected | Needed | Ended:
    """The step `state.step`. Raises DataError where a source has too many bad samples or none at all."""
    assert state.names == rules.names, "the state was adapted to the configuration"
    draw = _draw(rules, state, supplies)
    if isinstance(draw, Needed):
        return draw
    parts, sources, skipped = [state.waiting], {}, []
    for number, (name, cursor) in enumerate(zip(rules.names, draw.cursors, strict=True)):
        pieces, sources[name] = cursor.finished(number, state.sources[name], float(draw.credits[number]))
        parts.append(pieces)
        skipped += [(number, epoch, row) for epoch, row in cursor.skipped]
    pool = Pieces.concat(parts)
    ended = state.ended or draw.ended
    if ended and (not len(pool) or (rules.last_batch == "drop" and pool.tokens < rules.capacity)):
        return Ended(pool.tokens)
    age = np.concatenate([state.age, np.zeros(len(pool) - len(state.age), np.int64)])
    placed, offsets, waits = _pack(rules, pool, age)
    after = replace(
        state,
        step=state.step + 1,
        sources=sources,
        waiting=pool.take(waits),
        age=age[waits] + 1,
        largest=draw.largest,
        ended=ended,
    )
    metrics = _metrics(rules, after, placed.tokens)
    return Selected(state.step, placed, offsets, tuple(skipped), after, metrics)


def _draw(rules: Rules, state: State, supplies: Mapping[str, Supply]) -> Draw | Needed:
    """The step's samples, drawn knowing what the step will draw in all where that matters."""
    expected = 0
    for _ in range(_MOST_TRIES):
        draw = _new_draw(rules, state, supplies, expected)
        lacking = [] if state.ended else draw.run(rules.wanted, rules.capacity)
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
        mean=tokens / samples if samples else float(rules.sequence_length),
        drop=rules.exhausted == "drop",
        gone=np.zeros(len(rules.names), np.bool_),
        tokens=state.waiting.tokens,
        expected=expected,
    )


def _pack(
    rules: Rules, pool: Pieces, age: NDArray[np.int64]
) -> tuple[Pieces, NDArray[np.int64], NDArray[np.int64]]:
    """Placed pieces grouped by sequence, offsets of the sequences, and which of the pool wait, in order.

    Where more waits than a step takes (the rest of a very long document), only the oldest take part.
    """
    before = np.cumsum(pool.length) - pool.length
    taking_part = _hold_back(rules, pool.length, age, before < rules.wanted)
    length, waited = pool.length[taking_part], age[taking_part]
    sequence = np.full(len(pool), -1, np.int64)
    sequence[taking_part] = PACKERS[rules.pack](
        length,
        rules.num_sequences,
        rules.sequence_length,
        priority=np.where(waited >= PATIENT_STEPS, waited, 0),
        costs=rules.llm_cost.of_documents(length),
    )
    order = np.argsort(sequence, kind="stable")
    order = order[sequence[order] >= 0]  # by sequence, then in order of the pool: deterministic
    offsets = np.searchsorted(sequence[order], np.arange(rules.num_sequences + 1))
    return pool.take(order), offsets.astype(np.int64), np.flatnonzero(sequence < 0)


def _hold_back(
    rules: Rules, length: NDArray[np.int64], age: NDArray[np.int64], mask: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """`mask` without the longest new pieces, as far as the packer has more than it needs.

    A packer leaves the smallest pieces over, hundreds of them, and all of them would stand in the state. It
    needs few to fill its gaps; of the rest of what was overdrawn, the longest wait, which are one or two.
    """
    spare = int(length[mask].sum()) - rules.capacity - int(rules.capacity * rules.overdraw * GAP_SHARE)
    new = np.flatnonzero(mask & (age == 0))
    new = new[np.argsort(length[new], kind="stable")]  # ascending: the longest that fits is found at once
    result = mask.copy()
    while len(new) and spare > 0:
        new = new[: int(np.searchsorted(length[new], spare, "right"))]
        if len(new):
            result[new[-1]] = False
            spare -= int(length[new[-1]])
            new = new[:-1]
    return result


def _metrics(rules: Rules, after: State, placed_tokens: int) -> dict[str, float]:
    """Of the step: share of the capacity that is filled; what waits; largest distance from the mixture."""
    credits_ = [abs(source.credit) for source in after.sources.values()]
    return {
        "packing_efficiency": placed_tokens / rules.capacity,
        "waiting_tokens": float(after.waiting.tokens),
        "waiting_steps": float(after.age.max()) if len(after.age) else 0.0,
        "mixture_deviation": max(credits_) / after.largest if after.largest else 0.0,
    }
