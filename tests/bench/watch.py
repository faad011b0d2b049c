"""The watch over loaders: alarms while nobody is slow (0 wanted), then seconds until a slow loader is named.

    python -m tests.bench.watch [--config CONFIG] [--loaders 3] [--minutes 60] [--step 0.5] [--slowed 3]

A real service and a trainer that takes a step each `--step` seconds. First a clean stretch: each loader that
is named in it is a false alarm, whatever else the machine does meanwhile. Then a new service in which one
loader is slowed tenfold (SIGSTOP, SIGCONT): seconds until the planner names it, until its successor serves,
and the longest that the trainer waited for a batch.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from rich.console import Console

from dataloader_client import DataServiceLoader, Mesh
from dataloader_svc.config.load import LoadedConfig, load_config
from dataloader_svc.engine.base import RoleState
from dataloader_svc.engine.job import Job
from dataloader_svc.store import open_store
from dataloader_svc.store.replaced_log import Replaced, replaced
from tests.bench.job import running, take_step

ROOT = Path(__file__).resolve().parents[2]
WARM_S = 20.0  # at its usual pace, before a loader is slowed
SLOWER, TURN_S = 10, 0.1
GIVE_UP_S = 60.0
VICTIM = "loader-0"


def named(job: Job) -> list[Replaced]:
    """Loaders that the planner called slow or silent, oldest first."""
    with closing(open_store(job.spec.store, job.spec.base_dir)) as store:
        return replaced(store)


def train(job: Job, compute: Callable[[], float | None]) -> tuple[int, float]:
    """(steps taken, longest wait for a batch in seconds); `compute`: seconds of a step, None to end."""
    steps, longest = 0, 0.0
    with DataServiceLoader(job.address, mesh=Mesh()) as loader:
        batches = iter(loader)
        while (step_s := compute()) is not None:
            began = time.perf_counter()
            take_step(batches)
            if steps:  # the first one has the start of everything in it
                longest = max(longest, time.perf_counter() - began)
            steps += 1
            time.sleep(step_s)
    return steps, longest


def clean(loaded: LoadedConfig, loaders: int, step_s: float, seconds: float, console: Console) -> int:
    """False alarms in so many seconds of a calm job."""
    with running(loaded, loaders=loaders) as job:
        end = time.monotonic() + seconds
        with console.status("") as status:

            def compute() -> float | None:
                left = end - time.monotonic()
                status.update(f"calm: {max(left, 0) / 60:.1f} minutes to go")
                return step_s if left > 0 else None

            steps, longest = train(job, compute)
        alarms = named(job)
    for row in alarms:
        console.print(f"  false alarm: {row.loader} at step {row.step}: {row.why}", highlight=False)
    console.print(f"calm: {seconds / 60:g} minutes, {steps} steps, longest wait {longest:.2f} s")
    return len(alarms)


def slowed(loaded: LoadedConfig, loaders: int, step_s: float, console: Console) -> None:
    """Slow one loader down, and say when it was named."""
    with running(loaded, loaders=loaders) as job:
        end = time.monotonic() + WARM_S
        train(job, lambda: step_s if time.monotonic() < end else None)
        victim = job.roles()[VICTIM].pid
        assert victim is not None
        began = time.time()

        def is_back() -> bool:
            now = job.roles()[VICTIM]
            return now.state is RoleState.READY and now.pid != victim

        def compute() -> float | None:
            return None if is_back() or time.time() > began + GIVE_UP_S else step_s

        with throttled(victim):
            _, longest = train(job, compute)
        seconds, back, rows = time.time() - began, is_back(), named(job)
    words = [f"{row.loader} named after {row.at - began:.1f} s ({row.why})" for row in rows] or ["not named"]
    words += [f"its successor served within {seconds:.1f} s" if back else f"given up after {seconds:.1f} s"]
    console.print(f"slowed: {', '.join(words)}, longest wait for a batch {longest:.2f} s", highlight=False)


@contextlib.contextmanager
def throttled(pid: int) -> Iterator[None]:
    """Let a process run a SLOWER-th of the time, while it lives."""
    over = threading.Event()

    def turn() -> None:
        with contextlib.suppress(ProcessLookupError):
            while not over.is_set():
                os.kill(pid, signal.SIGSTOP)
                time.sleep(TURN_S * (SLOWER - 1) / SLOWER)
                os.kill(pid, signal.SIGCONT)
                time.sleep(TURN_S / SLOWER)

    thread = threading.Thread(target=turn)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def main() -> None:
    """Print both figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=ROOT / "tests/bench/mixture_text.yaml")
    parser.add_argument("--loaders", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--step", type=float, default=0.5, help="seconds that the trainer computes a step")
    parser.add_argument("--slowed", type=int, default=3, help="times to slow a loader")
    arguments = parser.parse_args()
    loaded = load_config(arguments.config)
    console = Console(width=110)
    alarms = clean(loaded, arguments.loaders, arguments.step, 60 * arguments.minutes, console)
    console.print(f"false alarms: {alarms}")
    for _ in range(arguments.slowed):
        slowed(loaded, arguments.loaders, arguments.step, console)


if __name__ == "__main__":
    main()
