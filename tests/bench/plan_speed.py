"""Time of placement on one core, and its growth: `python tests/bench/placement_speed.py [--plot FILE.png]`.

Lengths are lognormal(7, 1), capped at 8192 tokens. Prints CPU milliseconds (the least of some runs) beside
the time allowed, and max / mean beside that of longest processing time one by one. --plot draws time over the
number of samples, beside n log n.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dataloader_balancers import floor, imbalance, loads
from dataloader_balancers.assign import BALANCERS, Cap, place, two_placements
from dataloader_balancers.assign.items import descending
from dataloader_balancers.assign.lpt import _lpt_heap

WIDEST = 12_288
RUNS = 5


def cpu_ms(work: Callable[[], object], runs: int = RUNS) -> float:
    best = np.inf
    for _ in range(runs):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return float(best * 1e3)


def samples(count: int) -> tuple[np.ndarray, np.ndarray]:
    """(LLM cost, encoder cost)."""
    rng = np.random.default_rng(count)
    tokens = np.minimum(rng.lognormal(7, 1, count), 8192).astype(int).astype(float)
    return tokens, np.where(rng.random(count) < 0.5, rng.integers(1, 20, count) * 100.0, 0.0)


def one_by_one(costs: np.ndarray, ranks: int) -> float:
    order = descending(costs)
    return imbalance(loads(costs[order], _lpt_heap(costs[order], ranks, len(costs)), ranks))


def table() -> None:
    print(f"{'':44} {'ms':>8} {'allowed':>8} {'max/mean':>9} {'one by one':>10}")
    for count, ranks, allowed in ((10_000, 1024, 15), (100_000, WIDEST, 25), (1_000_000, WIDEST, 1000)):
        tokens, _ = samples(count)
        spent = cpu_ms(lambda tokens=tokens, ranks=ranks: BALANCERS["lpt"](tokens, ranks))
        reached = imbalance(loads(tokens, BALANCERS["lpt"](tokens, ranks), ranks))
        name = f"lpt, {count:,} samples on {ranks:,} ranks"
        print(f"{name:44} {spent:8.1f} {allowed:8} {reached:9.4f} {one_by_one(tokens, ranks):10.4f}")
    for count, allowed in ((100_000, 150), (1_000_000, 2000)):
        tokens, patches = samples(count)
        room = np.full(WIDEST, 2 * tokens.sum() / WIDEST)

        def phases(tokens: np.ndarray = tokens, patches: np.ndarray = patches) -> None:
            for costs in (tokens, patches):
                BALANCERS["lpt"](costs, WIDEST)
                floor(costs, WIDEST)

        def capped(tokens: np.ndarray = tokens, room: np.ndarray = room) -> None:
            place(tokens, WIDEST, [Cap("tokens", tokens, room)], steps=0)

        for name, work in (("both phases apart, floors", phases), ("one phase under a cap", capped)):
            print(f"{f'{name}, {count:,} on {WIDEST:,}':44} {cpu_ms(work, 3):8.1f} {allowed:8}")
    tokens, patches = samples(20_000)
    spent = cpu_ms(lambda: place([tokens, patches], 1024), 1)
    print(f"{'both phases at once, searched, 20,000 on 1,024':44} {spent:8.1f} {'-':>8}")
    spent = cpu_ms(lambda: two_placements(tokens, patches, 1024, ranks_per_node=8), 1)
    print(f"{'two placements, nodes of 8, 20,000 on 1,024':44} {spent:8.1f} {'-':>8}")


def plot(path: Path) -> None:
    from matplotlib.figure import Figure

    counts = np.unique(np.logspace(3, 6, 13).astype(int))
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot(xscale="log", yscale="log", xlabel="samples", ylabel="CPU ms, one core")
    work: dict[str, Callable[[np.ndarray, int], object]] = {
        "lpt": BALANCERS["lpt"],
        "snake (a sort)": BALANCERS["snake"],
        "local_search": BALANCERS["local_search"],
    }
    for name, balancer in work.items():
        spent = []
        for count in counts.tolist():
            costs, ranks = samples(count)[0], max(count // 8, 1)
            spent.append(cpu_ms(lambda b=balancer, c=costs, r=ranks: b(c, r), 3))
        growth = np.polyfit(np.log(counts[-7:]), np.log(spent[-7:]), 1)[0]
        print(f"{name:16} grows as n^{growth:.2f} from {counts[-7]:,} samples on")
        axes.plot(counts, spent, marker="o", label=f"{name}, n/8 ranks")
        if name == "lpt":
            scale = spent[-1] / (counts[-1] * np.log(counts[-1]))
            axes.plot(counts, scale * counts * np.log(counts), "k--", label="n log n")
    axes.legend()
    axes.grid(alpha=0.3, which="both")
    figure.savefig(path, dpi=120)
    print(f"wrote {path}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    table()
    if given.plot:
        plot(given.plot)


if __name__ == "__main__":
    main()
