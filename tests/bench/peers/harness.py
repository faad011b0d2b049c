"""One run of one peer: its service if it has one, its ranks, and what all of them did in a window of time."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tests.bench.peers import family
from tests.bench.peers.task import Task

CHILD = Path(__file__).with_name("child.py")
ENVIRONMENT = {
    "PYTHONPATH": str(Path(__file__).resolve().parents[3]),
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "RAY_DEDUP_LOGS": "0",
}
SHARED_MEMORY = Path("/dev/shm")
PEERS_NAMES = ("00", "psm_", "sem.mp-", "torch_")  # of streaming, Python's multiprocessing and torch
START_S = 180.0  # a peer that has given no batch by then has failed


@dataclass(frozen=True, slots=True)
class Figures:
    """What all ranks together did: amounts a second, CPU seconds of all processes, bytes of memory (PSS).

    `others` is the share of the machine's processors that anything else kept busy meanwhile, 0 to 1: where it
    is not small, rates say little, and only memory and amounts a CPU second compare.
    """

    rate: float
    cpu_s: float
    amount: int
    pss: int
    first_s: float
    others: float

    def as_json(self) -> dict[str, float]:
        """By name, with what a CPU second gave."""
        return {**asdict(self), "per_cpu_s": self.amount / max(self.cpu_s, 1e-9)}


class PeerFailed(RuntimeError):
    """A peer's process ended or said nothing; the text is what it wrote last."""


class Child:
    """A process of the peer. Killed with all that it started when the context ends."""

    def __init__(self, python: str, action: str, task: Task) -> None:
        self.name = f"{task.peer} {action} {task.rank}"
        self.errors = Path(task.scratch, f"{action}-{task.rank}.err")
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [python, str(CHILD), action, task.to_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                cwd=task.scratch,
                env={**os.environ, **ENVIRONMENT},
            )

    def read(self) -> dict[str, Any]:
        """The next line of JSON. Raises PeerFailed where there is none, or none in time."""
        assert self.process.stdout is not None
        # Each line answers a question, so that none waits in the buffer behind another.
        if not select.select([self.process.stdout], [], [], START_S)[0]:
            raise PeerFailed(f"{self.name}: said nothing for {START_S:.0f} s")
        line = self.process.stdout.readline()
        found = json.loads(line) if line else {}
        if not found or "error" in found:
            words = self.errors.read_text(errors="replace").strip().splitlines()
            raise PeerFailed(f"{self.name}: {found.get('error') or ' | '.join(words[-12:]) or 'ended'}")
        return found

    def ask(self) -> dict[str, Any]:
        """What came so far."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.read()

    def stop(self) -> None:
        """End it and its children, by its process group at last."""
        processes = family.members([self.process.pid])
        with contextlib.suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for process in processes:
            with contextlib.suppress(Exception):
                process.kill()
        self.process.wait()


@contextlib.contextmanager
def started(python: str, action: str, task: Task) -> Iterator[Child]:
    """A child for as long as the context is open."""
    child = Child(python, action, task)
    try:
        yield child
    finally:
        child.stop()


def convert(python: str, task: Task) -> dict[str, float]:
    """Have the peer write its format, once. Seconds and bytes it took."""
    done = Path(task.converted, ".ready")
    if not done.exists():
        Path(task.converted).mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory() as scratch,
            started(python, "convert", replace(task, scratch=scratch)) as child,
        ):
            seconds = child.read()["seconds"]
        size = sum(path.stat().st_size for path in Path(task.converted).rglob("*") if path.is_file())
        done.write_text(json.dumps({"seconds": seconds, "bytes": size}))
    return dict(json.loads(done.read_text()))


def measure(python: str, task: Task, *, has_service: bool, warmup_s: float, window_s: float) -> Figures:
    """Start all, let them run in, and count for `window_s` seconds. Raises PeerFailed."""
    with tempfile.TemporaryDirectory(prefix="peers-") as scratch, contextlib.ExitStack() as stack:
        stack.callback(_remove_shared, set(SHARED_MEMORY.iterdir()))
        task = replace(task, scratch=scratch, port=_free_port())
        children: list[Child] = []
        if has_service:
            host = stack.enter_context(started(python, "host", task))
            task = replace(task, address=host.read()["address"])
            children.append(host)
        ranks = [
            stack.enter_context(started(python, "rank", replace(task, rank=rank)))
            for rank in range(task.ranks)
        ]
        children += ranks
        first = max(rank.read()["first_s"] for rank in ranks)
        time.sleep(warmup_s)
        roots = [child.process.pid for child in children]
        cpu, machine = family.cpu_seconds(family.members(roots)), family.Machine()
        before = [rank.ask() for rank in ranks]
        time.sleep(window_s)
        after = [rank.ask() for rank in ranks]
        processes = family.members(roots)
        cpu = family.cpu_seconds(processes) - cpu
        others = machine.others(cpu)
        amounts = [late["amount"] - early["amount"] for early, late in zip(before, after, strict=True)]
        seconds = [late["at"] - early["at"] for early, late in zip(before, after, strict=True)]
        rate = sum(amount / second for amount, second in zip(amounts, seconds, strict=True))
        return Figures(rate, cpu, sum(amounts), family.memory(processes), first, others)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _remove_shared(before: set[Path]) -> None:
    """Remove what a killed peer left in shared memory: names of its own kinds that were not there."""
    for path in set(SHARED_MEMORY.iterdir()) - before:
        if path.name.startswith(PEERS_NAMES) and path.stat().st_uid == os.getuid():
            path.unlink(missing_ok=True)
