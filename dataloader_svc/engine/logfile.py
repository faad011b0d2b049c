"""A role's log: a file that the role writes to by itself, over its lives, and whose end is shown in errors.

It is rotated when a life begins and it has grown past MAX_BYTES, one former file kept: a process that writes
straight to a file can't be made to change it in the middle, and roles write little.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MAX_BYTES = 16 << 20
TAIL_BYTES = 64 << 10  # read from the end; 20 lines of a traceback are some 2 KB


def log_path(run_dir: Path, name: str) -> Path:
    """Where a run keeps the log of role `name`."""
    return run_dir / "logs" / f"{name}.log"


class LogFile:
    """`path`, and `path.1` once rotated."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._life_offset = 0

    @contextmanager
    def life(self, name: str) -> Iterator[int]:
        """A file descriptor to start a process with; what it writes is appended. OSError: can't be opened."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists() and self.path.stat().st_size > MAX_BYTES:
            self.path.replace(self.path.with_name(self.path.name + ".1"))
        self.note(f"{name} starts")
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            self._life_offset = os.fstat(descriptor).st_size
            yield descriptor
        finally:
            os.close(descriptor)

    def note(self, text: str) -> None:
        """A line of the engine's own; a full disk must not end the supervision, so it may get lost."""
        with suppress(OSError), self.path.open("a") as file:
            file.write(f"--- {text}\n")

    def tail(self, lines: int, *, this_life: bool = False) -> list[str]:
        """The last lines, of all lives in the file or of the last alone. Empty where there is no file."""
        if lines <= 0 or not self.path.exists():
            return []
        with self.path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._life_offset if this_life else 0, size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
        return text.splitlines()[-lines:]
