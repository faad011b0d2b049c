"""The rows of docs/benchmarks.json: figures that were seen, each with what another needs to see them again.

A run replaces the rows that it measured anew (same workload, style, figure and peer) and leaves the others
with the machine and the versions of their own run.
"""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

from tests.bench.peers.report import Results
from tests.bench.peers.table import OURS

KEY = ("workload", "style", "figure", "peer")
DIGITS = 4  # what a figure of a few runs is worth


def write(results: Results, path: Path, command: str) -> int:
    """Put the results' rows into the file, in order of their key. Gives how many there are now.

    Raises ValueError where the file is there and is not a list of such rows: it is not overwritten.
    """
    rows = results.rows()
    for row in rows:
        row |= {name: float(f"{row[name]:.{DIGITS}g}") for name in ("ours", "theirs", "ratio")}
        row |= {
            "runs": len(results.runs[row["workload"], row["style"]][row["peer"]]),
            "versions": {name: results.versions[name] for name in (OURS, row["peer"])},
            "machine": machine(),
            "others": {name: round(_others(results, row, name), 2) for name in (OURS, row["peer"])},
            "command": command,
        }
    return merge(rows, path)


def merge(new: list[dict[str, Any]], path: Path) -> int:
    """Put rows into the file in place of those with their key; see `write`."""
    rows = {_key(row): row for row in [*_read(path), *new]}
    path.write_text(json.dumps([rows[key] for key in sorted(rows)], indent=1, ensure_ascii=False) + "\n")
    return len(rows)


def machine() -> str:
    """Processors and their kind, memory, Python."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    kind = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "?")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} x {kind}, {memory:.0f} GiB, Python {platform.python_version()}"


def _others(results: Results, row: dict[str, Any], peer: str) -> float:
    return results.median(row["workload"], row["style"], peer, "others")


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        rows = json.loads(path.read_text())
        for row in rows:
            _key(row)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path}: {error!r}; allowed: a list of rows with {', '.join(KEY)}; "
            "remove the file to have it written anew"
        ) from None
    return list(rows)


def _key(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(row[name] for name in KEY)
