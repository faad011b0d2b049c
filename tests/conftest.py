"""What every test run is held to: it leaves no process, no listening port and no shared segment behind.

Runs may go on side by side, as the workers of `make test` do: each knows what it has started by RUN_MARK.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import psutil
import pytest
from hypothesis import HealthCheck, settings

from real_job import RUN_MARK, described, marked_processes, named_segments, users, write_data

T = TypeVar("T")

# A busy machine is no counter-example.
settings.register_profile("no deadlines", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no deadlines")

LINGER_S = 10.0
"""For what is on its way out: an orphaned role ends itself within `engine.child.ORPHAN_GRACE_S`."""


@pytest.fixture(scope="session", autouse=True)
def no_width_is_known() -> None:
    """Tables are as wide as they have to be, as in a pipe: a worker of pytest-xdist is told 80 columns."""
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_heard() -> None:
    """A run that was started in the background of a shell ignores SIGINT, and so would all that it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fails the run when something that it started still lives, listens or takes shared memory at its end."""
    os.environ[RUN_MARK] = uuid.uuid4().hex
    segments, ports = named_segments(), _listening()
    yield
    _, alive = psutil.wait_procs(marked_processes(), LINGER_S)
    text = described(alive)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    assert not alive, f"left running:\n{text}"
    # A gRPC server closes its port in a thread of its own; another run may be about to remove its segments.
    assert not (left := _lasting(lambda: _listening() - ports)), f"this process still listens on {left}"
    assert not (lost := _lasting(lambda: _unused(segments))), f"left: {sorted(lost)}"


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny data set of `real_job.write_data`. Read only, its index cache aside."""
    return write_data(tmp_path_factory.mktemp("data"))


def _lasting(find: Callable[[], set[T]]) -> set[T]:
    """What is still found when it has had time to go away."""
    until = time.monotonic() + LINGER_S
    while (found := find()) and time.monotonic() < until:
        time.sleep(0.2)
    return found


def _unused(before: set[Path]) -> set[Path]:
    """Named segments made since that nobody uses."""
    return {path for path in named_segments() - before if not users(path) and path.exists()}


def _listening() -> set[int]:
    connections = psutil.Process().net_connections("inet")
    return {entry.laddr.port for entry in connections if entry.status == psutil.CONN_LISTEN}
