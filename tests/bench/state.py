"""What a checkpoint costs: bytes of JSON and time of `state_dict()`, by the number of sources.

    python tests/bench/state.py [SOURCES ...]

A job of text sources is planned for 60 steps of 2,048 sequences; then its numbers are made as long as
those of a late step: position 10 million, 20 million samples, 10 thousand million tokens a source, three
reasons of bad samples in one source of ten. `all different`: no two sources have equal settings. Asked of
306 sources: 64 KiB, 1 ms. CPU milliseconds, least of 20 runs: of the client's state_dict(), of its JSON
(what a trainer writes), and of the planner's text for each step.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dataloader_client.checkpoint import Checkpoint
from dataloader_svc.planner.state import State
from dataloader_svc.testing.planning import PlanDriver, plan_config
from dataloader_svc.testing.scripted_loader import ScriptedSources

STEPS, FIELDS = 60, 13


def cpu_ms(work: Callable[[], object]) -> float:
    best = np.inf
    for _ in range(20):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return float(best * 1e3)


def late_state(count: int, *, different: bool = False, steps: int = STEPS, sequences: int = 2048) -> State:
    """Of a job of `count` sources that has run for long."""
    rng = np.random.default_rng(count)
    names = [f"source-{number:03d}" for number in range(count)]
    lengths = {name: rng.integers(1, 64, 400).tolist() for name in names}
    config = plan_config(dict.fromkeys(names, 1.0), sequences=sequences, sequence_length=64)
    state = PlanDriver(config, ScriptedSources.of_lengths(lengths, block=50)).run(steps - 1)[-1].state
    sources = {
        name: replace(
            source,
            epoch=3,
            position=10_000_000 + number,
            samples=20_000_000 + number,
            tokens=10_000_000_000 + number,
            index=f"{number:016x}",
            shards=128,
            bad={"empty_text": 12, "not_media": 3, "truncated": 1} if number % 10 == 0 else {},
        )
        for number, (name, source) in enumerate(state.sources.items())
    }
    hashes = {
        f"source/{name}": "-".join([f"{number if different else 7:04x}"] * FIELDS)
        for number, name in enumerate(names)
    }
    return replace(state, sources=sources, config={"job": "-".join(["abcd"] * 11), **hashes})


def checkpoint(state: State) -> Checkpoint:
    """As a client has it at the boundary before the state's step."""
    return Checkpoint(json.loads(state.to_json()), state.step, 0, 8, 1, 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", nargs="*", type=int, default=[3, 30, 306, 1000])
    counts = parser.parse_args().sources
    titles = ("state_dict", "to JSON", "planner")
    print(f"{'sources':>8} {'settings':>13} {'JSON KiB':>9}{''.join(f'{title:>12}' for title in titles)}")
    for count in counts:
        for different in (False, True):
            state = late_state(count, different=different)
            at = checkpoint(state)
            size = len(json.dumps(at.to_dict()))
            times = (
                cpu_ms(work) for work in (at.to_dict, lambda at=at: json.dumps(at.to_dict()), state.to_json)
            )
            figures = "".join(f"{figure:12.4f}" for figure in times)
            print(f"{count:8} {'all different' if different else 'alike':>13} {size / 1024:9.1f}{figures}")


if __name__ == "__main__":
    main()
