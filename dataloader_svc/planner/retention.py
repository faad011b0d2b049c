"""What of the store no kept step needs, and its removal: records, factors and changes of before, and
generations that no kept step belongs to.

Nothing here decides how far back steps are kept: `before` is given, and all ranks have committed later ones.
Blocks. Killed anywhere, it goes on with the next commit, since a generation's entry goes last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dataloader_svc import faultpoint
from dataloader_svc.planner.calibration import Factors, factors_log
from dataloader_svc.planner.change import Change
from dataloader_svc.planner.session import GENERATION_POINTER, GENERATION_PREFIX, Generation
from dataloader_svc.store.base import Store
from dataloader_svc.store.quarantine_log import readmitted
from dataloader_svc.store.readmission_log import readmissions

_REMOVED_AT_ONCE = 2048
"""Records: a store that removes them lets others wait for so long."""

_KEPT_CHANGES = 64
"""Of the mixture: whoever asks for one of them again is told that it was made."""


@dataclass(slots=True)
class Retention:
    """Of one planner's store. It remembers which generations there are, so that a commit need not look."""

    store: Store
    _earlier: list[int] = field(default_factory=list)
    _known_in: int = 0  # the generation that was current when they were listed

    def remove(self, current: Generation, before: int, fence: int) -> None:
        """Remove the records of steps before `before`, and the generations that are spent with that."""
        if self._known_in != current.number:
            numbers = _numbers(self.store)
            self._earlier = [number for number in numbers if number < current.number]
            self._known_in = current.number
        _truncate(self.store, current.log, before, fence)
        for number in list(self._earlier):
            _truncate(self.store, Generation.log_of(number), before, fence)
        spent = [number for number in self._earlier if _is_spent(self.store, number, before)]
        named = _named(self.store) if spent else None
        for number in spent:
            if named is None or number < named:
                _remove_generation(self.store, number, fence)
                self._earlier.remove(number)


def _numbers(store: Store) -> list[int]:
    """Of the generations that have an entry, ascending."""
    keys = (key for key in store.items(GENERATION_PREFIX) if key != GENERATION_POINTER)
    return sorted(int(key.removeprefix(GENERATION_PREFIX)) for key in keys)


def _truncate(store: Store, log: str, before: int, fence: int) -> None:
    rows = store.read(log, 0, 1)
    if not rows:
        return
    for up_to in range(rows[0][0] + _REMOVED_AT_ONCE, before, _REMOVED_AT_ONCE):
        store.truncate(log, up_to, fence=fence)
        faultpoint.point("planner.truncated")
    store.truncate(log, before, fence=fence)
    faultpoint.point("planner.truncated")


def _is_spent(store: Store, number: int, before: int) -> bool:
    """Whether no step from `before` on is an earlier generation's."""
    last = store.last(Generation.log_of(number))
    return last is None or last[0] < before


def _named(store: Store) -> int | None:
    """The oldest generation that a request for readmission, or what became of one, belongs to.

    They count in every generation that has their history, which is told by all those between.
    """
    asked: Iterator[int] = (request.generation for request in readmissions(store))
    came = (generation for generation, _ in readmitted(store).values())
    return min((*asked, *came), default=None)


def _remove_generation(store: Store, number: int, fence: int) -> None:
    for log in (Generation.log_of(number), f"mixture/{number}", f"losses/{number}", factors_log(number)):
        store.remove(log, fence=fence)
        faultpoint.point("planner.log_removed")
    store.delete(Generation.key(number))
    faultpoint.point("planner.generation_removed")


def superseded_factors(factors: Sequence[Factors], before: int) -> int:
    """How many of the first hold at no step from `before` on."""
    return max(sum(entry.from_step <= before for entry in factors) - 1, 0)


def past_changes(changes: Sequence[Change], before: int) -> int:
    """How many of the first no state of a step from `before` on is the first to have.

    The latest stay, and what `mixture.adaptive` has learned last: it goes on from there.
    """
    oldest = next((n for n, change in enumerate(changes) if change.known_from >= before), len(changes))
    learned = max((n for n, change in enumerate(changes) if change.learned is not None), default=oldest)
    return max(min(oldest, learned, len(changes) - _KEPT_CHANGES), 0)
