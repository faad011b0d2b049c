"""The promise "every position once", counted in a plan log: from its records and states alone.

Shares no code with the planner. A log may begin late, after records were removed: then the first state that
is known stands for all before it. What ranks really received is `audit.py`'s affair.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.observe.audit import Finding, Position, weights_at

COLUMNS = ("source", "epoch", "position", "start", "length")
HELD = {"tokens": "length", "patches": "patches", "frames": "frames", "media": "media"}
"""What limits count of a sequence -> the column of a record's pieces."""
_WHERE = "log"


@dataclass(frozen=True, slots=True)
class Entry:
    """A record. pieces: int64 (5, n), rows as COLUMNS, sources as indexes in `sources`; `state` after it.

    sequence_offsets, held   int64 (s+1,) as in the record, and (n,) of each piece by the names of HELD
    """

    step: int
    sources: Sequence[str]
    pieces: NDArray[np.int64]
    passed_over: Sequence[Position]
    readmitted: Sequence[Position]
    state: Mapping[str, Any]
    sequence_offsets: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    held: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)


@dataclass(slots=True)
class Account:
    """What a log holds, and what is wrong. A sample in pieces counts in each step that has one.

    delivered    samples in steps that were read; `on_purpose` those in steps that were skipped
    """

    steps: int = 0
    skipped_steps: int = 0
    delivered: int = 0
    on_purpose: int = 0
    passed_over: int = 0
    waiting: int = 0
    findings: list[Finding] = field(default_factory=list)


def account(base: Mapping[str, Any], entries: Iterable[Entry], rows: Mapping[str, int]) -> Account:
    """Count the samples of a log that follows the state `base`.

    rows   of an epoch of each source; one that is left out may have grown, and its epochs are taken to end
           where the log says
    """
    found = Account()
    pieces: dict[tuple[str, int], list[NDArray[np.int64]]] = defaultdict(list)  # (position, start, length)
    passed_over: Counter[Position] = Counter()
    back: Counter[Position] = Counter()
    last, step = base, int(base["step"])
    for entry in entries:
        if entry.step != step:
            found.findings.append(
                Finding("gap", _WHERE, step, "", f"the next record is of step {entry.step}")
            )
            return found
        step += 1
        found.steps += 1
        skipped = any(first <= entry.step < stop for first, stop, _ in entry.state.get("skips", ()))
        found.skipped_steps += skipped
        found.delivered += _num_samples(entry.pieces) * (not skipped)
        found.on_purpose += _num_samples(entry.pieces) * skipped
        for number, name in enumerate(entry.sources):
            mine = entry.pieces[1:, entry.pieces[0] == number]
            for epoch in np.unique(mine[0]).tolist():
                pieces[name, epoch].append(mine[1:, mine[0] == epoch])
        passed_over.update(entry.passed_over)
        back.update(entry.readmitted)
        last = entry.state
    found.passed_over = sum(passed_over.values())
    found.waiting = len({tuple(run[:3]) for run in last["waiting"]})
    for name, epoch, position, start, length, *_ in last["waiting"]:
        pieces[name, epoch].append(np.array([[position], [start], [length]], np.int64))
    begun = {(run[0], run[1], run[2]): run[3] for run in reversed(base["waiting"])}
    for name, there in last["sources"].items():
        here = base["sources"].get(name, {"epoch": 0, "position": 0})
        old = [epoch for source, epoch, _ in {*begun, *back} if source == name]
        for epoch in range(min([here["epoch"], *old]), there["epoch"] + 1):
            seen = _Seen(
                name,
                epoch,
                np.concatenate([np.empty((3, 0), np.int64), *pieces.get((name, epoch), [])], axis=1),
                [place for place, times in _of(passed_over, name, epoch).items() for _ in range(times)],
                _of(back, name, epoch),
                _of(begun, name, epoch),
            )
            low = here["position"] if epoch == here["epoch"] else 0
            high = there["position"] if epoch == there["epoch"] else rows.get(name)
            if epoch < here["epoch"]:
                low = high = 2**62  # all of it had been drawn before
            problem = _check(seen, low, high)
            found.findings += [] if problem is None else [problem]
    return found


def _of(places: Mapping[Position, int], name: str, epoch: int) -> dict[int, int]:
    return {place: value for (source, at, place), value in places.items() if (source, at) == (name, epoch)}


def _num_samples(pieces: NDArray[np.int64]) -> int:
    return len(np.unique(pieces[:3], axis=1).T)


@dataclass(frozen=True, slots=True)
class _Seen:
    """All that a log says of one epoch of one source.

    pieces        int64 (3, n): position, start, length
    passed_over   positions, one for each time
    back          position -> times that it was readmitted
    begun         position -> where what waited of it at the base begins
    """

    name: str
    epoch: int
    pieces: NDArray[np.int64]
    passed_over: list[int]
    back: Mapping[int, int]
    begun: Mapping[int, int]


def _check(seen: _Seen, low: int, high: int | None) -> Finding | None:
    """The first thing that is wrong with positions `low` to `high` - 1; None: as far as the log goes."""
    position, start, length = seen.pieces
    for place, times in seen.back.items():
        whole = int(((position == place) & (start == 0)).sum()) + seen.passed_over.count(place)
        if whole != times + (place >= low):
            return _finding(seen, f"position {place} was readmitted {times} times, and comes {whole} times")
    usual = ~np.isin(position, list(seen.back))
    order = np.lexsort((start[usual], position[usual]))
    position, start, length = (column[usual][order] for column in seen.pieces)
    first = np.concatenate([[True], np.diff(position) != 0])[: len(position)]
    due = np.concatenate([[0], (start + length)[:-1]])[: len(position)]
    due[first] = [seen.begun.get(place, 0) for place in position[first].tolist()]
    wrong = np.flatnonzero(start != due)
    if len(wrong):
        return _finding(seen, f"a range of tokens of position {position[wrong[0]]} is there twice, or lacks")
    usual_skips = [place for place in seen.passed_over if place not in seen.back]
    found = np.concatenate([np.setdiff1d(position[first], list(seen.begun)), usual_skips]).astype(np.int64)
    found.sort()
    twice = found[:-1][np.diff(found) == 0]
    if len(twice):
        return _finding(seen, f"position {twice[0]} comes twice")
    high = max([low, *(found[-1:] + 1).tolist()]) if high is None else high
    expected = np.setdiff1d(np.arange(low, high), list(seen.back))
    lost, extra = np.setdiff1d(expected, found), np.setdiff1d(found, expected)
    if len(lost):
        return _finding(seen, f"position {lost[0]} is lost")
    return (
        _finding(seen, f"position {extra[0]} comes, and had come before or is not reached")
        if len(extra)
        else None
    )


def _finding(seen: _Seen, text: str) -> Finding:
    return Finding("once", _WHERE, None, "", f"{seen.name} epoch {seen.epoch}: {text}")


def mixture_findings(
    base: Mapping[str, Any], entries: Sequence[Entry], schedule: Sequence[Mapping[str, Any]], unit: str
) -> tuple[list[Finding], float]:
    """Whether after each step every source is within one sample of its target; the worst, in samples.

    By the schedule and the changes that the states name, from what `base` says that each source is owed.
    """
    before, worst = base["sources"], 0.0
    credits_ = base["credits"]  # by name in version 1 of the state, in the order of the names since
    by_name = credits_ if isinstance(credits_, Mapping) else dict(zip(sorted(before), credits_, strict=True))
    owed: dict[str, float] = defaultdict(float, by_name)
    for entry in entries:
        now = entry.state["sources"]
        drawn = {name: now[name][unit] - before[name][unit] for name in now}
        weights = weights_at(schedule, entry.step, entry.state.get("mixture", ()))
        size = max(float(entry.state["largest"]), 1.0)
        for name, amount in drawn.items():
            owed[name] += weights.get(name, 0.0) * sum(drawn.values()) - amount
            worst = max(worst, abs(owed[name]) / size)
            if abs(owed[name]) > size * (1 + 1e-9):
                text = f"{name} is owed {owed[name]:.1f} {unit}; one sample is {size:g}"
                return [Finding("mixture", _WHERE, entry.step, "", text)], worst
        before = now
    return [], worst
