"""What `simulate` found, as sections of a report: a table, bars, and what to say about them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dataloader_svc.cli.simulate_packing import PACKER_MEANINGS, PackRow
from dataloader_svc.cli.simulate_strategies import MEANINGS, Outcome
from dataloader_svc.cli.simulate_trace import TraceRow

_REASONS = {
    "mean": "equal shares: the placement decides",
    "item": "the dearest item is dearer than an equal share",
    "crowd": "more dear items than ranks",
    "caps": "equal counts",
}
REMEDIES = {
    "cut": "cut the dearest items over several ranks (context parallel)",
    "widen": "balance accumulated microbatches together",
    "wait": "let dear items wait for others (relaxed mode)",
    "unequal": "let ranks have unequal numbers of items (strategy.remedies, or counts: any)",
}


@dataclass(frozen=True, slots=True)
class Section:
    """A table, and its figures as bars.

    columns  of `cli.output.table`; rows as many texts each
    bars     strategy -> {figure -> value}, all of them ratios from 1 up
    floors   figure -> the least that it can be
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    bars: Mapping[str, Mapping[str, float]]
    floors: Mapping[str, float]
    notes: tuple[str, ...]


def outcome_section(title: str, outcome: Outcome) -> Section:
    """Of predicted work."""
    rows = [
        (
            name,
            f"{row.llm:.3f}",
            f"{row.encoder:.3f}",
            f"{row.gap_to_floor:.1%}",
            f"{row.slowdown:.3f}",
            f"{row.idle:.1%}",
            f"{row.bubble:.1%}",
            f"{row.seconds * 1e3:.1f} ms",
            MEANINGS.get(name, "LLM cost alone"),
        )
        for name, row in outcome.rows.items()
    ]
    rows.append(
        (
            "floor",
            f"{outcome.floor['llm']:.3f}",
            f"{outcome.floor['encoder']:.3f}",
            "",
            "",
            "",
            "",
            "",
            "whole items",
        )
    )
    notes = [f"{outcome.steps} steps of {outcome.items:,} items"]
    notes += [
        f"floor of the LLM in {count} of {outcome.steps} steps: {_REASONS[reason]}"
        for reason, count in outcome.bindings.items()
    ]
    notes += [
        f"what helps most in {count} of {outcome.steps} steps: {REMEDIES[name]}; "
        f"spares {gain:.0%} of the LLM's time"
        for name, (count, gain) in outcome.remedies.items()
    ]
    if "waiting" in outcome.rows:
        row = outcome.rows["waiting"]
        notes.append(f"waiting: a token waits {row.delay:.2f} steps, an item {row.oldest} at most")
    return Section(
        title,
        ("strategy", ">llm", ">encoder", ">to floor", ">step", ">idle", ">bubble", ">planning", "what it is"),
        tuple(rows),
        {
            name: {"llm": row.llm, "encoder": row.encoder, "step": row.slowdown}
            for name, row in outcome.rows.items()
        },
        dict(outcome.floor),
        tuple(notes),
    )


def packers_section(title: str, rows: Mapping[str, PackRow]) -> Section:
    """Packers side by side."""
    table = [
        (
            name,
            f"{row.sequences:.1f}",
            f"{row.fill:.2%}",
            f"{row.spread:.3f}",
            f"{row.spread_floor:.3f}",
            f"{row.llm:.3f}",
            f"{row.encoder:.3f}",
            f"{row.delay:.2f}",
            f"{row.mixture_error:.2%}",
            f"{row.seconds * 1e3:.1f} ms",
            PACKER_MEANINGS.get(name, ""),
        )
        for name, row in rows.items()
    ]
    return Section(
        title,
        (
            *("packer", ">sequences", ">full", ">spread", ">floor", ">llm", ">encoder", ">waited"),
            *(">off mixture", ">planning", "what it is"),
        ),
        tuple(table),
        {name: {"llm": row.llm, "encoder": row.encoder, "spread": row.spread} for name, row in rows.items()},
        {"spread": next(iter(rows.values())).spread_floor},
        ("spread: the dearest sequence over the mean; floor: the least of any packing into as many",),
    )


def trace_section(
    name: str, job: Mapping[str, int], rows: Mapping[str, TraceRow], least: Sequence[float], even: float
) -> Section:
    """Of a recorded job. `least`: floors of the stages; `even`: slowdown with equal microbatches."""
    stages = job["pp"]
    as_run = rows["arrival"]
    best = min(rows, key=lambda each: rows[each].slowdown)
    spared = 1 - rows[best].slowdown / as_run.slowdown
    table = [
        (
            each,
            *(f"{ratio:.3f}" for ratio in row.stages),
            f"{row.gap_to_floor:.1%}",
            f"{row.slowdown:.3f}",
            f"{row.idle:.1%}",
            f"{row.seconds * 1e3:.1f} ms",
            "the job as it ran" if each == "arrival" else "microbatches moved whole, as many on each rank",
        )
        for each, row in rows.items()
    ]
    table.append(("floor", *(f"{ratio:.3f}" for ratio in least), "", "", "", "", "whole microbatches"))
    return Section(
        f"{name}: {job['steps']} steps, dp={job['dp']},pp={stages}, {job['microbatches']} microbatches each",
        (
            "strategy",
            *(f">stage {stage}" for stage in range(stages)),
            ">to floor",
            ">step",
            ">idle",
            ">planning",
            "what it is",
        ),
        tuple(table),
        {
            each: {
                **{f"stage {number}": ratio for number, ratio in enumerate(row.stages)},
                "step": row.slowdown,
            }
            for each, row in rows.items()
        },
        {f"stage {number}": ratio for number, ratio in enumerate(least)},
        (
            f"the job ran {as_run.slowdown:.3f} times slower than with equal work on all ranks and stages",
            f"with {best}: {rows[best].slowdown:.3f} times, in {spared:.0%} less time than it took",
            f"with microbatches that are all equal: {even:.3f} times, because stages are unequal",
        ),
    )
