"""Time as an argument. Cores get times in their events; services ask a `Clock`.

`DATALOADER_FAULT_CLOCK` names a file with seconds to be added to the wall clock, so that a test can set the
clock of real processes. Off unless the environment asks.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
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
        return time.time() + _jump()


def _jump() -> float:
    path = os.environ.get("DATALOADER_FAULT_CLOCK")
    return float(Path(path).read_text()) if path else 0.0
