"""The main job on real input: serve, train on two ranks, kill, resume on four, audit what was delivered.

    python examples/train/run_demo.py [--steps 24]

Run by `make run`. Starts `dataloader-svc serve` and the ranks of `train.py` as real processes, SIGKILLs the
trainer a few steps after its checkpoint, resumes on another number of ranks, and proves from the ranks' own
logs that each sample that counted was delivered once. Ends what it started, whatever happens.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, default=HERE / "mixture.yaml")
    parser.add_argument("--steps", type=int, default=24, help="steps in all")
    parser.add_argument("--ranks", type=int, default=2, help="data-parallel ranks before the kill")
    parser.add_argument("--ranks-after", type=int, default=4, help="and after")
    return parser.parse_args()


@contextlib.contextmanager
def service(config: Path, store: Path) -> Iterator[str]:
    """A running `dataloader-svc serve`; yields its address."""
    command = [sys.executable, "-m", "dataloader_svc", "serve", str(config), "--json"]
    command += ["--address", "127.0.0.1:0", "--store", f"sqlite:///{store}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            sys.exit(f"the service did not start (exit code {process.wait()})")
        yield json.loads(line)["address"]
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Trainer:
    """The ranks of one run, as processes of their own."""

    def __init__(self, address: str, out: Path, name: str, ranks: int, *options: str) -> None:
        self.out, self.name, self.ranks = out, name, ranks
        rendezvous = f"tcp://127.0.0.1:{free_port()}"
        command = [
            sys.executable,
            str(HERE / "train.py"),
            "--address",
            address,
            "--out",
            str(out),
            "--name",
            name,
        ]
        command += ["--rendezvous", rendezvous, "--world-size", str(ranks), *options]
        self.processes = [
            subprocess.Popen([*command, "--rank", str(rank)], env={**os.environ, "OMP_NUM_THREADS": "1"})
            for rank in range(ranks)
        ]

    def wait(self) -> None:
        codes = [process.wait() for process in self.processes]
        if any(codes):
            sys.exit(f"trainer {self.name} failed: exit codes {codes}")

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()

    def wait_for_step(self, step: int) -> None:
        """Until rank 0 has finished `step`, by its log."""
        path = self.out / f"{self.name}-rank0.jsonl"
        while self.processes[0].poll() is None:
            if path.exists() and any(row["step"] >= step for row in steps_of(path)):
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.processes[0].wait(0.1)
        sys.exit(f"trainer {self.name} ended before step {step}")

    def logs(self) -> list[Path]:
        return [self.out / f"{self.name}-rank{rank}.jsonl" for rank in range(self.ranks)]


def rows_of(path: Path) -> list[dict]:
    """Whole lines of a log that its writer may have been killed in."""
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def steps_of(path: Path) -> list[dict]:
    return [row for row in rows_of(path) if "loss" in row]


def audit(first: Trainer, second: Trainer, checkpoint: int, steps: int) -> Counter[str]:
    """Pieces that counted: the first run's before the checkpoint, all of the second's. Tokens by source."""
    pieces: Counter[tuple] = Counter()
    for trainer, low, high in ((first, 0, checkpoint), (second, checkpoint, steps)):
        for path in trainer.logs():
            for row in rows_of(path):
                if "spans" in row and low <= row["step"] < high:
                    pieces.update(tuple(span) for span in row["spans"])
    twice = [piece for piece, count in pieces.items() if count > 1]
    if twice:
        sys.exit(f"audit: delivered twice: {twice[0]}")
    replayed = {row["step"]: row["digest"] for row in steps_of(first.logs()[0]) if row["step"] >= checkpoint}
    for row in steps_of(second.logs()[0]):
        if row["step"] in replayed and replayed[row["step"]] != row["digest"]:
            sys.exit(f"audit: step {row['step']} has other samples on {second.ranks} ranks")
    tokens: Counter[str] = Counter()
    for source, _, _, _, length in pieces:
        tokens[source] += length
    print(f"audit: {len(pieces)} pieces of documents in {steps} steps, none delivered twice")
    print(
        f"audit: the {len(replayed)} steps trained before the kill and again after it hold the same samples "
        f"on {second.ranks} ranks as on {first.ranks}"
    )
    return tokens


def summary(first: Trainer, second: Trainer, checkpoint: int, tokens: Counter[str], config: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    rows = [row for row in steps_of(first.logs()[0]) if row["step"] < checkpoint] + steps_of(second.logs()[0])
    warm = [row for row in rows if row["step"] not in (0, checkpoint)]  # not the start-up of a run

    def mean(name: str) -> float:
        return sum(row["metrics"][name] for row in rows) / len(rows)

    total, seconds = sum(tokens.values()), sum(row["seconds"] for row in warm)
    per_step = total / len(rows)
    table = Table(title="train-demo", box=None, show_header=False, title_justify="left")
    table.add_row(
        "loss", f"{rows[0]['loss']:.3f} at step 0, {rows[-1]['loss']:.3f} at step {rows[-1]['step']}"
    )
    table.add_row("tokens/s trained", f"{per_step * len(warm) / seconds:,.0f}")
    schedule = yaml.safe_load(config.read_text())["mixture"]["schedule"]
    for name, target in shares(schedule, len(rows)).items():
        table.add_row(f"share of {name}", f"{tokens[name] / total:.4f}, target {target:.4f}")
    table.add_row("packing efficiency", f"{mean('packing_efficiency'):.4f}")
    for phase in ("llm", "encoder"):
        text = f"{mean(f'{phase}_imbalance'):.3f}, arrival order {mean(f'{phase}_imbalance_arrival'):.3f}"
        table.add_row(f"{phase} imbalance", f"{text}, floor {mean(f'{phase}_floor'):.3f}")
    table.add_row("trainer waited", f"{sum(row['wait_s'] for row in warm) / seconds:.1%} of the time")
    Console(highlight=False).print(table)
    if rows[-1]["loss"] >= rows[0]["loss"]:
        sys.exit("the loss did not go down")


def shares(schedule: list[dict], steps: int) -> dict[str, float]:
    """Mean target share of each source over the steps of a schedule with at most one ramp."""
    from dataloader_svc.observe.audit import weights_at

    entries = [
        {"step": entry["step"], "ramp": entry.get("ramp", "none"), "weights": _weights(entry)}
        for entry in schedule
    ]
    total: Counter[str] = Counter()
    for step in range(steps):
        for name, weight in weights_at(entries, step).items():
            total[name] += weight / steps  # type: ignore[assignment]
    return dict(total)


def _weights(entry: dict) -> dict[str, float]:
    return {name: weight for name, weight in entry.items() if name not in ("step", "ramp")}


def main() -> None:
    args = parse()
    sys.stdout.reconfigure(line_buffering=True)  # in order with what the ranks print, also into a file
    checkpoint = args.steps // 2
    out = ROOT / "build" / "train"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch, service(args.config, Path(scratch) / "job.db") as address:
        print(f"service at {address}; training on {args.ranks} ranks, checkpoint after step {checkpoint}")
        options = ("--steps", str(args.steps), "--checkpoint-at", str(checkpoint))
        first = Trainer(address, out, "first", args.ranks, *options)
        try:
            first.wait_for_step(checkpoint + 1)
        finally:
            first.kill()
        print(f"trainer killed after step {checkpoint + 1}; resuming on {args.ranks_after} ranks")
        resume = ("--steps", str(args.steps), "--resume", str(out / "checkpoint.pt"))
        second = Trainer(address, out, "second", args.ranks_after, *resume)
        try:
            second.wait()
        finally:
            second.kill()
    tokens = audit(first, second, checkpoint, args.steps)
    summary(first, second, checkpoint, tokens, args.config)


if __name__ == "__main__":
    main()
