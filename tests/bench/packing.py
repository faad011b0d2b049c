"""Packing: how full, how equal, how fast. Prints each row of docs/balancing.md.

    python tests/bench/packing.py [quality|waiting|rows|speed ...] [--lengths FILE.npy]

Lengths are those of the Python standard library's sources, tokenized by words, marks and line beginnings: a
few to some 185,000 tokens. A step draws documents with replacement by a fixed seed, cuts what is longer than
a sequence (`too_long: split`), and offers 2 % more than it holds. `--lengths` takes int (n,) of one's own.
"""

from __future__ import annotations

import argparse
import re
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dataloader_balancers import (
    LAYOUTS,
    PACKERS,
    Limit,
    LlmCost,
    Queue,
    concatenate,
    floor,
    level,
    queued_step,
)

Ints = NDArray[np.int64]
COST = LlmCost.preset("7b")
STEP_TOKENS = 4 * 2**20
STEPS = 8
CONTEXT = 131_072


def source_lengths() -> Ints:
    """Tokens of each source file of the standard library, empty ones left out; sorted by path."""
    pattern = re.compile(r"\w+|[^\w\s]|\n[ \t]*")
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(path for path in root.rglob("*.py") if "site-packages" not in path.parts)
    counts = [len(pattern.findall(path.read_text(errors="replace"))) for path in files]
    return np.array([count for count in counts if count], np.int64)


def pieces(lengths: Ints, longest: int) -> Ints:
    """Documents cut into parts of at most `longest` tokens."""
    parts = [[longest] * (n // longest) + [n % longest] * (n % longest > 0) for n in lengths.tolist()]
    return np.array([part for document in parts for part in document], np.int64)


def drawn(lengths: Ints, sequence: int, tokens: float, seed: int) -> Ints:
    """A step's pieces: documents with replacement, cut, in random order, until there are `tokens`."""
    rng = np.random.default_rng(seed)
    parts = pieces(rng.choice(lengths, int(3 * tokens / lengths.mean()) + 64), sequence)
    parts = rng.permutation(parts)
    return parts[: int(np.searchsorted(np.cumsum(parts), tokens)) + 1]


def quality(lengths: Ints) -> None:
    print("packing: means of", STEPS, "steps of 4M tokens; spread = dearest / mean sequence, 7B")
    for sequence in (4096, 8192, 32_768):
        count = STEP_TOKENS // sequence
        for name in ("best_fit", "balanced"):
            report(lengths, name, sequence, count, count * sequence * 1.02, sequence)
        for name in ("best_fit", "variable"):  # as many tokens as sequences of the mean length hold
            report(lengths, name, sequence, count, count * sequence, sequence * 5 // 4)


def report(lengths: Ints, name: str, sequence: int, count: int, tokens: float, capacity: int) -> None:
    rows, seconds = [], []
    for seed in range(STEPS):
        step = drawn(lengths, sequence, tokens, seed)
        costs = COST.of_documents(step)
        start = time.process_time()
        result = PACKERS[name](step, count, capacity, None, costs)
        seconds.append(time.process_time() - start)
        made = level(step, result, count, sequence, costs)
        rows.append((made.fill, made.spread, made.gap, made.range, made.range_floor))
    fill, spread, gap, widest, least = np.mean(rows, axis=0)
    print(
        f"  {sequence:6} x {count:4}, up to {capacity / sequence:.2f}x, {name:9} "
        f"fill {fill:.4f}  spread {spread:.4f}  gap to floor {gap:.4f}  "
        f"dearest/cheapest {widest:.3f} (at least {least:.3f})  {1e3 * np.median(seconds):.1f} ms"
    )


def waiting(_: Ints) -> None:
    print("128K long tail, sequences up to 1.25x; lognormal(median 1,000, sigma 1.6) up to 131,072 tokens")
    for count, steps in ((4, 200), (8, 150), (32, 60)):
        print(f"  {count:2} sequences, packed as it comes: spread {as_it_comes(count, steps):.3f}")
        for name, max_age in (("nothing waits", 0), ("outliers wait", 32)):
            print(f"  {count:2} sequences, {name}: {stream(count, steps, max_age)}")


def tail(count: int, steps: int) -> Ints:
    drawn = np.random.default_rng(0).lognormal(np.log(1000), 1.6, count * steps * 60)
    return np.clip(drawn, 16, CONTEXT).astype(np.int64)


def as_it_comes(count: int, steps: int) -> float:
    """Mean spread of sequences that each end where the next document has no room."""
    loads, load, room = [], 0.0, CONTEXT
    lengths = tail(count, steps)
    for length, cost in zip(lengths.tolist(), COST.of_documents(lengths).tolist(), strict=True):
        if length > room:
            loads.append(load)
            load, room = 0.0, CONTEXT
        load, room = load + cost, room - length
    whole = np.array(loads[: len(loads) // count * count]).reshape(-1, count)
    return float((whole.max(axis=1) / whole.mean(axis=1)).mean())


def stream(count: int, steps: int, max_age: int) -> str:
    lengths = tail(count, steps)
    queue, at = Queue(), 0
    spreads, seconds, held, delay, oldest = [], [], 0, 0, 0
    for number in range(steps):
        new, used = 0, 0.0
        while True:
            keys = np.arange(at, at + new)
            start = time.process_time()
            step = queued_step(
                queue,
                keys,
                lengths[keys],
                COST.of_documents,
                count,
                CONTEXT,
                CONTEXT * 5 // 4,
                max_age=max_age,
            )
            used = time.process_time() - start
            if not step.lacking:
                break
            new += 1 + int(np.searchsorted(np.cumsum(lengths[at + new :]), step.lacking))
        at, queue = at + new, step.queue
        seconds.append(used)
        load = np.bincount(step.sequence, COST.of_documents(lengths[step.keys]), count)
        if number >= 20:  # the queue is empty at first
            spreads.append(load.max() / load.mean())
        held += int(lengths[step.keys].sum())
        delay += int((lengths[step.keys] * step.age).sum())
        oldest = max(oldest, int(step.age.max()))
    return (
        f"spread {np.mean(spreads):.3f} (95 %: {np.percentile(spreads, 95):.3f}), mean delay of a token "
        f"{delay / held:.2f} steps, oldest {oldest}, plan {1e3 * np.median(seconds):.1f} ms "
        f"(95 %: {1e3 * np.percentile(seconds, 95):.1f})"
    )


def rows(lengths: Ints) -> None:
    print("layouts without packing: padding, at 65,536 places a batch, documents up to 8,192")
    step = drawn(lengths, 8192, STEP_TOKENS, 0)
    for name, layout in LAYOUTS.items():
        print(f"  {name:9} padding {layout(step, 65_536).padding:.4f}")
    documents = np.random.default_rng(0).choice(lengths, 4000)
    cut = concatenate(documents, 8192)
    full = cut.sequence < cut.sequence.max()
    gap = 1 - cut.length[full].sum() / (cut.sequence.max() * 8192)
    whole = np.bincount(cut.document, minlength=len(documents)) == 1
    fits = documents <= 8192
    print(f"  concatenate gap {gap:.4f}, documents of up to 8,192 tokens cut: {1 - whole[fits].mean():.3f}")


def speed(_: Ints) -> None:
    print("one core, CPU milliseconds, best of 3; lognormal lengths up to 8,192, 7B cost, sequences of 8,192")
    for median in (180, 1100):
        for size in (1000, 10_000, 100_000, 1_000_000):
            drawn_ = np.random.default_rng(0).lognormal(np.log(median), 1.2, size)
            step = np.clip(drawn_, 1, 8192).astype(np.int64)
            count = max(1, int(step.sum() / 8192 / 1.02))
            spent = timings(step, count)
            print(f"  {size:9,} into {count:7,}: " + "  ".join(f"{k} {v:.1f}" for k, v in spent.items()))


def timings(step: Ints, count: int) -> dict[str, float]:
    costs = COST.of_documents(step)
    patches = np.where(np.arange(len(step)) % 4 == 0, 256, 0)
    limits = (Limit("patches", patches, 16_384), Limit("pictures", patches // 256, 64))
    calls: dict[str, Callable[[], object]] = {
        name: lambda name=name: PACKERS[name](step, count, 8192, None, costs)
        for name in ("best_fit", "balanced", "variable")
    }
    calls["balanced, 2 limits"] = lambda: PACKERS["balanced"](step, count, 8192, None, costs, limits=limits)
    calls["floor"] = lambda: floor(costs, count)
    return {name: 1e3 * min(timed(call) for _ in range(3)) for name, call in calls.items()}


def timed(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


PARTS = {"quality": quality, "waiting": waiting, "rows": rows, "speed": speed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--lengths", type=Path)
    chosen = parser.parse_args()
    if unknown := set(chosen.parts) - set(PARTS):
        parser.error(f"unknown part {sorted(unknown)}; known: {', '.join(PARTS)}")
    lengths = source_lengths() if chosen.lengths is None else np.load(chosen.lengths).astype(np.int64)
    print(f"{len(lengths)} documents, {lengths.sum():,} tokens, {lengths.min()} to {lengths.max():,}")
    for part in chosen.parts or PARTS:
        PARTS[part](lengths)


if __name__ == "__main__":
    main()
