"""Run a workload by each peer, and print its figures.

python -m tests.bench.peers.correct                                  everything (some minutes)
python -m tests.bench.peers.correct --workload mixture --peer grain
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from tests.bench.peers import record
from tests.bench.peers.environments import Environments
from tests.bench.peers.harness import ENVIRONMENT
from tests.bench.peers.table import OURS, PEERS, by_name

ROOT = Path(__file__).resolve().parents[4]
WORKLOADS = ("mixture", "resume")
LIMIT_S = 300.0
NAMES = {peer.name: peer.environment for peer in PEERS}
"""Environment of each peer; what is not among them, as a part of torchdata, is in `main`."""


@click.command()
@click.option("--workload", "workloads", multiple=True, type=click.Choice(WORKLOADS), help="Default: all.")
@click.option("--peer", "peers", multiple=True, help="Default: all. The service always runs beside them.")
@click.option("--write", type=click.Path(path_type=Path), help="Put the rows into this file of rows.")
def main(workloads: tuple[str, ...], peers: tuple[str, ...], write: Path | None) -> None:
    """What each peer delivers, and what it does not."""
    environments = Environments(ROOT / "build" / "peers")
    for name in workloads or WORKLOADS:
        workload = importlib.import_module(f"tests.bench.peers.correct.{name}")
        folder = ROOT / "build" / "peers" / "correct" / name
        if not (folder / ".ready").exists():
            folder.mkdir(parents=True, exist_ok=True)
            workload.make(folder)
            (folder / ".ready").touch()
        found = {
            peer: _measure(workload, peer, folder, environments)
            for peer in workload.PEERS
            if not peers or peer in (OURS, *peers)
        }
        _print(name, found)
        if write is not None:
            record.merge(_rows(workload, name, found, environments), write)


def _measure(
    workload: ModuleType, peer: str, folder: Path, environments: Environments
) -> dict[str, float | str]:
    python = environments.python(NAMES.get(peer, "main"))
    said: dict[str, Any] = {}
    for style in workload.STYLES:
        print(f"{workload.__name__}: {peer}, {style}", file=sys.stderr, flush=True)
        command = [
            python,
            "-m",
            "tests.bench.peers.correct.child",
            workload.__name__,
            peer,
            str(folder),
            style,
        ]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **ENVIRONMENT},
            start_new_session=True,
        )
        with process:
            try:
                out, errors = process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                return {"failed": f"{style}: nothing after {LIMIT_S:.0f} s"}
            finally:  # with all that it started
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        if process.returncode:
            return {"failed": f"{style}: {(errors.strip().splitlines() or ['no word'])[-1]}"}
        said[style] = json.loads(out.splitlines()[-1])
    found: dict[str, float | str] = workload.figures(said)
    return found


def _rows(
    workload: ModuleType,
    name: str,
    found: dict[str, dict[str, float | str]],
    environments: Environments,
) -> list[dict[str, Any]]:
    """As those of speed: better where it is less, or left out where nothing is; no ratio where ours is 0."""
    rows = []
    for peer, figures in found.items():
        if peer == OURS or "failed" in figures or "failed" in found[OURS]:
            continue
        versions = {each: environments.version(by_name(each)) for each in (OURS, peer) if each in NAMES}
        for figure, theirs in figures.items():
            if figure in workload.NO_BETTER:
                continue
            ours = found[OURS][figure]
            assert not isinstance(ours, str)
            assert not isinstance(theirs, str)
            rows.append(
                {
                    "workload": name,
                    "style": "own",
                    "figure": figure,
                    "ours": round(ours, 4),
                    "peer": peer,
                    "theirs": round(theirs, 4),
                    "ratio": float(f"{theirs / ours:.4g}") if ours else None,
                    "runs": 1,
                    "versions": versions,
                    "machine": record.machine(),
                    "command": f"python -m tests.bench.peers.correct --workload {name} --peer '{peer}'",
                }
            )
    return rows


def _print(workload: str, found: dict[str, dict[str, float | str]]) -> None:
    names = dict.fromkeys(name for figures in found.values() for name in figures)
    table = Table("peer", *names, title=workload)
    for peer, figures in found.items():
        cells = (figures.get(name, "-") for name in names)
        table.add_row(peer, *(cell if isinstance(cell, str) else f"{cell:,.5g}" for cell in cells))
    Console(width=180).print(table)


if __name__ == "__main__":
    main()
