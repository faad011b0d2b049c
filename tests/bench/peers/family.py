"""CPU seconds and memory of process trees."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import psutil


class Machine:
    """All processors from here on: what else runs on them while a peer is measured."""

    def __init__(self) -> None:
        self.busy, self.total = _processors()

    def others(self, ours: float) -> float:
        """Share of all processors' time since then that was spent on other things than `ours` CPU seconds."""
        busy, total = _processors()
        return max(0.0, busy - self.busy - ours) / max(total - self.total, 1e-9)


def _processors() -> tuple[float, float]:
    """Seconds that all processors together were busy, and all seconds."""
    times = psutil.cpu_times()
    total = times.user + times.nice + times.system + times.idle + times.iowait + times.irq + times.softirq
    total += times.steal
    return total - times.idle - times.iowait, total


def members(roots: Iterable[int]) -> list[psutil.Process]:
    """The processes and all that they started, each once."""
    found: dict[int, psutil.Process] = {}
    for root in roots:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(root)
            for each in (process, *process.children(recursive=True)):
                found[each.pid] = each
    return list(found.values())


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """User and system time that they used so far, with that of children they waited for."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def memory(processes: Iterable[psutil.Process]) -> int:
    """Proportional set size of all, bytes: a page that n of them share counts once."""
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total
