"""What every test run is held to: it leaves no process, no listening port and no shared segment behind."""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

from real_job import RUN_MARK, described, marked_processes, write_data

settings.register_profile("no deadlines", deadline=None)  # a busy machine is no counter-example
settings.load_profile("no deadlines")

LINGER_S = 10.0
"""For what is on its way out: an orphaned role ends itself within `engine.child.ORPHAN_GRACE_S`."""

SHARED = Path("/dev/shm")


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_heard() -> None:
    """A run that was started in the background of a shell ignores SIGINT, and so would all that it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fails the run when something that it started still lives, listens or takes shared memory at its end."""
    os.environ[RUN_MARK] = uuid.uuid4().hex
    segments, ports = _segments(), _listening()
    yield
    _, alive = psutil.wait_procs(marked_processes(), LINGER_S)
    text = described(alive)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    assert not alive, f"left running:\n{text}"
    assert not (left := _listening() - ports), f"this process still listens on {left}"
    left_segments = {name for name in _segments() - segments if not _in_use(SHARED / name)}
    assert not left_segments, f"left in {SHARED}: {sorted(left_segments)}"


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny data set of `real_job.write_data`. Read only, its index cache aside."""
    return write_data(tmp_path_factory.mktemp("data"))


def _segments() -> set[str]:
    if not SHARED.is_dir():
        return set()
    found = set()
    for path in SHARED.iterdir():
        with contextlib.suppress(OSError):
            if path.stat().st_uid == os.getuid():
                found.add(path.name)
    return found


def _in_use(path: Path) -> bool:
    """Whether a process, of another test run perhaps, has it open or mapped; or it is gone by now."""
    if not path.exists():
        return True
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            if str(path) in maps or any(file.path == str(path) for file in process.open_files()):
                return True
    return False


def _listening() -> set[int]:
    connections = psutil.Process().net_connections("inet")
    return {entry.laddr.port for entry in connections if entry.status == psutil.CONN_LISTEN}
