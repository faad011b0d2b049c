"""From a death to the next batch: each role, a loader with and without a shadow, and a peer that restarts.

    python -m tests.bench.recovery [--config CONFIG] [--repeats 3] [--heavy-only] [--no-peers]

Real processes, SIGKILL. Two figures a death, medians over the repeats:

    back    from the kill until the role serves again
    stall   the longest that a trainer waited for a batch after it; one that computes nothing, so that nothing
            hides the outage, and one whose step takes 0.25 s, so that what was built ahead does

The rows "heavy" are of a source that is dear to begin with (`heavy_source.py`): there a shadow pays.

The last rows are restarts: of a trainer with the service alive, of service and trainer, and of two peers in
a new process at the same place: a torchdata StatefulDataLoader (`peer_recovery.py`) and a Mosaic
StreamingDataset (`peer_streaming.py`), in the environments of `make bench-peers`, which are made where they
are missing (`--no-peers` leaves them out). Each starts a Python process with torch in it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from dataloader_client import DataServiceLoader, Mesh
from dataloader_svc.config.load import LoadedConfig, load_config
from dataloader_svc.engine.base import RoleState
from dataloader_svc.engine.job import Job
from tests.bench.heavy_source import write
from tests.bench.job import running, take_step
from tests.bench.peers.environments import Environments

ROOT = Path(__file__).resolve().parents[2]
WARM_STEPS, AFTER_S, STEP_S = 12, 8.0, 0.25
TRAINER = """
import json, sys, time
began = time.perf_counter()
import torch
from dataloader_client import DataServiceLoader, Mesh
state = json.loads(open(sys.argv[2]).read())
with DataServiceLoader(sys.argv[1], mesh=Mesh(), state=state) as loader:
    next(loader)
    print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)
"""


def death(loaded: LoadedConfig, victim: str, *, shadows: int, step_s: float) -> tuple[float, float]:
    """(back, stall) in seconds."""
    with running(loaded, shadows=shadows) as job, DataServiceLoader(job.address, mesh=Mesh()) as loader:
        batches = iter(loader)
        for _ in range(WARM_STEPS):
            take_step(batches)
        was = job.roles()[victim]
        assert was.pid is not None
        back: list[float] = []
        os.kill(was.pid, signal.SIGKILL)
        killed = time.perf_counter()
        watch = threading.Thread(target=lambda: back.append(_back(job, victim, was.pid) - killed))
        watch.start()
        stall = 0.0
        while time.perf_counter() < killed + AFTER_S or not back:
            began = time.perf_counter()
            take_step(batches)
            stall = max(stall, time.perf_counter() - began)
            time.sleep(step_s)
        watch.join()
        return back[0], stall


def _back(job: Job, name: str, pid: int | None) -> float:
    while True:
        now = job.roles()[name]
        if now.state is RoleState.READY and now.pid != pid:
            return time.perf_counter()
        time.sleep(0.005)


def trainer_restarts(loaded: LoadedConfig, *, with_service: bool) -> float:
    """From a new trainer's start, or the service's and then the trainer's, to its first batch."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        state = folder / "state.json"
        with running(loaded, folder=folder) as job:
            with DataServiceLoader(job.address, mesh=Mesh()) as loader:
                batches = iter(loader)
                for _ in range(WARM_STEPS):
                    take_step(batches)
                state.write_text(json.dumps(loader.state_dict()))
            if not with_service:
                return _trainer(job.address, state)
        began = time.perf_counter()
        with running(loaded, folder=folder) as job:
            return time.perf_counter() - began + _trainer(job.address, state)


def _trainer(address: str, state: Path) -> float:
    command = [sys.executable, "-c", TRAINER, address, str(state)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["seconds"])


def peer_restarts(python: str, script: str, *data: str) -> float:
    """Seconds from the start of a new process to its next batch."""
    with tempfile.TemporaryDirectory() as scratch:
        state = f"{scratch}/state"
        save = [python, script, "save", state, str(WARM_STEPS), *data]
        subprocess.run(save, check=True)
        resume = [python, script, "resume", state, *data]
        done = subprocess.run(resume, stdout=subprocess.PIPE, text=True, check=True)
        return float(json.loads(done.stdout)["seconds"])


def measure_peers(repeats: int) -> dict[str, list[float]]:
    """Row -> [seconds of a restart]."""
    made = Environments(ROOT / "build/peers")
    folder = ROOT / "tests/bench"
    rows = {}
    with tempfile.TemporaryDirectory() as data:
        streaming, shards = str(folder / "peer_streaming.py"), f"{data}/mds"
        subprocess.run([made.python("streaming"), streaming, "convert", shards], check=True)
        for name, environment, command in (
            ("StatefulDataLoader restarts", "main", [str(folder / "peer_recovery.py")]),
            ("StreamingDataset restarts", "streaming", [streaming, shards]),
        ):
            python = made.python(environment)
            rows[name] = median(repeats, lambda: (peer_restarts(python, *command),))  # noqa: B023
            print(f"{name:28} {rows[name][0]:6.2f} s", flush=True)
    return rows


def median(repeats: int, measure: Callable[[], tuple[float, ...]]) -> list[float]:
    """Of each figure."""
    return [statistics.median(column) for column in zip(*(measure() for _ in range(repeats)), strict=True)]


def deaths(loaded: LoadedConfig, repeats: int, *cases: tuple[str, str, int]) -> dict[str, list[float]]:
    """Row -> [back, stall without compute, stall with]. A case: row, who is killed, shadows."""
    rows: dict[str, list[float]] = {}
    for name, victim, shadows in cases:
        runs = [
            median(repeats, lambda: death(loaded, victim, shadows=shadows, step_s=step_s))  # noqa: B023
            for step_s in (0.0, STEP_S)
        ]
        rows[name] = [runs[0][0], runs[0][1], runs[1][1]]
        print(f"{name:28} " + "  ".join(f"{value:6.2f} s" for value in rows[name]), flush=True)
    return rows


def measure_heavy(repeats: int) -> dict[str, list[float]]:
    """The same of a loader whose source is dear to begin with."""
    with tempfile.TemporaryDirectory() as folder:
        loaded = load_config(write(Path(folder)))
        with running(loaded) as job, DataServiceLoader(job.address, mesh=Mesh()) as loader:
            next(iter(loader))
        cases = (("loader, heavy, cold", "loader-0", 0), ("loader, heavy, shadow", "loader-0", 1))
        return deaths(loaded, repeats, *cases)


def measure(config: Path, repeats: int) -> dict[str, list[float]]:
    """Row -> [back, stall without compute, stall with]; restarts have one figure."""
    loaded = load_config(config)
    with running(loaded) as job, DataServiceLoader(job.address, mesh=Mesh()) as loader:
        next(iter(loader))  # indexes are cached from here on
    rows = deaths(
        loaded,
        repeats,
        ("planner", "planner-0", 0),
        ("constructor", "constructor-0", 0),
        ("loader, cold", "loader-0", 0),
        ("loader, shadow", "loader-0", 1),
    )
    restarts: list[tuple[str, Callable[[], float]]] = [
        ("trainer restarts", lambda: trainer_restarts(loaded, with_service=False)),
        ("service and trainer restart", lambda: trainer_restarts(loaded, with_service=True)),
    ]
    for name, restart in restarts:
        rows[name] = median(repeats, lambda: (restart(),))  # noqa: B023
        print(f"{name:28} {rows[name][0]:6.2f} s", flush=True)
    return rows


def main() -> None:
    """Print the table and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=ROOT / "examples/demo/mixture.yaml")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--heavy-only", action="store_true", help="only the loader of a heavy source")
    parser.add_argument("--no-peers", action="store_true", help="not the restarts of peers")
    arguments = parser.parse_args()
    print(f"{'killed':28}   back     stall, no compute / step {STEP_S} s")
    rows = {} if arguments.heavy_only else measure(arguments.config, arguments.repeats)
    rows |= measure_heavy(arguments.repeats)
    for name in ("loader", "loader, heavy"):
        if f"{name}, cold" in rows:
            cold, shadow = rows[f"{name}, cold"], rows[f"{name}, shadow"]
            print(f"{name}: cold / shadow: back {cold[0] / shadow[0]:.1f}, stall {cold[1] / shadow[1]:.1f}")
    if not (arguments.heavy_only or arguments.no_peers):
        for name, (seconds,) in measure_peers(arguments.repeats).items():
            print(f"{name} / trainer restarts: {seconds / rows['trainer restarts'][0]:.1f}")


if __name__ == "__main__":
    main()
