"""Figures of placement on public measurements: `python tests/bench/placement.py --trace FILE --lengths FILE`.

FILE is a parquet file that is not part of the project:

    --trace    operations of a 128-GPU job, the artefact of arXiv 2505.05713: columns dp_rank stage step
               optype duration mb_id. It has times of microbatches and nothing of the documents in them.
    --lengths  samples of four VLM instruction sets, published with OmniBal (arXiv 2407.20761): columns
               dataset image_tiles tokens

A row: what was reached (max / mean over ranks, its mean over steps or draws), the best known before, and the
bound below which no placement can go.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from dataloader_balancers import floor, imbalance, loads, outliers
from dataloader_balancers.assign import BALANCERS, Ranks, place, two_placements

DRAWS, RANKS = 30, 64
SHARES = {"ai2d_train_12k": 0.1, "chartqa_train_18k": 0.15, "docvqa_train_10k": 0.15, "synthdog_en": 0.1}


def row(what: str, reached: str, before: str, bound: str = "") -> None:
    print(f"{what:58} {reached:>19} {before:>15} {bound:>15}")


def trace_grids(path: Path) -> np.ndarray:
    """(stage, step, dp rank, microbatch): seconds of forward and backward."""
    table = pq.read_table(path)
    column = {name: table[name].to_numpy() for name in ("dp_rank", "stage", "step", "duration", "mb_id")}
    compute = np.isin(np.array(table["optype"].to_pylist()), ["forward-compute", "backward-compute"])
    step = np.unique(column["step"], return_inverse=True)[1]
    where = (column["stage"], step, column["dp_rank"], column["mb_id"])
    grid = np.zeros([int(index[compute].max()) + 1 for index in where])
    np.add.at(grid, tuple(index[compute] for index in where), column["duration"][compute])
    return grid


def trace(path: Path) -> None:
    grid = trace_grids(path)
    stages, _, ranks, per_rank = grid.shape
    steps = grid.reshape(stages, -1, ranks * per_rank)

    def mean(stage: int, rank_of: list[np.ndarray]) -> float:
        return float(
            np.mean([imbalance(loads(c, r, ranks)) for c, r in zip(steps[stage], rank_of, strict=True)])
        )

    print(f"\nstraggler trace: {steps.shape[1]} steps, DP {ranks}, {per_rank} microbatches each")
    as_run = np.repeat(np.arange(ranks), per_rank)
    before = {0: "1.025", 1: "1.018"}
    for stage in range(stages):
        row(f"  stage {stage}, as run", f"{mean(stage, [as_run] * steps.shape[1]):.3f}", "")
        for name, most in (("equal counts", per_rank), ("any counts", None)):
            found = [BALANCERS["local_search"](costs, ranks, most) for costs in steps[stage]]
            row(
                f"  stage {stage}, whole microbatches, {name}",
                f"{mean(stage, found):.4f}",
                before[stage],
                "1.000",
            )
    found = [place(both, Ranks(ranks, per_rank=per_rank)) for both in steps.transpose(1, 0, 2)]
    joint = " / ".join(f"{mean(stage, found):.4f}" for stage in range(stages))
    row("  one placement for both stages, equal counts", joint, "1.025 / 1.018", "1.000")


def draw(table: dict[str, np.ndarray], seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(LLM cost, encoder cost) of `count` samples: half texts, lognormal(6.5, 1.4) capped at 32K."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(5, count, p=[*SHARES.values(), 0.5])
    tokens = np.maximum(np.minimum(rng.lognormal(6.5, 1.4, count), 32_768).astype(int), 1).astype(float)
    tiles = np.zeros(count)
    for number, name in enumerate(SHARES):
        mine = kind == number
        picked = rng.choice(np.flatnonzero(table["dataset"] == name), int(mine.sum()))
        tokens[mine], tiles[mine] = table["tokens"][picked], table["image_tiles"][picked]
    return 24576 * tokens + tokens**2, tiles


def encoder_bound(llm: np.ndarray, tiles: np.ndarray) -> float:
    """Max / mean that no placement with the LLM at its floor goes below: pictures are work of the LLM too, so
    beside a text of more than half the floor (no two of which share a rank) there is room for only so many
    tiles; the other ranks share the rest.
    """
    most = floor(llm, RANKS).value
    a_tile = (llm[tiles > 0] / tiles[tiles > 0]).min()
    texts = np.sort(llm[(tiles == 0) & (llm > most / 2)])[::-1]
    room = np.full(RANKS, np.inf)
    room[: len(texts)] = (most - texts) / a_tile
    mean = tiles.sum() / RANKS
    low, high = mean, 10 * mean
    for _ in range(60):
        level = (low + high) / 2
        low, high = (low, level) if np.minimum(room, level).sum() >= tiles.sum() else (level, high)
    return max(high, np.ceil(high - 1e-6)) / mean


def cut(llm: np.ndarray, tiles: np.ndarray, share: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """Items dearer than that share of an equal load, in equal pieces (context parallel)."""
    pieces = np.maximum(np.ceil(llm / (llm.sum() / RANKS * share)), 1).astype(int)
    return np.repeat(llm / pieces, pieces), np.repeat(tiles / pieces, pieces)


def lengths(path: Path) -> None:
    read = pq.read_table(path)
    table = {name: read[name].to_numpy() for name in ("tokens", "image_tiles")}
    table["dataset"] = np.array(read["dataset"].to_pylist())
    for per_rank, before in ((32, ("1.36 / 1.09", "1.36 / 1.01", "")), (8, ("4.33", "", "4.33"))):
        found: dict[str, list[tuple[float, ...]]] = {}
        for seed in range(DRAWS):
            llm, tiles = draw(table, seed, RANKS * per_rank)
            at_floor = floor(llm, RANKS).imbalance(llm.sum() / RANKS)
            phases = np.stack([llm, tiles * llm.sum() / tiles.sum() / 4])  # the encoder: a fifth of the time
            bound = (at_floor, encoder_bound(llm, tiles))
            arrival = BALANCERS["arrival"](llm, RANKS)
            one = place(phases, RANKS)
            two = two_placements(llm, tiles, RANKS, ranks_per_node=8)
            pieces = cut(*phases)
            apart = place(np.stack(pieces), RANKS)
            equal = place(np.stack(pieces), Ranks(RANKS, per_rank=-(-len(apart) // RANKS)))
            for name, costs, ranks in (
                ("order of arrival", (llm, tiles), (arrival, arrival)),
                ("one placement", (llm, tiles), (one, one)),
                ("two placements", (llm, tiles), (two.llm, two.encoder)),
                ("one placement, dear items cut to half a share", pieces, (apart, apart)),
                ("the same, equal counts of pieces", pieces, (equal, equal)),
            ):
                reached = [imbalance(loads(c, r, RANKS)) for c, r in zip(costs, ranks, strict=True)]
                least = bound if "cut" not in name and "same" not in name else (1.0, 1.0)
                found.setdefault(name, []).append((*reached, *least))
            crossing = two.dispatch.between_nodes(8) / tiles.sum()
            found.setdefault("crossing", []).append((crossing,))
        print(f"\nlengths: {RANKS} ranks x {per_rank} samples, means of {DRAWS} draws: LLM / encoder")
        known = dict(
            zip(
                ("one placement", "two placements", "one placement, dear items cut to half a share"),
                before,
                strict=True,
            )
        )
        for name, figures in found.items():
            means = np.mean(figures, axis=0)
            if name == "crossing":
                row("  two placements, nodes of 8: bytes between nodes", f"{means[0]:.2%}", "")
            else:
                bound_text = (
                    ""
                    if name in ("order of arrival", "two placements")
                    else f"{means[2]:.3f} / {means[3]:.3f}"
                )
                row(f"  {name}", f"{means[0]:.3f} / {means[1]:.3f}", known.get(name, ""), bound_text)


def waiting(path: Path, cut: int, max_age: int = 128, steps: int = 140, measured: int = 60) -> None:
    """64 x 8: dear samples go over at most `cut` ranks and wait for their like, at most `max_age` steps.
    Of a stream, its last steps are measured.
    """
    read = pq.read_table(path)
    table = {name: read[name].to_numpy() for name in ("tokens", "image_tiles")}
    table["dataset"] = np.array(read["dataset"].to_pylist())
    per_rank = 8
    count = RANKS * per_rank
    llm, tiles = draw(table, 0, count * (steps + 40))
    tokens = np.rint((np.sqrt(24576.0**2 + 4 * llm) - 24576) / 2).astype(np.int64)
    mean_length = int(tokens.mean() * per_rank)
    # Over as many ranks as bring it to half an equal share; it goes when a part of it would.
    over = np.clip(np.ceil(2 * llm / (llm.mean() * per_rank)), 1, cut).astype(np.int64)
    tokens = np.maximum(tokens // over, 1)
    queue, waited, at = np.zeros(0, np.int64), np.zeros(0, np.int64), 0
    reached: list[list[float]] = []
    ages: list[np.ndarray] = []
    for step in range(steps):
        new = lacking = count
        while lacking > 0:
            keys = np.append(queue, np.arange(at, at + new))
            age = np.append(waited, np.zeros(new, np.int64))
            held = outliers(tokens[keys], age, (llm / over)[keys], RANKS, mean_length, max_age=max_age)
            lacking = count - int(np.count_nonzero(~held))
            new += max(lacking, 0)
        at += new
        queue, waited, going = keys[held], age[held] + 1, keys[~held]
        if step >= steps - measured:
            phases = np.stack([llm[going], tiles[going] * llm[going].sum() / tiles[going].sum() / 4])
            parts = np.repeat(phases / over[going], over[going], axis=1)
            rank = place(parts, RANKS)
            reached.append([imbalance(loads(costs, rank, RANKS)) for costs in parts])
            ages.append(age[~held])
    ends, delay = np.mean(reached, axis=0), np.concatenate(ages)
    how = "whole" if cut == 1 else f"over {cut} ranks at most"
    row(f"  they wait, {how}", f"{ends[0]:.3f} / {ends[1]:.3f}", "4.33", "1 / 1")
    print(
        f"    mean age of a sample {delay.mean():.2f} steps, oldest {delay.max()}, {len(queue):,} still wait"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--lengths", type=Path)
    given = parser.parse_args()
    if not (given.trace or given.lengths):
        parser.error("nothing to measure: give --trace FILE, --lengths FILE or both")
    row("", "reached", "best known", "bound")
    if given.trace:
        trace(given.trace)
    if given.lengths:
        lengths(given.lengths)
        print(f"\nlengths: {RANKS} ranks x 8, dear samples wait at most 128 steps")
        for cut in (1, 2, 4):
            waiting(given.lengths, cut)


if __name__ == "__main__":
    main()
