"""Medians, ratios and pictures of what the peers did."""

from __future__ import annotations

import os
import platform
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench.peers.table import OURS
from tests.bench.peers.workloads import WORKLOADS

UNITS = {workload.name: workload.unit for workload in WORKLOADS}
FIGURES = {
    "rate": "{unit}/s",
    "per_cpu_s": "{unit} a CPU second",
    "pss": "memory, PSS",
    "first_s": "s from a rank's start to its first batch",
}
LESS_IS_BETTER = ("pss", "first_s")


@dataclass(slots=True)
class Results:
    """Runs by (workload, style, peer); what can't run, what failed, what conversion cost."""

    versions: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    conversions: dict[str, dict[str, float]] = field(default_factory=dict)
    runs: dict[tuple[str, str], dict[str, list[dict[str, float]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    def add(self, workload: str, style: str, peer: str, figures: dict[str, float]) -> None:
        """One run."""
        self.runs[workload, style][peer].append(figures)

    def median(self, workload: str, style: str, peer: str, figure: str) -> float:
        """Over the runs."""
        return statistics.median(run[figure] for run in self.runs[workload, style][peer])

    def rows(self) -> list[dict[str, Any]]:
        """`workload, style, figure, ours, peer, theirs, ratio`; ratio > 1: the service is better."""
        rows = []
        for (workload, style), peers in self.runs.items():
            if OURS not in peers:
                continue
            for peer in peers:
                if peer == OURS:
                    continue
                for figure in FIGURES:
                    ours, theirs = (self.median(workload, style, name, figure) for name in (OURS, peer))
                    ratio = theirs / ours if figure in LESS_IS_BETTER else ours / max(theirs, 1e-9)
                    rows.append(
                        {
                            "workload": workload,
                            "style": style,
                            "figure": FIGURES[figure].format(unit=UNITS[workload]),
                            "ours": ours,
                            "peer": peer,
                            "theirs": theirs,
                            "ratio": ratio,
                        }
                    )
        return rows

    def as_json(self) -> dict[str, Any]:
        """Everything, with the machine."""
        return {
            "machine": {
                "cpus": os.cpu_count(),
                "python": platform.python_version(),
                "system": platform.platform(),
            },
            "versions": self.versions,
            "absent": self.absent,
            "failures": self.failures,
            "conversions": self.conversions,
            "rows": self.rows(),
            "runs": [
                {"workload": workload, "style": style, "peer": peer, "runs": runs}
                for (workload, style), peers in self.runs.items()
                for peer, runs in peers.items()
            ],
        }


def print_peers(results: Results) -> None:
    """Versions, and what can't run and why."""
    table = Table("peer", "version")
    for name, version in results.versions.items():
        table.add_row(name, version)
    for name, reason in results.absent.items():
        table.add_row(name, f"can't run: {reason}")
    Console().print(table)


def print_results(results: Results) -> None:
    """One table a workload: medians, spread and the ratio to the service."""
    console = Console(width=130)
    print_peers(results)
    for (workload, style), peers in results.runs.items():
        unit = UNITS[workload]
        table = Table(
            "peer",
            f"{unit}/s",
            "spread",
            f"{unit} a CPU s",
            "PSS MiB",
            "first batch s",
            "service / peer",
            title=f"{workload}, {style} libraries",
        )
        for peer, runs in peers.items():
            rates = [run["rate"] for run in runs]
            rate = max(statistics.median(rates), 1e-9)  # none came in the window
            ours = results.median(workload, style, OURS, "rate") if OURS in peers else float("nan")
            table.add_row(
                peer,
                f"{rate:,.0f}",
                f"{(max(rates) - min(rates)) / rate:.0%}",
                f"{results.median(workload, style, peer, 'per_cpu_s'):,.0f}",
                f"{results.median(workload, style, peer, 'pss') / 2**20:,.0f}",
                f"{results.median(workload, style, peer, 'first_s'):.1f}",
                f"{ours / rate:.2f}",
            )
        console.print(table)
    for name, reason in results.failures.items():
        console.print(f"failed: {name}: {reason}")


def plot(results: Results, path: Path) -> None:
    """Bars of service / peer by workload."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    groups = list(results.runs)
    figure, axes = plt.subplots(1, max(1, len(groups)), figsize=(5 * max(1, len(groups)), 4), squeeze=False)
    for axis, (workload, style) in zip(axes[0], groups, strict=False):
        names = list(results.runs[workload, style])
        axis.barh(names, [results.median(workload, style, name, "rate") for name in names])
        axis.set_title(f"{workload}, {style} libraries: {UNITS[workload]}/s")
        axis.invert_yaxis()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
