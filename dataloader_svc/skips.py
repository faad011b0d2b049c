"""Counting steps past those that nobody reads. Pure.

A job may skip runs of steps, which are planned and logged like others (`planner/skip.py`). Who works so many
steps ahead of its readers, or keeps so many behind them, must count the ones that are read.

`skips` are (first, stop) everywhere here: steps `first` to `stop` - 1, ascending, none overlapping another.
"""

from __future__ import annotations

from collections.abc import Sequence

Run = tuple[int, int]


def is_skipped(skips: Sequence[Run], step: int) -> bool:
    """Whether nobody reads `step`."""
    return any(first <= step < stop for first, stop in skips)


def after(skips: Sequence[Run], step: int, count: int) -> int:
    """The `count`-th step after `step` that is read; `count` is 1 or more."""
    last = step + count
    for first, stop in skips:
        if step < stop and first <= last:
            last += stop - max(first, step + 1)
    return last


def before(skips: Sequence[Run], step: int, count: int) -> int:
    """The `count`-th step before `step` that is read, or as far below 0 where there are fewer."""
    last = step - count
    for first, stop in reversed(skips):
        if first < step and last < stop:
            last -= min(stop, step) - first
    return last
