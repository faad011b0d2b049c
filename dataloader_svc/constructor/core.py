"""Which steps a constructor plans, builds, holds and drops: one session's window. Decides, never acts.

`Window.apply(event)` is the only door: it changes the state and returns what the service has to do. It knows
steps, ranks and bytes; no plan, no array, no clock, no network. What it guarantees:

- bytes held and reserved never exceed the limit: a step is built only when its bound fits, and encoded copies
  of what is sent take no more than is free;
- the lowest step that somebody waits for is always built next, if need be by dropping steps that nobody
  waits for: any step can be built again, so that no order of reads can block;
- each rank's reads can be repeated, in any order;
- a step that the job skips is not built, nor its plan kept, unless somebody asks for it all the same;
- what only ranks that have left could want is dropped;
- a rank that stands still takes memory from nobody: what lies further behind the others than is built ahead
  of them is dropped, and built again if it is asked for after all.

An idle step becomes planned by `Planned`, is `building` from StartBuild to Built or BuildFailed, then `ready`
until dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from dataloader_svc import skips as skipping
from dataloader_svc.constructor.events import (
    Action,
    Asked,
    BuildFailed,
    Built,
    ClosePlans,
    Delivered,
    Drop,
    Ended,
    Event,
    ExtendPlans,
    GaveUp,
    Left,
    OpenPlans,
    Planned,
    PlansFailed,
    PlansLost,
    Rank,
    Refuse,
    Released,
    Reserved,
    StartBuild,
)

__all__ = [
    "KEPT_PLANS",
    "MAX_BUILDS",
    "Action",
    "Asked",
    "BuildFailed",
    "Built",
    "ClosePlans",
    "Delivered",
    "Drop",
    "Ended",
    "Event",
    "ExtendPlans",
    "GaveUp",
    "Left",
    "OpenPlans",
    "Phase",
    "Planned",
    "PlansFailed",
    "PlansLost",
    "Rank",
    "Refuse",
    "Released",
    "Reserved",
    "StartBuild",
    "Window",
]

MAX_BUILDS = 2
"""Steps built at once: while one is collated, the samples of the next are on their way."""


KEPT_PLANS = 16
"""Times `ahead` steps behind that plans are kept: a rank that comes after all need not fetch each anew."""


class Phase(Enum):
    """Of a step's batches; a plan may be there or not."""

    IDLE = auto()
    BUILDING = auto()
    READY = auto()


@dataclass(slots=True)
class _Step:
    waiting: set[Rank] = field(default_factory=set)
    read_by: set[Rank] = field(default_factory=set)
    phase: Phase = Phase.IDLE
    need: tuple[int, int] | None = None  # (work, kept) bytes; None = no plan yet
    num_bytes: int = 0  # held, or reserved while building
    failed: bool = False


class Window:
    """The steps of one session. `ranks` are the readers this constructor serves; `ahead` steps are built
    before they are asked for. `skips`: (first, stop) of the steps that the job passes over.
    """

    def __init__(
        self,
        ranks: Iterable[Rank],
        *,
        limit_bytes: int,
        ahead: int,
        skips: Sequence[skipping.Run] = (),
    ) -> None:
        self.limit_bytes = limit_bytes
        self.skips = skips
        self.end: int | None = None
        self.latest = -1  # step that any rank ever asked for
        self._ranks = set(ranks)
        self._ahead = ahead
        self._asked: dict[Rank, int] = {}
        self._copies = 0  # bytes
        self._steps: dict[int, _Step] = {}
        self._plans_next: int | None = None  # step that the open stream sends next
        self._plans_up_to = -1
        self._plans_failed = False

    @property
    def held_bytes(self) -> int:
        """Of finished steps and encoded copies, and reserved for what is being built or encoded."""
        return self._copies + sum(step.num_bytes for step in self._steps.values())

    @property
    def free_bytes(self) -> int:
        """What may be reserved."""
        return self.limit_bytes - self.held_bytes

    @property
    def ready(self) -> list[int]:
        """Finished steps, ascending."""
        return sorted(number for number, step in self._steps.items() if step.phase is Phase.READY)

    def apply(self, event: Event) -> list[Action]:
        """Take note of what happened; what to do now, in order."""
        match event:
            case Asked(step, rank):
                self._ranks.add(rank)
                self._asked[rank] = step
                self.latest = max(self.latest, step)
                self._plans_failed = False
                entry = self._steps.setdefault(step, _Step())
                entry.waiting.add(rank)
                entry.failed = False
            case Delivered(step, rank):
                if step in self._steps:
                    self._steps[step].waiting.discard(rank)
                    self._steps[step].read_by.add(rank)
            case GaveUp(step, rank):
                if step in self._steps:
                    self._steps[step].waiting.discard(rank)
            case Left(rank):
                self._ranks.discard(rank)
                self._asked.pop(rank, None)
            case Planned(step, work_bytes, kept_bytes):
                self._plans_next = step + 1
                self._steps.setdefault(step, _Step()).need = (work_bytes, kept_bytes)
            case Ended(step):
                self.end = step
            case PlansLost():
                self._plans_next = None
            case PlansFailed():
                self._plans_next, self._plans_failed = None, True
            case Built(step, kept_bytes):
                self._steps[step].phase, self._steps[step].num_bytes = Phase.READY, kept_bytes
            case BuildFailed(step):
                entry = self._steps[step]
                entry.phase, entry.num_bytes, entry.failed = Phase.IDLE, 0, True
            case Reserved(num_bytes):
                self._copies += num_bytes
            case Released(num_bytes):
                self._copies -= num_bytes
        return [*self._drop_done(), *self._demand_plans(), *self._start_builds()]

    @property
    def frontier(self) -> int:
        """The latest step that the last read of a rank was for that has not left; -1 where there is none."""
        return max(self._asked.values(), default=-1)

    @property
    def _last_ahead(self) -> int:
        """The step up to which plans and batches are made before they are asked for."""
        return skipping.after(self.skips, self.frontier, self._ahead)

    def _behind(self, steps: int) -> int:
        return skipping.before(self.skips, self.frontier, steps)

    def _is_passed_over(self, number: int) -> bool:
        """Whether the job skips the step, and nobody waits for it even so."""
        return skipping.is_skipped(self.skips, number) and not self._steps[number].waiting

    def _is_done(self, number: int) -> bool:
        """Whether every rank has read the step or gone past it, and nobody waits."""
        step = self._steps[number]
        passed = all(rank in step.read_by or self._asked.get(rank, -1) > number for rank in self._ranks)
        return passed and not step.waiting

    def _drop_done(self) -> list[Action]:
        """Forget what nobody will ask for, but the newest done step: a reply that got lost is asked again."""
        last_ahead = self._last_ahead
        beyond = [n for n in self._steps if self._beyond(n, last_ahead) or self._is_passed_over(n)]
        done = [n for n in self._steps if n not in beyond and self._is_done(n)]
        keep = max((n for n in done if self._steps[n].phase is Phase.READY and self._ranks), default=None)
        return [
            *(
                action
                for number in sorted(beyond + done)
                if number != keep and self._steps[number].phase is not Phase.BUILDING
                for action in self._drop(number, forget=True)
            ),
            *self._drop_left_behind(keep),
        ]

    def _drop_left_behind(self, keep: int | None) -> list[Action]:
        """Free the batches that only ranks far behind have not read, and forget the oldest plans of them."""
        far = self._behind(self._ahead)
        oldest_plan = self._behind(KEPT_PLANS * self._ahead)
        behind = [n for n, step in self._steps.items() if n < far and n != keep and not step.waiting]
        return [
            action
            for number in sorted(behind)
            if self._steps[number].phase is Phase.READY
            or (number < oldest_plan and self._steps[number].phase is Phase.IDLE)
            for action in self._drop(number, forget=number < oldest_plan)
        ]

    def _beyond(self, number: int, last_ahead: int) -> bool:
        step = self._steps[number]
        too_far = number > last_ahead or (self.end is not None and number >= self.end)
        return too_far and not step.waiting

    def _drop(self, number: int, *, forget: bool) -> list[Action]:
        step = self._steps[number]
        step.phase, step.num_bytes = Phase.IDLE, 0
        if forget:
            del self._steps[number]
        return [Drop(number, forget)]

    def _demand_plans(self) -> list[Action]:
        if not self._asked and self._plans_next is not None:
            self._plans_next = None
            return [ClosePlans()]
        if not self._asked or self._plans_failed:
            return []
        up_to = self._last_ahead
        coming = {skipping.after(self.skips, self.frontier, n) for n in range(1, self._ahead + 1)}
        wanted = {n for n, step in self._steps.items() if step.waiting} | coming
        lacking = [
            n
            for n in wanted
            if (n not in self._steps or self._steps[n].need is None) and (self.end is None or n < self.end)
        ]
        if not lacking:
            return []
        first = min(lacking)
        if self._plans_next is None or first < self._plans_next:
            self._plans_next, self._plans_up_to = first, up_to
            return [OpenPlans(first, up_to)]
        if up_to > self._plans_up_to:
            self._plans_up_to = up_to
            return [ExtendPlans(up_to)]
        return []

    def _start_builds(self) -> list[Action]:
        actions: list[Action] = []
        building = sum(step.phase is Phase.BUILDING for step in self._steps.values())
        for number in self._build_order():
            step = self._steps[number]
            assert step.need is not None
            needed = sum(step.need)
            if needed > self.limit_bytes:
                if step.waiting:
                    step.failed = True
                    actions.append(Refuse(number, needed))
                continue
            if building >= MAX_BUILDS:
                break
            room = self._make_room(needed, drop_unread=bool(step.waiting))
            if room is None:
                break  # nothing less urgent may take the memory that this one waits for
            actions += room
            step.phase, step.num_bytes = Phase.BUILDING, needed
            building += 1
            actions.append(StartBuild(number))
        return actions

    def _build_order(self) -> list[int]:
        """Planned steps that are not built: those somebody waits for, then those ahead, each ascending."""
        frontier = self.frontier
        open_steps = {
            n: step
            for n, step in self._steps.items()
            if step.phase is Phase.IDLE and step.need is not None and not step.failed
        }
        waited = sorted(n for n, step in open_steps.items() if step.waiting)
        ahead = sorted(n for n, step in open_steps.items() if not step.waiting and n > frontier)
        return [*waited, *ahead]

    def _make_room(self, needed: int, *, drop_unread: bool) -> list[Action] | None:
        """Drops that leave `needed` bytes free, or None where they would not suffice.

        Done steps go first, oldest first; then, for a step that somebody waits for, unread ones, farthest
        ahead first.
        """
        ready = [n for n in self.ready if not self._steps[n].waiting]
        done = [n for n in ready if self._is_done(n)]
        unread = [n for n in reversed(ready) if n not in done] if drop_unread else []
        free = self.free_bytes
        victims = []
        for number in (*done, *unread):
            if free >= needed:
                break
            victims.append(number)
            free += self._steps[number].num_bytes
        if free < needed:
            return None
        return [action for n in victims for action in self._drop(n, forget=n in done)]

    def validate(self) -> None:
        """The invariants, for tests: after every event."""
        assert self.held_bytes <= self.limit_bytes, (self.held_bytes, self.limit_bytes)
        assert self._copies >= 0, self._copies
        for number, step in self._steps.items():
            assert (step.num_bytes == 0) == (step.phase is Phase.IDLE), (number, step)
            assert step.phase is Phase.IDLE or step.need is not None, (number, step)
        assert sum(step.phase is Phase.BUILDING for step in self._steps.values()) <= MAX_BUILDS
