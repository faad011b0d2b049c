"""`dataloader-svc bench`: how fast a job's data comes, where the time goes, and what it costs."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import psutil

from dataloader_client import Mesh
from dataloader_svc.cli.meshes import MeshType, ranks, short
from dataloader_svc.cli.output import (
    config_argument,
    console,
    examples,
    json_option,
    print_json,
    progress_bars,
    table,
)
from dataloader_svc.cli.preflight import load_checked
from dataloader_svc.engine.job import Job
from dataloader_svc.engine.spec import job_spec, private


@dataclass(slots=True)
class Figures:
    """What was measured after the warm-up. Seconds are wall clock unless `cpu_s`."""

    steps: int = 0
    seconds: float = 0.0
    first_batch_s: float = 0.0
    batches: int = 0
    tokens: int = 0
    num_bytes: int = 0
    waited_s: float = 0.0
    rank_seconds: float = 0.0
    trace: Counter[str] = field(default_factory=Counter)
    metrics: Counter[str] = field(default_factory=Counter)
    cpu_s: dict[str, float] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Rates, shares and means, by name with the unit in it."""
        seconds, steps = max(self.seconds, 1e-9), max(1, self.steps)
        return {
            "steps": self.steps,
            "first_batch_s": self.first_batch_s,
            "steps_per_s": self.steps / seconds,
            "batches_per_s": self.batches / seconds,
            "tokens_per_s": self.tokens / seconds,
            "bytes_per_s": self.num_bytes / seconds,
            "stall_share": self.waited_s / max(self.rank_seconds, 1e-9),
            "trace_s_per_step": {name: value / steps for name, value in sorted(self.trace.items())},
            "metrics": {name: value / steps for name, value in sorted(self.metrics.items())},
            "cpu_s_per_step": {name: value / steps for name, value in sorted(self.cpu_s.items())},
            "memory_bytes": dict(sorted(self.memory.items())),
        }


@click.command(
    epilog=examples(
        "dataloader-svc bench mixture.yaml --steps 50",
        "dataloader-svc bench mixture.yaml --mesh dp=4 --compute 0.2 --json",
    )
)
@config_argument
@click.option("--steps", default=20, show_default=True, help="Steps to measure, after the warm-up.")
@click.option("--warmup", default=2, show_default=True, help="Steps to take first.")
@click.option("--mesh", type=MeshType(), help="dp=2,cp=2.  [default: the configuration's]")
@click.option(
    "--compute", default=0.0, show_default=True, help="Seconds that a rank pretends to compute on each step."
)
@json_option
def command(
    config: Path, steps: int, warmup: int, mesh: Mesh | None, compute: float, *, as_json: bool
) -> None:
    """Measure a job on this machine: rates, where each step's time goes, processes' CPU and memory.

    All processes and the ranks share this machine's cores, so compare figures of one machine only.
    """
    loaded = load_checked(config)
    mesh = mesh or Mesh(dp=loaded.config.mesh.dp, cp=loaded.config.mesh.cp)
    with tempfile.TemporaryDirectory(prefix="dataloader-bench-") as scratch:
        folder = Path(scratch)
        spec = job_spec(loaded, folder, "127.0.0.1:0", f"sqlite:///{folder / 'bench.db'}")
        with progress_bars() as progress, Job(private(spec)) as job:
            task = progress.add_task("warming up", total=warmup + steps)
            figures = _measure(job, mesh, steps, warmup, compute, partial(progress.advance, task))
    if as_json:
        print_json({"job": loaded.config.job, "mesh": short(mesh), **figures.as_json()})
    else:
        _print(loaded.config.job, short(mesh), figures)


def _measure(
    job: Job, mesh: Mesh, steps: int, warmup: int, compute: float, advance: Callable[[], None]
) -> Figures:
    figures = Figures()
    began = time.perf_counter()
    cpu_before: dict[str, float] = {}
    start = began
    with ranks(job.address, mesh, token=job.token) as group:
        waited_before = bytes_before = 0.0
        for number, step in enumerate(group.steps(warmup + steps)):
            now = time.perf_counter()
            if number == 0:
                figures.first_batch_s = now - began
            if number + 1 == warmup or (warmup == 0 and number == 0):
                start, cpu_before = now, _cpu(job)
                waited_before = sum(loader.stats.wait_s for loader in group.loaders.values())
                bytes_before = sum(loader.stats.num_bytes for loader in group.loaders.values())
            if number >= warmup:
                batches = [batch for microbatches in step.values() for batch in microbatches]
                figures.steps += 1
                figures.batches += len(batches)
                seen = {coords.dp: microbatches for coords, microbatches in step.items()}
                figures.tokens += sum(batch.num_tokens for rank in seen.values() for batch in rank)
                figures.trace.update(batches[0].trace)
                figures.metrics.update(batches[0].metrics)
            advance()
            if compute:
                time.sleep(compute)
        figures.seconds = time.perf_counter() - start
        figures.rank_seconds = figures.seconds * len(group.loaders)
        figures.waited_s = sum(loader.stats.wait_s for loader in group.loaders.values()) - waited_before
        figures.num_bytes = int(
            sum(loader.stats.num_bytes for loader in group.loaders.values()) - bytes_before
        )
        figures.cpu_s = {name: value - cpu_before.get(name, 0.0) for name, value in _cpu(job).items()}
        figures.memory = _memory(job)
    return figures


def _cpu(job: Job) -> dict[str, float]:
    times = {}
    for name, status in job.roles().items():
        if status.pid is not None:
            used = psutil.Process(status.pid).cpu_times()
            times[name] = used.user + used.system
    return times


def _memory(job: Job) -> dict[str, int]:
    """PSS of each process: shared pages count once over all processes."""
    return {
        name: psutil.Process(status.pid).memory_full_info().pss
        for name, status in job.roles().items()
        if status.pid is not None
    }


def _print(name: str, mesh: str, figures: Figures) -> None:
    out = console()
    shown = figures.as_json()
    rows = [
        ("first batch", f"{shown['first_batch_s']:.2f} s"),
        ("steps", f"{shown['steps_per_s']:.2f} /s"),
        ("microbatches, all ranks", f"{shown['batches_per_s']:.2f} /s"),
        ("tokens", f"{shown['tokens_per_s']:,.0f} /s"),
        ("payload, all ranks", f"{shown['bytes_per_s'] / 1e6:,.1f} MB/s"),
        ("ranks waited", f"{shown['stall_share']:.1%} of the time"),
    ]
    rows += [(f"step time: {phase}", f"{s * 1e3:,.1f} ms") for phase, s in shown["trace_s_per_step"].items()]
    out.print(table(f"{name} on {mesh}, {figures.steps} steps", ("figure", ">value"), rows))
    used = [
        (role, f"{shown['cpu_s_per_step'].get(role, 0.0) * 1e3:,.0f} ms", f"{size / 2**20:,.0f} MiB")
        for role, size in shown["memory_bytes"].items()
    ]
    out.print()
    out.print(table("", ("process", ">CPU a step", ">memory (PSS)"), used))
    metrics = [(name, f"{value:,.4f}") for name, value in shown["metrics"].items()]
    out.print()
    out.print(table("", ("plan, mean over steps", ">value"), metrics))
