"""CPU seconds and memory of process trees."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import psutil


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
