"""Run the peers in turn, several times, and print medians and ratios.

python -m tests.bench.peers                                    everything (an hour on two cores)
python -m tests.bench.peers --workload text --peer grain       one of them beside the service
python -m tests.bench.peers --list                             what there is, and what can't run here
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from pathlib import Path

import click

from tests.bench.peers import harness, material, record, report
from tests.bench.peers import workloads as workloads_there_are
from tests.bench.peers.environments import Environments
from tests.bench.peers.table import OURS, PEERS, Peer, by_name
from tests.bench.peers.task import Task

ROOT = Path(__file__).resolve().parents[3]
STYLES = ("same", "own")


@click.command()
@click.option(
    "--workload",
    "workloads",
    multiple=True,
    type=click.Choice(workloads_there_are.NAMES),
    help="Default: all.",
)
@click.option("--peer", "peers", multiple=True, help="Default: all. The service always runs beside them.")
@click.option(
    "--style", "styles", multiple=True, type=click.Choice(STYLES), help="Same libraries, or users' habits."
)
@click.option("--ranks", type=int, help="Default: the workload's own, 4 for most.")
@click.option("--workers", type=int, help="Worker processes of a peer's rank. Default: the workload's own.")
@click.option("--repeats", default=3, show_default=True, help="Interleaved runs of each.")
@click.option("--warmup", default=3.0, show_default=True, help="Seconds before counting.")
@click.option("--window", default=8.0, show_default=True, help="Seconds of counting.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=ROOT / "build/peers/results.json", show_default=True
)
@click.option("--write", type=click.Path(path_type=Path), help="Put the rows into this file of rows.")
@click.option("--plot", type=click.Path(path_type=Path), help="Write bars of the ratios as a PNG.")
@click.option("--list", "only_list", is_flag=True, help="Versions of the peers, or why one can't run.")
def main(
    workloads: tuple[str, ...],
    peers: tuple[str, ...],
    styles: tuple[str, ...],
    ranks: int | None,
    workers: int | None,
    repeats: int,
    warmup: float,
    window: float,
    out: Path,
    write: Path | None,
    plot: Path | None,
    *,
    only_list: bool,
) -> None:
    """The service beside the loaders that people use, on the same data."""
    home = ROOT / "build" / "peers"
    environments = Environments(home)
    chosen = [by_name(OURS), *(by_name(name) for name in peers)] if peers else list(PEERS)
    results = report.Results()
    for peer in chosen:
        try:
            results.versions[peer.name] = environments.version(peer)
        except RuntimeError as error:
            results.absent[peer.name] = str(error)
    if only_list:
        report.print_peers(results)
        return
    data = material.make(home / "material")
    for workload in map(workloads_there_are.by_name, workloads or workloads_there_are.NAMES):
        for style in (style for style in workload.styles if not styles or style in styles):
            for repeat in range(repeats):
                for peer in chosen:
                    if peer.name in results.absent or workload.call not in peer.workloads:
                        continue
                    if style == "same" and workload.call in peer.not_the_same:
                        continue
                    _say(f"{workload.name} ({style}), run {repeat + 1} of {repeats}: {peer.name}")
                    task = Task(
                        peer=peer.module,
                        workload=workload.call,
                        style=style,
                        data=str(data),
                        converted=str(home / "converted" / peer.module),
                        scratch="",
                        ranks=ranks or workload.ranks,
                        workers=workers or workload.workers,
                        sources=workload.sources,
                    )
                    _run(results, environments, peer, workload.name, task, warmup, window)
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(results.as_json(), indent=1))
            if write is not None:
                _say(f"{write}: {record.write(results, write, _command())} rows")
    report.print_results(results)
    if plot is not None:
        report.plot(results, plot)
    sys.exit(1 if results.failures else 0)


def _run(
    results: report.Results,
    environments: Environments,
    peer: Peer,
    workload: str,
    task: Task,
    warmup: float,
    window: float,
) -> None:
    python = environments.python(peer.environment)
    try:
        if peer.converts:
            results.conversions[peer.name] = harness.convert(python, task)
        figures = harness.measure(
            python, task, has_service=peer.has_service, warmup_s=warmup, window_s=window
        )
    except harness.PeerFailed as error:
        results.failures.setdefault(f"{workload} {task.style} {peer.name}", str(error))
        _say(f"  {error}")
        return
    results.add(workload, task.style, peer.name, figures.as_json())
    _say(f"  {figures.rate:,.0f} /s, {figures.amount / max(figures.cpu_s, 1e-9):,.0f} a CPU second")


def _command() -> str:
    """What was typed, to be typed again; where the rows went is no part of it."""
    words = sys.argv[1:]
    if "--write" in words:
        at = words.index("--write")
        del words[at : at + 2]
    return shlex.join(["python", "-m", "tests.bench.peers", *words])


def _say(text: str) -> None:
    print(f"bench-peers: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    os.chdir(ROOT)
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)
    )  # so that the peers are ended too
    main()
