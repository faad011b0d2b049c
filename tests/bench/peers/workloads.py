"""What is measured: the function of a peer's file that gives the batches, and how many ask for them.

`sources` reads one mixture of many parquet sources, each with the footer of a table as corpora are published:
what a loader holds open for each of them in each process is the figure. `sidecar` is one rank and a torch
DataLoader's two workers, with little to do for each sample.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Workload:
    """`ranks` and `workers` are what is run where the command names none; `sources` 0: one data set."""

    name: str
    call: str
    unit: str
    ranks: int = 4
    workers: int = 1
    sources: int = 0
    styles: tuple[str, ...] = ("same", "own")


WORKLOADS = (
    Workload("text", "text", "tokens"),
    Workload("images", "images", "pictures"),
    Workload("sidecar", "text", "tokens", ranks=1, workers=2, styles=("same",)),
    Workload("sources-32", "sources", "tokens", ranks=8, sources=32, styles=("same",)),
    Workload("sources-306", "sources", "tokens", ranks=8, sources=306, styles=("same",)),
)
NAMES = tuple(workload.name for workload in WORKLOADS)


def by_name(name: str) -> Workload:
    """The workload of that name; KeyError names all."""
    for workload in WORKLOADS:
        if workload.name == name:
            return workload
    raise KeyError(f"no workload {name!r}; there are {', '.join(NAMES)}")
