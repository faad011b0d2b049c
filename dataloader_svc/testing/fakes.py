"""Stand-ins for what a test must control."""

from __future__ import annotations


class FakeClock:
    """A clock that moves only when told. `jump` sets the wall clock alone, as an administrator would."""

    def __init__(self, *, monotonic: float = 1000.0, wall: float = 1_700_000_000.0) -> None:
        self._monotonic = monotonic
        self._wall = wall

    def monotonic(self) -> float:
        return self._monotonic

    def wall(self) -> float:
        return self._wall

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        if seconds < 0:
            raise ValueError(f"advance({seconds}): time does not go back; use jump for the wall clock")
        self._monotonic += seconds
        self._wall += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back."""
        self._wall += seconds
