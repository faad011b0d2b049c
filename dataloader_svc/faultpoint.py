"""Named places where a test can make the real process die, stall or fail. Off unless the environment asks.

`DATALOADER_FAULT="planner.plan_appended:kill:7"` kills the process (SIGKILL to itself) the seventh time it
comes to that point; `:stop` sends SIGSTOP, `:raise` raises RuntimeError, `:slow` makes it sleep for SLOW_S
then and each time it comes there again. Several are separated by commas.
`DATALOADER_FAULT_DIR` names a folder in which a fault that fired leaves a file, so that a test can assert
that it did and a restarted process doesn't fire it again.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

SLOW_S = 0.25

_counts: dict[str, int] = {}
_slow: set[str] = set()


def point(name: str) -> None:
    """Do nothing, unless DATALOADER_FAULT names this point and its count is reached."""
    wanted = os.environ.get("DATALOADER_FAULT")
    if not wanted:
        return
    _counts[name] = _counts.get(name, 0) + 1
    for entry in wanted.split(","):
        where, action, number = entry.split(":")
        if where == name and int(number) == _counts[name]:
            _fire(entry, action, name)
    if name in _slow:
        time.sleep(SLOW_S)


def _fire(entry: str, action: str, name: str) -> None:
    folder = os.environ.get("DATALOADER_FAULT_DIR")
    if folder:
        mark = Path(folder) / entry.replace(":", "_")
        try:
            with mark.open("x") as file:  # of two processes that come there at once, one
                file.write(str(os.getpid()))
        except FileExistsError:
            return
    if action == "raise":
        raise RuntimeError(f"fault injected at {entry}")
    if action == "slow":
        _slow.add(name)
        return
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[action])
