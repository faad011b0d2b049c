"""Time of a whole plan on one core, stage by stage, and its growth.

    python tests/bench/plan_speed.py [plan|parts ...] [--plot FILE.png]

plan    the chain: pack samples into sequences, place these on ranks in both phases at once under caps (equal
        counts, tokens, patches), choose the cut of each over 4 cp ranks, floors and gaps of both phases
parts   placement alone, of samples that are not packed, beside longest processing time one by one

Lengths are lognormal(7, 1), capped at 8,192 tokens; half of the samples have pictures. Sequences have 8,192
tokens, 4 to 5 samples, as many on each rank as come nearest to the samples at hand. CPU milliseconds: of each
stage the least of some runs, since a shared machine only ever adds. --plot draws them over the samples, from
1,000 on samples / 8 ranks (at most 12,288) to a million, beside n log n, and prints the exponent of growth.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dataloader_balancers import LlmCost, choose_cuts, floor, gap, imbalance, loads
from dataloader_balancers.assign import BALANCERS, Cap, Ranks, place, two_placements
from dataloader_balancers.assign.items import descending
from dataloader_balancers.assign.lpt import _lpt_heap
from dataloader_balancers.pack import PACKERS

WIDEST = 12_288
CP, SEQUENCE = 4, 8192
STAGES = ("pack", "place", "cuts", "floor")
ASKED = ((10_000, 1024, 15), (100_000, WIDEST, 150), (1_000_000, WIDEST, 2000))  # samples, ranks, ms
COST = LlmCost.preset("8b")


def cpu_ms(work: Callable[[], object], runs: int = 5) -> float:
    best = np.inf
    for _ in range(runs):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return float(best * 1e3)


def samples(count: int) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, patches)."""
    rng = np.random.default_rng(count)
    tokens = np.minimum(rng.lognormal(7, 1, count), SEQUENCE).astype(np.int64)
    return tokens, np.where(rng.random(count) < 0.5, rng.integers(1, 20, count) * 100, 0)


@dataclass(frozen=True, slots=True)
class Plan:
    """ms: of each of STAGES. reached, floors: max / mean of (LLM, encoder). placed: share of all tokens."""

    ms: dict[str, float]
    reached: tuple[float, float]
    floors: tuple[float, float]
    placed: float

    @property
    def total(self) -> float:
        return sum(self.ms.values())


def plan(count: int, ranks: int) -> Plan:
    """One whole plan. What is between the stages, sums over sequences, is part of the stage that needs it."""
    tokens, patches = samples(count)
    prices = COST.of_documents(tokens)
    per_rank = max(1, round(int(tokens.sum()) / SEQUENCE / ranks))
    sequences = per_rank * ranks
    clock = [time.process_time()]

    packed = PACKERS["balanced"](tokens, sequences, SEQUENCE, None, prices)
    clock.append(time.process_time())

    held = packed >= 0
    of_sequence = [np.bincount(packed[held], values[held], sequences) for values in (tokens, patches, prices)]
    phases = np.stack([of_sequence[2], of_sequence[1]])
    room = [max(1.5 * values.sum() / ranks, values.max()) for values in of_sequence[:2]]
    caps = [Cap(name, of_sequence[at], room[at]) for at, name in enumerate(("tokens", "patches"))]
    rank = place(phases, Ranks(ranks, per_rank=per_rank), caps)
    clock.append(time.process_time())

    choose_cuts(*padded(tokens, packed, sequences), CP, COST)
    clock.append(time.process_time())

    bounds = [floor(costs, ranks, per_rank=per_rank) for costs in phases]
    there = rank >= 0
    load = [loads(costs[there], rank[there], ranks) for costs in phases]
    for each, bound in zip(load, bounds, strict=True):
        gap(each, bound)
    clock.append(time.process_time())
    return Plan(
        dict(zip(STAGES, np.diff(clock) * 1e3, strict=True)),
        (imbalance(load[0]), imbalance(load[1])),
        tuple(bound.imbalance(costs.sum() / ranks) for bound, costs in zip(bounds, phases, strict=True)),
        float(tokens[held].sum() / tokens.sum()),
    )


def padded(tokens: np.ndarray, packed: np.ndarray, sequences: int) -> tuple[np.ndarray, np.ndarray]:
    """(lengths, documents of each sequence), by sequence, each with a document that pads it to 2 cp."""
    held = np.flatnonzero(packed >= 0)
    order = held[np.argsort(packed[held], kind="stable")]
    documents = np.bincount(packed[held], minlength=sequences)
    filled = np.bincount(packed[held], tokens[held], sequences).astype(np.int64)
    ends = np.cumsum(documents)
    return np.insert(tokens[order], ends, -filled % (2 * CP)), documents + 1


def best_of(count: int, ranks: int, runs: int) -> Plan:
    made = [plan(count, ranks) for _ in range(runs)]
    least = {stage: min(each.ms[stage] for each in made) for stage in STAGES}
    return Plan(least, made[0].reached, made[0].floors, made[0].placed)


def whole_plans() -> None:
    print("whole plan, CPU ms; max / mean over ranks: LLM, encoder (its floor)")
    heads = "".join(f"{head:>8}" for head in (*STAGES, "total", "asked", "ratio"))
    print(f"{'samples':>9} {'ranks':>7}{heads}   {'LLM':15} {'encoder':15} placed")
    for count, ranks, asked in ASKED:
        made = best_of(count, ranks, 5 if count < 1_000_000 else 3)
        figures = "".join(f"{made.ms[stage]:8.1f}" for stage in STAGES)
        ends = "  ".join(
            f"{reached:.4f} ({least:.4f})" for reached, least in zip(made.reached, made.floors, strict=True)
        )
        ratio = made.total / asked
        print(
            f"{count:9,} {ranks:7,}{figures}{made.total:8.1f}{asked:8}{ratio:8.2f}   {ends} {made.placed:.3f}"
        )


def one_by_one(costs: np.ndarray, ranks: int) -> float:
    order = descending(costs)
    return imbalance(loads(costs[order], _lpt_heap(costs[order], ranks, len(costs)), ranks))


def parts() -> None:
    print(f"{'placement of samples, CPU ms':44} {'ms':>8} {'asked':>8}   max / mean (one by one)")
    for count, ranks, asked in ((10_000, 1024, 15), (100_000, WIDEST, 25), (1_000_000, WIDEST, 1000)):
        tokens = samples(count)[0].astype(float)
        spent = cpu_ms(lambda tokens=tokens, ranks=ranks: BALANCERS["lpt"](tokens, ranks))
        reached = imbalance(loads(tokens, BALANCERS["lpt"](tokens, ranks), ranks))
        name = f"lpt, {count:,} on {ranks:,}"
        print(f"{name:44} {spent:8.1f} {asked:8}   {reached:.4f} ({one_by_one(tokens, ranks):.4f})")
    for count, ranks, asked in ASKED:
        tokens, patches = (values.astype(float) for values in samples(count))
        cap = Cap("tokens", tokens, 2 * tokens.sum() / ranks)
        for name, phases, caps in (
            ("one phase under a cap", [tokens], [cap]),
            ("both phases at once", [tokens, patches], []),
        ):
            found: list[np.ndarray] = []
            spent = cpu_ms(lambda p=phases, c=caps, r=ranks, f=found: f.append(place(np.stack(p), r, c)), 3)
            ends = " / ".join(f"{imbalance(loads(each, found[0], ranks)):.4f}" for each in phases)
            print(f"{f'place, {name}, {count:,} on {ranks:,}':44} {spent:8.1f} {asked:8}   {ends}")
    tokens, patches = (values.astype(float) for values in samples(20_000))
    spent = cpu_ms(lambda: two_placements(tokens, patches, 1024, ranks_per_node=8), 1)
    print(f"{'two placements, nodes of 8, 20,000 on 1,024':44} {spent:8.1f} {'-':>8}")


def plot(path: Path) -> None:
    from matplotlib.figure import Figure

    counts = np.logspace(3, 6, 10).astype(int)
    made = [best_of(count, min(count // 8, WIDEST), 3 if count < 300_000 else 2) for count in counts.tolist()]
    lines = {stage: np.array([each.ms[stage] for each in made]) for stage in STAGES}
    lines["whole plan"] = np.sum(list(lines.values()), axis=0)
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot(xscale="log", yscale="log", xlabel="samples", ylabel="CPU ms, one core")
    for name, spent in lines.items():
        whole = np.polyfit(np.log(counts), np.log(spent), 1)[0]
        upper = np.polyfit(np.log(counts[3:]), np.log(spent[3:]), 1)[0]
        print(
            f"{name:12} grows as n^{whole:.2f} from 1,000 to 1,000,000, n^{upper:.2f} from {counts[3]:,} on"
        )
        axes.plot(counts, spent, marker="o", linewidth=2.5 if name == "whole plan" else 1, label=name)
    scale = lines["whole plan"][-1] / (counts[-1] * np.log(counts[-1]))
    axes.plot(counts, scale * counts * np.log(counts), "k--", label="n log n")
    bound = np.polyfit(np.log(counts), np.log(counts * np.log(counts)), 1)[0]
    print(f"{'n log n':12} itself is n^{bound:.2f} there")
    axes.plot([n for n, _, _ in ASKED], [ms for _, _, ms in ASKED], "r_", markersize=14, label="asked")
    axes.legend()
    axes.grid(alpha=0.3, which="both")
    figure.savefig(path, dpi=120)
    print(f"wrote {path}")


PARTS = {"plan": whole_plans, "parts": parts}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"unknown part {sorted(unknown)}; known: {', '.join(PARTS)}")
    for part in given.parts or PARTS:
        PARTS[part]()
    if given.plot:
        plot(given.plot)


if __name__ == "__main__":
    main()
