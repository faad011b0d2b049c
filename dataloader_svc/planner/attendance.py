"""Which ranks have joined the session, and who disagrees with them: told at join, before anybody trains.

Ranks come one after the other, so the first to come back after a crash can't know what the others will bring.
Their *claim* is the state that they go on from and their mesh. While a session still lacks ranks, one that it
lacks and that claims something else is held back: either the others come to claim the same, or both sides are
told (docs/states.md has the rule as a table). Nothing of it is kept: after a restart the session of the store
counts as complete.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from dataloader_svc.errors import MeshError, SessionSuperseded, StateError
from dataloader_svc.planner.place import MeshSize

AGREE_S = 10.0
"""How long a rank that claims something else waits for the others to follow: they are started together."""

_MOST_NAMED = 4


class Coords(NamedTuple):
    """A rank's place on its mesh."""

    dp: int = 0
    cp: int = 0
    tp: int = 0
    pp: int = 0

    def __str__(self) -> str:
        return ",".join(f"{axis}={place}" for axis, place in self._asdict().items() if place or axis == "dp")


@dataclass(frozen=True, slots=True)
class Claim:
    """What a rank wants: the state of `step` with this hash, on this mesh."""

    step: int
    state_hash: str
    mesh: MeshSize

    def __str__(self) -> str:
        what = f"the state of step {self.step}" if self.step else "the start"
        return f"{what} ({self.state_hash[:8]}) on mesh {self.mesh}"

    @property
    def num_ranks(self) -> int:
        mesh = self.mesh
        return mesh.dp * mesh.cp * mesh.tp * mesh.pp


@dataclass(frozen=True, slots=True)
class Attendance:
    """The ranks of a session that have joined it since this planner knows it."""

    session: int
    claim: Claim
    ranks: frozenset[Coords] = frozenset()

    @property
    def is_complete(self) -> bool:
        return len(self.ranks) >= self.claim.num_ranks

    def holds_back(self, claim: Claim, rank: Coords) -> bool:
        """Whether a rank with another claim must wait.

        Not where all have come: they have gone, then, and this is the first of them to be back. Nor where the
        rank itself is one of those that came: it knows what it does.
        """
        return claim != self.claim and not self.is_complete and rank not in self.ranks


class Agreement:
    """The attendance of the current session, and the ranks that are held back, each for `agree_s` at most.

    Belongs to one event loop.
    """

    def __init__(self, agree_s: float) -> None:
        self._agree_s = agree_s
        self._now: Attendance | None = None
        self._waiting: Counter[tuple[Claim, Coords]] = Counter()
        self._changed = asyncio.Condition()
        self._over: tuple[int, str] | None = None

    def may_enter(self, claim: Claim, rank: Coords) -> bool:
        """Whether the rank may be taken in, and a session begun for it where its claim is another."""
        if self._now is None or not self._now.holds_back(claim, rank):
            return True
        agreeing = {other for wanted, other in self._waiting if wanted == claim} | {rank}
        return len(agreeing) >= claim.num_ranks

    async def entered(self, session: int, claim: Claim, rank: Coords) -> None:
        """The rank has been taken in."""
        if self._now is None or (self._now.session, self._now.claim) != (session, claim):
            self._now = Attendance(session, claim)
        self._now = replace(self._now, ranks=self._now.ranks | {rank})
        await self.wake()

    async def wake(self) -> None:
        """Have those that are held back look again."""
        async with self._changed:
            self._changed.notify_all()

    @asynccontextmanager
    async def holding(self, claim: Claim, rank: Coords) -> AsyncIterator[None]:
        """While a rank wants to enter: it counts among those with its claim."""
        self._waiting[claim, rank] += 1
        try:
            await self.wake()
            yield
        finally:
            self._waiting[claim, rank] -= 1
            self._waiting += Counter()  # without zeros

    async def hold_back(self, claim: Claim, rank: Coords, until: float) -> None:
        """Wait until the rank may enter. Raises what both sides are told where that isn't so in time."""
        try:
            async with asyncio.timeout_at(until), self._changed:
                await self._changed.wait_for(lambda: self.may_enter(claim, rank))
        except TimeoutError:
            raise self._dispute(claim, rank) from None

    def deadline(self) -> float:
        """Of a rank that comes now, on the clock of the event loop."""
        return asyncio.get_running_loop().time() + self._agree_s

    def _dispute(self, claim: Claim, rank: Coords) -> StateError | MeshError:
        """End the session that lacks the rank: nobody can say which side is right."""
        now = self._now
        assert now is not None, "a session held it back"
        text = (
            f"ranks disagree: {_named(now.ranks)} joined with {now.claim}, and rank {rank} comes with "
            f"{claim}. All ranks must load the same checkpoint and have the same mesh: start them again, "
            "together"
        )
        self._over = (now.session, text)
        self._now = None
        return (StateError if claim.mesh == now.claim.mesh else MeshError)(text)

    def check(self, session: int) -> None:
        """SessionSuperseded for the other side of a dispute."""
        if self._over is not None and self._over[0] == session:
            raise SessionSuperseded(f"session {session} is over: {self._over[1]}")


def _named(ranks: frozenset[Coords]) -> str:
    listed = [f"{rank}" for rank in sorted(ranks)]
    more = f" and {len(listed) - _MOST_NAMED} more" if len(listed) > _MOST_NAMED else ""
    return f"rank{'s' if len(listed) > 1 else ''} {'; '.join(listed[:_MOST_NAMED])}{more}"
