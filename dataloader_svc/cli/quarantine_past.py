"""What has become of a sample, by the plan log: the proof that readmitting it delivers it once.

The quarantine is a view: it keeps what other lives of the job have found. The log of the current history says
which record passed a position, and whether it skipped it. Positions only grow from record to record, so that
record is found by bisection: a dozen records are read, however long the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from dataloader_svc.cli.plan_log import PlanLog
from dataloader_svc.planner.plan import Plan
from dataloader_svc.planner.requests import Requests
from dataloader_svc.planner.state import State
from dataloader_svc.sample import SampleId
from dataloader_svc.store.quarantine_log import Quarantined

_ANY_LENGTH = 2**31 - 1


class Fate(StrEnum):
    """What the history says of a quarantined sample, and what may be asked for."""

    SKIPPED = "skipped"  # may be readmitted
    MASKED = "masked"  # delivered without loss: may be readmitted
    ASKED = "asked"  # a request for it is on its way
    READMITTED = "readmitted"  # came back already
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Verdict:
    """step: of the record that skipped it, or that delivered it masked or again. why: for people."""

    fate: Fate
    step: int = 0
    why: str = ""


@dataclass(slots=True)
class Past:
    """The history of a store: its plan log, and the requests for readmission that belong to it."""

    log: PlanLog
    requests: Requests
    _plans: dict[int, Plan] = field(default_factory=dict)

    @property
    def first(self) -> int:
        return self.log.begins[0]

    @property
    def stop(self) -> int:
        """The next step to be planned."""
        return self.log.parts[0].stop

    @property
    def state(self) -> State:
        """After the last record."""
        return self._after(self.stop - 1)

    def of(self, row: Quarantined) -> Verdict:
        """What the history says of a sample that the quarantine lists."""
        name, place = row.sample.source, (row.sample.epoch, row.sample.position)
        if not _has_passed(self.state, name, place):
            return Verdict(Fate.REFUSED, why="was not passed yet in this history: it comes in its turn")
        if _has_passed(self._after(self.first - 1), name, place):
            return Verdict(
                Fate.REFUSED,
                why=f"was passed before the plan log of this store begins, at step {self.first}: that it was "
                "not delivered can't be proven. planner.keep says how many steps stay in it",
            )
        asked = [
            (request.number, each.place)
            for request in self.requests.asked
            for each in request.samples
            if each.sample == row.sample
        ]
        done = [each for each in asked if each < self.state.readmitted]
        if len(done) < len(asked):
            return Verdict(Fate.ASKED, why=f"is asked for already, by request {asked[-1][0]}")
        step = self._bisect(partial(_has_passed, name=name, place=place))
        for each in done:
            again = self._bisect(partial(_has_done, each))
            if _names(self._plan(again), self._plan(again).readmitted, row.sample):
                step = again
        return self._since(step, row, again=bool(done))

    def _since(self, step: int, row: Quarantined, *, again: bool) -> Verdict:
        """What became of it from the record on that passed it, or put it in line again."""
        plan = self._plan(step)
        skipped = ((source, epoch, bad.position) for source, epoch, bad in plan.skipped)
        if _names(plan, skipped, row.sample):
            return Verdict(Fate.SKIPPED, step)
        pieces = self._pieces(step, row.sample)
        if row.delivered and pieces and self._is_of(row, pieces):
            if len(pieces) > 1:
                return Verdict(
                    Fate.REFUSED,
                    why=f"was delivered in {len(pieces)} pieces, and only those that could not be decoded "
                    "without loss: readmitted, the others would be there twice",
                )
            return Verdict(Fate.MASKED, pieces[0][0])
        if again:
            return Verdict(Fate.READMITTED, step, f"came back already, in line since step {step}")
        at = f"in step {pieces[0][0]}" if pieces else "and waits for its step"
        return Verdict(Fate.REFUSED, why=f"is in this history as a good sample, {at}: nothing is missing")

    def _is_of(self, row: Quarantined, pieces: list[tuple[int, int]]) -> bool:
        """Whether what could not be decoded are these pieces, and not those of another life of the job."""
        if row.step is None:
            return True
        generations = {
            part.generation.number for part in self.log.parts if part.first <= row.step < part.stop
        }
        return row.generation in generations and row.step in [at for at, _ in pieces]

    def _pieces(self, step: int, sample: SampleId) -> list[tuple[int, int]]:
        """(step, start) of its pieces, from `step` on until none of it waits."""
        found: list[tuple[int, int]] = []
        for at in range(step, self.stop):
            plan = self._plan(at)
            if sample.source not in plan.sources:
                break
            number = plan.sources.index(sample.source)
            pieces, waiting = plan.pieces, plan.state.waiting
            mine = (pieces.source == number) & (pieces.epoch == sample.epoch)
            mine &= pieces.position == sample.position
            found += [(at, start) for start in pieces.start[mine].tolist()]
            left = (waiting.source == number) & (waiting.epoch == sample.epoch)
            if not (left & (waiting.position == sample.position)).any():
                break
        return found

    def _bisect(self, reached: Callable[[State], bool]) -> int:
        """The first step after which `reached` holds; it holds after the last, and goes on to hold."""
        low, high = self.first, self.stop - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if reached(self._after(middle)) else (middle + 1, high)
        return low

    def _after(self, step: int) -> State:
        first, before = self.log.begins
        return before if step < first else self._plan(step).state

    def _plan(self, step: int) -> Plan:
        if step not in self._plans:
            self._plans[step] = self.log.read(step, _ANY_LENGTH)[1]
        return self._plans[step]


def _names(plan: Plan, rows: Iterable[tuple[int, int, int]], sample: SampleId) -> bool:
    return any(SampleId(plan.sources[source], epoch, position) == sample for source, epoch, position in rows)


def _has_done(asked: tuple[int, int], state: State) -> bool:
    return state.readmitted > asked


def _has_passed(state: State, name: str, place: tuple[int, int]) -> bool:
    source = state.sources.get(name)
    return source is not None and place < (source.epoch, source.position)
