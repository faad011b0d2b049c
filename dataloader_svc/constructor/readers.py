"""Which ranks of a session are there, and which have been silent for too long. Pure.

A rank with a read under way is there: the transport cuts it off within half a minute when it isn't. One
without is at work on what it has, or in a pause; it may also be dead, or hang, and nothing tells which. So a
limit does: what is kept for a rank that was silent for so long is let go, and made again if it comes back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dataloader_svc.constructor.events import Asked, Delivered, Event, GaveUp, Left, Rank

_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class Silent:
    """`step`: of its last read; None where it never read."""

    rank: Rank
    step: int | None
    seconds: float

    def __str__(self) -> str:
        where = "has never read" if self.step is None else f"asked for step {self.step} last"
        return f"{self.rank} {where}"


class Readers:
    """`note` what happened, and ask who is `silent`. `now`: seconds of one clock that never goes back.

    limit_s   how long a rank may have no read under way
    let_go    ranks that were silent for so long, and have not come back
    """

    def __init__(self, ranks: Iterable[Rank], *, limit_s: float, now: float) -> None:
        self.limit_s = limit_s
        self.let_go: set[Rank] = set()
        self._heard = dict.fromkeys(ranks, now)
        self._steps: dict[Rank, int] = {}
        self._under_way: Counter[Rank] = Counter()

    @property
    def are_gone(self) -> bool:
        """Whether there is nobody to keep anything for."""
        return not self._heard

    def note(self, event: Event, now: float) -> None:
        """Take in what a rank did; other events say nothing of ranks."""
        match event:
            case Asked(step, rank):
                self._under_way[rank] += 1
                self._steps[rank], self._heard[rank] = step, now
                self.let_go.discard(rank)
            case Delivered(_, rank) | GaveUp(_, rank):
                self._under_way[rank] -= 1
                if rank in self._heard:
                    self._heard[rank] = now
            case Left(rank):
                self._heard.pop(rank, None)

    def silent(self, now: float) -> list[Silent]:
        """Ranks that have become silent for too long, in order; each is named once until it comes back."""
        found = [
            Silent(rank, self._steps.get(rank), now - heard)
            for rank, heard in sorted(self._heard.items())
            if now - heard >= self.limit_s and not self._under_way[rank]
        ]
        for each in found:
            del self._heard[each.rank]
            self.let_go.add(each.rank)
        return found


def described(silent: Sequence[Silent], freed_bytes: int, limit_s: float, *, all_of_them: bool) -> str:
    """For people: who is meant, what was done, and what they can do."""
    named = "; ".join(map(str, silent[:_MOST_NAMED]))
    more = f"; and {len(silent) - _MOST_NAMED} more" if len(silent) > _MOST_NAMED else ""
    who = "no rank has" if all_of_them else f"rank{'s' * (len(silent) > 1)} without"
    verb = " asked for anything" if all_of_them else " a read"
    return (
        f"{who}{verb} for {min(each.seconds for each in silent):.0f} s: {named}{more}. What was kept for "
        f"{'them' if len(silent) > 1 else 'it'}, {freed_bytes / 2**20:.1f} MiB, is dropped, and built again "
        "when it is asked for. Nothing is to be done in a long pause (constructor.idle_timeout, "
        f"{limit_s:g} s, can be raised); a rank that is dead or hangs has to be ended, and all ranks "
        "started again, together, from the last checkpoint"
    )
