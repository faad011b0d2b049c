"""Time as an argument. Cores get times in their events; services ask a `Clock`."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """`monotonic` for durations, `wall` for what is shared between processes (leases)."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...

    def wall(self) -> float:
        """Seconds since 1970, UTC."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()
