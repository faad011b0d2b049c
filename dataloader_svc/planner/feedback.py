"""What ranks report to have lost, collected until a period of it is whole. Pure.

A report is of one rank and step, and may come late, twice, never, or as rubbish. What is made of a period
depends on the set of its reports alone: never on their order, nor on when they come. `adaptive.py` keeps
them in the store and decides by them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dataloader_client._pb.control_service_pb2 import StepLosses

Rank = tuple[int, int]
"""(dp rank, cp rank): those of one pair see the same tokens."""

MOST = 1e15
"""Of a sum of losses, or of targets, that one rank reports of a step and source."""

_PARTS = 1 << 32
"""Sums are kept as whole numbers of this part of 1, so that their order makes no difference at all."""


@dataclass(slots=True)
class _Step:
    """Sums of a step: (loss, targets) by source, in parts. Of one session alone, the newest that reported."""

    session: int
    ranks: set[Rank] = field(default_factory=set)
    sums: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))


@dataclass(frozen=True, slots=True)
class Sums:
    """Of a period: mean loss of a target, and how many targets that is of, by source; of all ranks."""

    losses: Mapping[str, float]
    targets: Mapping[str, float]


class Feedback:
    """Reports of the periods from `decided` on: `every` steps each, counted from `begin`.

    names      of the sources, as reports number them
    patience   steps that ranks are waited for beyond the end of a period, while others go on
    refuse     is told what was left out since it is no loss
    """

    def __init__(
        self,
        names: tuple[str, ...],
        *,
        begin: int,
        every: int,
        patience: int,
        refuse: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._names, self._refuse = names, refuse
        self._begin, self._every, self._patience = begin, every, patience
        self._decided = begin
        self._steps: dict[int, _Step] = {}
        self._session = 0
        self._newest: dict[Rank, int] = {}  # step, by rank that has reported in the session

    @property
    def decided(self) -> int:
        """Losses of steps before it are of no use any more."""
        return self._decided

    @property
    def num_steps(self) -> int:
        """Steps that are held."""
        return len(self._steps)

    @property
    def num_ranks(self) -> int:
        """Ranks that have reported in the newest session."""
        return len(self._newest)

    def end_of(self, step: int) -> int:
        """The step that follows the period of `step`."""
        return self._begin + ((step - self._begin) // self._every + 1) * self._every

    def next(self, step: int) -> int:
        """The end of the period that decides next, where `step` is planned next."""
        return self.end_of(max(min(self._steps, default=step), self._decided))

    def forget(self, before: int) -> None:
        """Steps before it have been decided on."""
        self._decided = max(before, self._begin)
        for number in [number for number in self._steps if number < self._decided]:
            del self._steps[number]

    def is_new(self, report: StepLosses) -> bool:
        """Whether it says anything that is not known."""
        known = self._steps.get(report.step)
        if report.step < self._decided or report.session < self._session:
            return False
        return known is None or known.session < report.session or _rank(report) not in known.ranks

    def add(self, report: StepLosses) -> None:
        """Take in one that `is_new`. The first of a newer session drops what was reported of its step and of
        later ones: the trainer has gone back, and says it again.
        """
        if report.session > self._session:
            self._session, self._newest = report.session, {}
            for number in [number for number in self._steps if number >= report.step]:
                del self._steps[number]
        rank = _rank(report)
        self._newest[rank] = max(self._newest.get(rank, -1), report.step)
        step = self._steps.setdefault(report.step, _Step(report.session))
        if step.session < report.session:
            step = self._steps[report.step] = _Step(report.session)
        step.ranks.add(rank)
        for source, loss, targets in zip(report.source, report.loss, report.targets, strict=True):
            if why := _wrong(loss, targets):
                self._refuse(
                    f"step {report.step}, dp rank {rank[0]}, cp rank {rank[1]}: {self._names[source]!r} has "
                    f"{why}"
                )
            elif targets > 0:
                sums = step.sums[source]
                sums[0] += round(loss * _PARTS)
                sums[1] += round(targets * _PARTS)

    def due(self, expected: int) -> int | None:
        """The end of the first period with reports, once no more of it are to come: all of the `expected`
        ranks have reported a later step, or one has that is so much later. A rank reports in order.
        """
        if not self._steps or not self._newest:
            return None
        end = self.end_of(min(self._steps))
        steps = self._newest.values()
        whole = len(steps) >= expected and min(steps) >= end
        return end if whole or max(steps) >= end + max(self._patience, 0) else None

    def sums(self, before: int) -> Sums:
        """Of the steps before `before` that are held; sources without targets are left out."""
        found: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
        for number, step in self._steps.items():
            if number < before:
                for source, (loss, targets) in step.sums.items():
                    found[source][0] += loss
                    found[source][1] += targets
        rows = {self._names[source]: sums for source, sums in sorted(found.items()) if sums[1] > 0}
        return Sums(
            losses={name: loss / targets for name, (loss, targets) in rows.items()},
            targets={name: targets / _PARTS for name, (_, targets) in rows.items()},
        )


def is_well_formed(report: StepLosses, num_sources: int) -> bool:
    """Whether its columns can be read at all, and name each source once."""
    columns = len(report.source), len(report.loss), len(report.targets)
    once = len(set(report.source)) == len(report.source)
    return len(set(columns)) == 1 and once and all(source < num_sources for source in report.source)


def _rank(report: StepLosses) -> Rank:
    return int(report.dp_rank), int(report.cp_rank)


def _wrong(loss: float, targets: float) -> str:
    """Why it is no sum of losses; "" where it is."""
    if not (math.isfinite(loss) and abs(loss) <= MOST):
        return f"a loss of {loss:g}"
    if not (math.isfinite(targets) and 0 <= targets <= MOST):
        return f"{targets:g} targets"
    return ""
