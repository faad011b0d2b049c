"""A recorded job: how slow it was against equal work, and how slow it would have been under each strategy.

The method of "Understanding Stragglers in Large Model Training Using What-if Analysis" (arXiv 2505.05713,
section 3): replay each step's forward and backward passes by the job's pipeline schedule, with the recorded
times, with equal ones (each the mean of its kind in the step), and with microbatches placed on other ranks.
What a step took beyond its passes (sending, reducing gradients, the optimizer) is left as it was.
Microbatches are moved whole, as many on each rank, and dear ones run in the middle of the step: what
documents are in them, the trace does not say.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dataloader_balancers import BALANCERS, floor, gap, imbalance, loads, pipeline, two_phase_lpt
from dataloader_balancers.assign import Ranks, order_microbatches, place
from dataloader_svc.cli.simulate_files import numbers, read_columns, words
from dataloader_svc.errors import SourceError

Floats = NDArray[np.float64]

FORWARD, BACKWARD = "forward-compute", "backward-compute"
_MOST = 2**16  # ranks, stages or microbatches; beyond it a number is a mistake
_COLUMNS = {
    "step": "of the optimizer",
    "dp_rank": "data-parallel rank, from 0",
    "stage": "of the pipeline, from 0",
    "seq_id": "which of the rank's microbatches, from 0",
    "optype": f"{FORWARD}, {BACKWARD}, and others",
    "start_ts": "seconds",
    "duration": "seconds",
}


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """forward, backward: float64 (steps, dp, microbatches, stages) seconds; took: float64 (steps,)."""

    forward: Floats
    backward: Floats
    took: Floats


def read_trace(path: Path) -> Trace:
    """SourceError names the file and what is wrong with it: a column, a row, or a pass that is not there."""
    table = read_columns(path, _COLUMNS)
    keys = {name: numbers(path, table, name, 0, _MOST) for name in ("dp_rank", "stage")}
    keys["seq_id"] = numbers(path, table, "seq_id", -1, _MOST)
    step_number = numbers(path, table, "step", 0)
    start, duration = (_seconds(path, table, name) for name in ("start_ts", "duration"))
    steps, at = np.unique(step_number, return_inverse=True)
    end = start + duration
    first, last = np.full(len(steps), np.inf), np.full(len(steps), -np.inf)
    np.minimum.at(first, at, start)
    np.maximum.at(last, at, end)
    kind = words(path, table, "optype")
    passes = {}
    for name in (FORWARD, BACKWARD):
        mine = np.flatnonzero(kind == name)
        if not len(mine):
            raise SourceError(f"{path}: no operation {name!r}; optype has {', '.join(sorted(set(kind)))}")
        place = (at[mine], *(keys[key][mine] for key in ("dp_rank", "seq_id", "stage")))
        if place[2].min() < 0:
            raise SourceError(f"{path}: row {mine[int(place[2].argmin())]}: {name} with seq_id -1")
        passes[name] = _table(path, name, steps, place, duration[mine])
    forward, backward = passes[FORWARD], passes[BACKWARD]
    if forward.shape != backward.shape:
        raise SourceError(f"{path}: forwards are {_sizes(forward)}, backwards {_sizes(backward)}")
    return Trace(forward, backward, last - first)


def _table(
    path: Path, name: str, steps: NDArray[np.int64], place: tuple[NDArray[np.int64], ...], seconds: Floats
) -> Floats:
    """float64 (steps, dp, microbatches, stages): one pass for each, or SourceError names one that is not."""
    shape = (len(steps), *(int(axis.max()) + 1 for axis in place[1:]))
    order = np.lexsort(place[::-1])
    found = np.stack([axis[order] for axis in place], axis=1)
    again = np.flatnonzero(np.all(found[1:] == found[:-1], axis=1))
    if len(again):
        step, rank, microbatch, stage = found[again[0]].tolist()
        what = "more than one"
    elif len(found) < math.prod(shape):
        expected = np.stack(np.unravel_index(np.arange(len(found)), shape), axis=1)
        differs = np.flatnonzero(np.any(found != expected, axis=1))
        at = int(differs[0]) if len(differs) else len(found)
        step, rank, microbatch, stage = (int(axis) for axis in np.unravel_index(at, shape))
        what = "no"
    else:
        return seconds[order].reshape(shape)
    raise SourceError(
        f"{path}: step {steps[step]}, dp_rank {rank}, stage {stage}: {what} {name} of microbatch "
        f"{microbatch}; ranks have {shape[2]}"
    )


def _sizes(times: Floats) -> str:
    return "of {} ranks, {} microbatches, {} stages".format(*times.shape[1:])


def _seconds(path: Path, table: pa.Table, name: str) -> Floats:
    column = table[name]
    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        raise SourceError(f"{path}: column {name} is {column.type}; seconds are needed")
    values: Floats = column.to_numpy().astype(np.float64)
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(wrong):
        raise SourceError(f"{path}: row {wrong[0]}: {name} is {values[wrong[0]]}; 0 and more seconds")
    return values


@dataclass(frozen=True, slots=True)
class TraceRow:
    """A strategy's figures, means over steps.

    llm           max / mean over ranks of forward and backward, of the stage where it is worst
    gap_to_floor  dearest rank over the floor with equal counts, minus 1, of the stage where it is worst
    seconds       to plan a step
    slowdown      time of a step over that of one with equal passes
    idle          share of the devices' time in the passes without one
    stages        max / mean of each stage
    """

    llm: float
    gap_to_floor: float
    seconds: float
    slowdown: float
    idle: float
    stages: tuple[float, ...]

    def as_json(self) -> dict[str, Any]:
        """By name. A trace of passes knows of no encoder: its ratio is 1."""
        return {
            "llm": self.llm,
            "encoder": 1.0,
            "gap_to_floor": self.gap_to_floor,
            "seconds": self.seconds,
            "slowdown": self.slowdown,
            "idle": self.idle,
            "stages": list(self.stages),
        }


def trace_strategies() -> dict[str, Callable[[Floats, int, int], NDArray[np.int32]]]:
    """By name: (costs (n, stages), ranks, microbatches of a rank) -> rank of each microbatch (n,)."""

    def by_sum(name: str) -> Callable[[Floats, int, int], NDArray[np.int32]]:
        return lambda costs, ranks, per_rank: BALANCERS[name](costs.sum(axis=1), ranks, per_rank)

    known = {name: by_sum(name) for name in BALANCERS if name != "arrival"}

    def two_stages(costs: Floats, ranks: int, per_rank: int) -> NDArray[np.int32]:
        return two_phase_lpt(costs[:, 0], costs[:, -1], ranks, per_rank)

    def searched(costs: Floats, ranks: int, per_rank: int) -> NDArray[np.int32]:
        return place(costs.T, Ranks(ranks, per_rank=per_rank))

    return {**known, "two_phase": two_stages, "place": searched}


def unequal_stages(trace: Trace) -> float:
    """Slowdown with microbatches that are all equal, and stages as they are: what is left is theirs."""
    even = _even_time(trace, (1, 2, 3))
    beside = trace.took - pipeline(trace.forward, _stages(trace), backward=trace.backward).time.max(axis=1)
    return float(np.mean((beside + _even_time(trace, (1, 2))) / (beside + even)))


def trace_floor(trace: Trace) -> tuple[float, ...]:
    """The least max / mean of each stage over ranks, with as many microbatches on each; means over steps."""
    cost = trace.forward + trace.backward
    ranks, num = cost.shape[1:3]
    return tuple(
        float(
            np.mean(
                [
                    floor(each.ravel(), ranks, per_rank=num).imbalance(float(each.sum()) / ranks)
                    for each in cost[..., stage]
                ]
            )
        )
        for stage in range(_stages(trace))
    )


def _stages(trace: Trace) -> int:
    return int(trace.forward.shape[-1])


def _even_time(trace: Trace, axes: tuple[int, ...]) -> Floats:
    """float64 (steps,): of passes that each take the mean of its kind over `axes`."""
    shape = (len(trace.took), 1, *trace.forward.shape[2:])
    forward, backward = (
        np.broadcast_to(times.mean(axis=axes, keepdims=True), shape)
        for times in (trace.forward, trace.backward)
    )
    return pipeline(forward, _stages(trace), backward=backward).time[:, 0]


def compare_trace(
    trace: Trace, clock: Callable[[], float], advance: Callable[[], None] = lambda: None
) -> dict[str, TraceRow]:
    """`arrival`, which is the job as it ran, and every strategy."""
    steps, ranks, num, stages = trace.forward.shape
    cost = trace.forward + trace.backward
    as_run = pipeline(trace.forward, stages, backward=trace.backward).time.max(axis=1)
    even = _even_time(trace, (1, 2, 3))
    beside = trace.took - as_run
    rows = {}
    arrival = np.broadcast_to(np.repeat(np.arange(ranks), num), (steps, ranks * num))
    for name, strategy in {"arrival": None, **trace_strategies()}.items():
        began = clock()
        placed = (
            arrival
            if strategy is None
            else np.stack([strategy(cost[step].reshape(-1, stages), ranks, num) for step in range(steps)])
        )
        seconds = (clock() - began) / steps
        order = np.argsort(placed, axis=1, kind="stable")  # as they ran
        if strategy is not None:
            for step in range(steps):
                turn = order_microbatches(cost[step].sum(axis=-1).ravel(), placed[step], ranks)
                order[step, placed[step] * num + turn] = np.arange(ranks * num)
        index = np.arange(steps)[:, None]
        forward, backward = (
            times.reshape(steps, -1, stages)[index, order].reshape(trace.forward.shape)
            for times in (trace.forward, trace.backward)
        )
        run = pipeline(forward, stages, backward=backward)
        time = run.time.max(axis=1)
        worst, gaps = [], []
        for step in range(steps):
            held = [loads(cost[step, ..., s].ravel(), placed[step], ranks) for s in range(stages)]
            worst.append([imbalance(load) for load in held])
            gaps.append(
                max(
                    gap(load, floor(cost[step, ..., s].ravel(), ranks, per_rank=num))
                    for s, load in enumerate(held)
                )
            )
        by_stage = np.mean(worst, axis=0)
        rows[name] = TraceRow(
            llm=float(by_stage.max()),
            gap_to_floor=float(np.mean(gaps)),
            seconds=seconds,
            slowdown=float(np.mean((beside + time) / (beside + even))),
            idle=float(np.mean(1 - cost.sum(axis=(1, 2, 3)) / (ranks * stages * time))),
            stages=tuple(by_stage.tolist()),
        )
        advance()
    return rows
