"""Every strategy on the same steps: how even the ranks are, how far from the floor, how long a step takes.

Pure but for a clock that is handed in. Work comes from a file of lengths (`simulate_files.py`) or a job's
plans (`simulate_plans.py`); a trace, whose times are measured and not predicted, has `simulate_trace.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataloader_balancers import (
    BALANCERS,
    floor,
    gap,
    hybrid,
    imbalance,
    loads,
    remedies,
    simulate_step,
    two_phase_lpt,
)
from dataloader_balancers.assign import Ranks, order_microbatches, place, two_placements
from dataloader_svc.cli.simulate_waiting import waited
from dataloader_svc.cli.simulate_work import Floats, Work
from dataloader_svc.errors import ConfigError

__all__ = ["Layout", "Outcome", "Placed", "Row", "Work", "compare", "in_groups", "strategies"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Of the job. `equal_counts`: each dp rank gets as many items as any other.

    group_size   ranks that balance among themselves; None: all
    chunks       parts of the model on each pipeline stage; 1: plain 1F1B
    """

    dp: int
    cp: int = 1
    pp: int = 1
    group_size: int | None = None
    chunks: int = 1
    equal_counts: bool = False

    def __post_init__(self) -> None:
        if self.group_size is not None and self.dp % self.group_size:
            raise ConfigError(
                f"--group-size {self.group_size} does not divide --dp {self.dp}: groups are of equal size"
            )

    def __str__(self) -> str:
        group = f",group={self.group_size}" if self.group_size else ""
        return f"dp={self.dp},cp={self.cp},pp={self.pp}{group}"


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """Items as a strategy has them, which may be parts of those given, and the ranks of their two phases.

    llm, encoder              float64 (k,)
    llm_rank, encoder_rank    int (k,)
    """

    llm: Floats
    encoder: Floats
    llm_rank: NDArray[np.int32]
    encoder_rank: NDArray[np.int32]


_CUT_TO = (1.0, 0.5, 0.25)  # of an equal share of the step
_CUT_GAIN = 0.02  # of max / mean, for which it is worth to cut finer

Strategy = Callable[[Work, int, int | None], Placed]
"""(work, ranks, most items of a rank) -> placement."""

Declared = Callable[[Sequence[Work], Layout], tuple[Sequence[Work], Sequence[Placed]]]
"""(steps, layout) -> the steps as it has them, and their placements."""


def strategies() -> dict[str, Strategy]:
    """By name, in the order of the tables: what one does without planning, then the better."""
    by_cost = {name: _by_cost(name) for name in BALANCERS if name != "arrival"}
    return {
        "arrival": _arrival,
        "tokens": _tokens,
        **by_cost,
        "two_phase": _two_phase,
        "place": _place,
        "two_placements": _two_placements,
        "cut": _cut,
        "hybrid": _hybrid,
    }


MEANINGS = {
    "arrival": "item i on rank i mod dp, as a DistributedSampler has it",
    "tokens": "as many tokens on all ranks, longest first",
    "two_phase": "one placement, LLM and encoder at once, greedily",
    "place": "the same, then a search",
    "two_placements": "pictures may be encoded on another rank than their tokens",
    "cut": "place, items dearer than an equal share cut over as many ranks as bring them there",
    "hybrid": "by LLM cost, each item on a range of as many ranks as its share takes",
    "waiting": "place, and outliers wait for their like (relaxed)",
    "job": "as configured",
    "declared": "--strategy",
}


def _both(work: Work, rank: NDArray[np.int32]) -> Placed:
    return Placed(work.llm, work.encoder, rank, rank)


def _arrival(work: Work, ranks: int, per_rank: int | None) -> Placed:
    return _both(work, BALANCERS["arrival"](work.llm, ranks, per_rank))


def _tokens(work: Work, ranks: int, per_rank: int | None) -> Placed:
    return _both(work, BALANCERS["lpt"](work.tokens.astype(np.float64), ranks, per_rank))


def _by_cost(name: str) -> Strategy:
    def by_cost(work: Work, ranks: int, per_rank: int | None) -> Placed:
        return _both(work, BALANCERS[name](work.llm, ranks, per_rank))

    return by_cost


def _two_phase(work: Work, ranks: int, per_rank: int | None) -> Placed:
    return _both(work, two_phase_lpt(work.llm, work.encoder, ranks, per_rank))


def _place(work: Work, ranks: int, per_rank: int | None) -> Placed:
    return _both(work, place(np.stack([work.encoder, work.llm]), Ranks(ranks, per_rank=per_rank)))


def _two_placements(work: Work, ranks: int, per_rank: int | None) -> Placed:
    both = two_placements(work.llm, work.encoder, ranks, per_rank=per_rank)
    return Placed(work.llm, work.encoder, both.llm, both.encoder)


def _cut(work: Work, ranks: int, per_rank: int | None) -> Placed:  # noqa: ARG001 - parts have no count
    """Of cuts to an equal share and to parts of it the coarsest that comes near to even. A rank that is given
    two parts of an item simply has both.
    """
    best: tuple[float, Placed] | None = None
    mean = float(work.llm.sum()) / ranks
    for share in _CUT_TO:
        parts = np.ones(len(work.llm), np.int64)
        if mean > 0:
            parts = np.clip(np.ceil(work.llm / (share * mean) - 1e-9), 1, ranks).astype(np.int64)
        llm, encoder = (np.repeat(costs / parts, parts) for costs in (work.llm, work.encoder))
        rank = place(np.stack([encoder, llm]), ranks)
        worst = max(imbalance(loads(costs, rank, ranks)) for costs in (llm, encoder))
        if best is None or worst < best[0] - _CUT_GAIN:
            best = worst, Placed(llm, encoder, rank, rank)
        if worst <= 1 + _CUT_GAIN:
            break
    assert best is not None, "the first share is tried"
    return best[1]


def _hybrid(work: Work, ranks: int, per_rank: int | None) -> Placed:  # noqa: ARG001 - numbers are unequal
    """Waiting for other ranks of a ring does not show in the loads; it is small, for wide items go first."""
    tokens = np.maximum(work.tokens, 1)
    plan = hybrid(tokens, ranks, int(tokens.max(initial=1)), work.llm)
    parts = plan.num_ranks
    offset = np.arange(int(parts.sum())) - np.repeat(np.cumsum(parts) - parts, parts)
    rank = (np.repeat(plan.first_rank, parts) + offset).astype(np.int32)
    return Placed(np.repeat(work.llm / parts, parts), np.repeat(work.encoder / parts, parts), rank, rank)


def in_groups(strategy: Strategy, work: Work, layout: Layout, per_rank: int | None) -> Placed:
    """The strategy among the ranks of each group, with the items that arrive there."""
    size = layout.group_size or layout.dp
    arrives = np.arange(len(work.llm)) % layout.dp // size
    parts = []
    for group in range(layout.dp // size):
        mine = arrives == group
        part = strategy(Work(work.llm[mine], work.encoder[mine], work.tokens[mine]), size, per_rank)
        first = np.int32(group * size)
        parts.append(Placed(part.llm, part.encoder, part.llm_rank + first, part.encoder_rank + first))
    return Placed(
        np.concatenate([part.llm for part in parts]),
        np.concatenate([part.encoder for part in parts]),
        np.concatenate([part.llm_rank for part in parts]),
        np.concatenate([part.encoder_rank for part in parts]),
    )


@dataclass(frozen=True, slots=True)
class Row:
    """A strategy's figures, means over steps.

    llm, encoder    max / mean over ranks of the phase's work
    gap_to_floor    dearest rank of the language model over the floor of the items as placed, minus 1
    seconds         to plan a step
    slowdown        time of a step over that of equal work on the same ranks
    idle            share of the devices' time without work; `bubble`: of that, inside pipelines
    delay           steps that a token had waited, mean; `oldest`: the most that an item had
    """

    llm: float
    encoder: float
    gap_to_floor: float
    seconds: float
    slowdown: float
    idle: float
    bubble: float
    delay: float = 0.0
    oldest: int = 0

    def as_json(self) -> dict[str, float]:
        """By name."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Outcome:
    """All strategies on some steps.

    floor     {"llm", "encoder"}: least max / mean of any placement of the items, mean over steps
    bindings  reason of the LLM's floor -> steps
    remedies  what would help most where the placement does not: name -> (steps, mean share of time spared)
    """

    layout: Layout
    steps: int
    items: int
    rows: Mapping[str, Row]
    floor: Mapping[str, float]
    bindings: Mapping[str, int]
    remedies: Mapping[str, tuple[int, float]]

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "layout": {name: getattr(self.layout, name) for name in self.layout.__slots__},
            "steps": self.steps,
            "items_per_step": self.items,
            "strategies": {name: row.as_json() for name, row in self.rows.items()},
            "floor": dict(self.floor),
            "binding": dict(self.bindings),
            "remedies": {
                name: {"steps": count, "gain": gain} for name, (count, gain) in self.remedies.items()
            },
        }


def compare(
    steps: Sequence[Work],
    layout: Layout,
    clock: Callable[[], float],
    advance: Callable[[], None] = lambda: None,
    more: Mapping[str, Declared] | None = None,
) -> Outcome:
    """Place every step by every strategy. `clock` gives seconds; `advance` is called after each strategy.
    `more`: others, which make steps of their own.
    """
    rows = {}
    for name, strategy in strategies().items():
        rows[name] = _row(name, strategy, steps, layout, clock)
        advance()
    began = clock()
    stream = waited(steps, layout.dp)
    if stream.steps:
        seconds = (clock() - began) / len(stream.steps)
        row = _row("waiting", _place, stream.steps, layout, clock)
        rows["waiting"] = replace(
            row, seconds=row.seconds + seconds, delay=stream.delay, oldest=stream.oldest
        )
    for name, declared in (more or {}).items():
        began = clock()
        made, placements = declared(steps, layout)
        rows[name] = _figures(name, made, placements, layout, (clock() - began) / len(steps))
    floors = [[floor(costs, layout.dp) for costs in (work.llm, work.encoder)] for work in steps]
    found: dict[str, list[float]] = {}
    for work in steps:
        for best in remedies(work.llm, layout.dp, per_rank=_per_rank(work, layout), strict=False)[:1]:
            found.setdefault(best.name, []).append(best.gain)
    return Outcome(
        layout,
        len(steps),
        round(float(np.mean([len(work.llm) for work in steps]))),
        rows,
        {
            phase: float(
                np.mean(
                    [
                        bounds[number].imbalance(float(costs.sum()) / layout.dp)
                        for bounds, costs in zip(
                            floors, ((work.llm, work.encoder)[number] for work in steps), strict=True
                        )
                    ]
                )
            )
            for number, phase in enumerate(("llm", "encoder"))
        },
        Counter(llm.binding for llm, _ in floors),
        {name: (len(gains), float(np.mean(gains))) for name, gains in found.items()},
    )


def _per_rank(work: Work, layout: Layout) -> int | None:
    return -(-len(work.llm) // layout.dp) if layout.equal_counts else None


def _row(
    name: str, strategy: Strategy, steps: Sequence[Work], layout: Layout, clock: Callable[[], float]
) -> Row:
    began = clock()
    placements = [in_groups(strategy, work, layout, _per_rank(work, layout)) for work in steps]
    return _figures(name, steps, placements, layout, (clock() - began) / len(steps))


def _figures(
    name: str, steps: Sequence[Work], placements: Sequence[Placed], layout: Layout, seconds: float
) -> Row:
    figures = []
    for placed in placements:
        llm = loads(placed.llm, placed.llm_rank, layout.dp)
        encoder = loads(placed.encoder, placed.encoder_rank, layout.dp)
        figures.append((imbalance(llm), imbalance(encoder), gap(llm, floor(placed.llm, layout.dp))))
    slowdown, idle, bubble = _times(steps, placements, layout, in_order=name == "arrival")
    llm_ratio, encoder_ratio, gap_to_floor = np.mean(figures, axis=0).tolist()
    return Row(llm_ratio, encoder_ratio, gap_to_floor, seconds, slowdown, idle, bubble)


def _times(
    steps: Sequence[Work], placements: Sequence[Placed], layout: Layout, *, in_order: bool
) -> tuple[float, float, float]:
    """(time over that of equal work, idle share, bubble share), means over steps."""
    most = max(
        int(np.bincount(ranks).max(initial=1))
        for placed in placements
        for ranks in (placed.llm_rank, placed.encoder_rank)
    )
    equal = max(-(-len(work.llm) // layout.dp) for work in steps)
    if layout.chunks > 1:  # the interleaved schedule takes whole rounds of the stages
        most, equal = (-(-count // layout.pp) * layout.pp for count in (most, equal))
    llm = np.zeros((len(steps), layout.dp, most))
    encoder = np.zeros_like(llm)
    for number, placed in enumerate(placements):
        _deal(llm[number], placed.llm, placed.llm_rank, in_order=in_order)
        _deal(encoder[number], placed.encoder, placed.encoder_rank, in_order=in_order)
    run = simulate_step(llm, encoder, stages=layout.pp, chunks=layout.chunks, meet="phase")
    mean_llm, mean_encoder = (
        np.broadcast_to(phase.sum(axis=(1, 2), keepdims=True) / layout.dp / equal, (len(steps), 1, equal))
        for phase in (llm, encoder)
    )
    ideal = simulate_step(mean_llm, mean_encoder, stages=layout.pp, chunks=layout.chunks, meet="phase").time
    slowdown = np.where(ideal > 0, run.time / np.where(ideal > 0, ideal, 1.0), 1.0)
    return float(slowdown.mean()), float(run.idle.mean()), float(run.bubble.mean())


def _deal(table: Floats, costs: Floats, ranks: NDArray[np.int32], *, in_order: bool) -> None:
    """In place: items as microbatches of their rank, (dp, m). In order, or dear ones in the middle of the
    step, where a pipeline hides them.
    """
    if in_order:
        order = np.argsort(ranks, kind="stable")
        counts = np.bincount(ranks, minlength=len(table))
        turn = np.empty(len(costs), np.int64)
        turn[order] = np.arange(len(costs)) - np.repeat(np.cumsum(counts) - counts, counts)
    else:
        turn = order_microbatches(costs, ranks, len(table)).astype(np.int64)
    table[ranks, turn] = costs
