"""The pool of decode workers: real processes, operations that behave badly, real signals."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import worker_operations
from dataloader_svc.errors import BadSample, PeerError, Reason
from dataloader_svc.media.worker_wire import Answer
from dataloader_svc.media.workers import Limits, WorkerPool
from worker_operations import message

MEMORY = 2**29
NEVER = 600.0  # a deadline that no test reaches
SOON = 1.0

Pools = Callable[..., WorkerPool]


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pools]:
    """Makes pools whose workers find `worker_operations`; closed at the end, with no process left."""
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([worker_operations.FOLDER, os.environ.get("PYTHONPATH", "")])
    )
    made: list[WorkerPool] = []

    def make(workers: int = 1, timeout_s: float = NEVER, memory: int = MEMORY, **limits: Any) -> WorkerPool:
        preload = limits.pop("preload", ("worker_operations",))
        made.append(WorkerPool(Limits(workers, timeout_s, memory, **limits), preload=preload))
        return made[-1]

    yield make
    for pool in made:
        pool.close()
    assert not worker_processes()


def worker_processes() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [child for child in children if "dataloader_svc.media.worker_main" in child.cmdline()]


def open_files() -> int:
    return psutil.Process().num_fds()


def operation(function: Callable[..., Answer]) -> str:
    return f"worker_operations:{function.__name__}"


def pid(pool: WorkerPool) -> int:
    return int(pool.call(operation(worker_operations.echo), {}).value["pid"])


def refused(
    pool: WorkerPool, function: Callable[..., Answer], payload: bytes = b"", **arguments: Any
) -> BadSample:
    with pytest.raises(BadSample) as bad:
        pool.call(operation(function), arguments, payload)
    return bad.value


@pytest.fixture
def announcement(tmp_path: Path) -> Path:
    pipe = tmp_path / "announcement"
    os.mkfifo(pipe)
    return pipe


# ---- what goes in and comes out


def test_bytes_and_arrays_cross_unchanged(pools: Pools) -> None:
    pool = pools()
    big = np.random.default_rng(0).integers(0, 256, 20_000_003, np.uint8).tobytes()
    for payload in (b"", b"123456", big):
        answer = pool.call(operation(worker_operations.echo), {"a": [1, None, "ü"], "n": {"f": 0.1}}, payload)
        assert answer.value["arguments"] == {"a": [1, None, "ü"], "n": {"f": 0.1}}
        forwards, backwards, empty = answer.arrays
        assert forwards.tobytes() == payload
        assert backwards.tobytes() == payload[::-1]
        assert (empty.shape, empty.dtype) == ((0, 3), np.float32)
    assert answer.value["pid"] != os.getpid()
    assert pool.status().started == 1


def test_no_process_before_there_is_work(pools: Pools) -> None:
    pool = pools(workers=3)
    assert pool.status().running == 0
    first = pid(pool)
    assert [process.pid for process in worker_processes()] == [first]
    assert pid(pool) == first, "one that is idle is taken before another is started"
    pool.start()
    assert pool.status().running == 3
    assert pool.status().num_bytes > 3 * 10_000_000


def test_an_operation_that_raises_is_a_bad_sample(pools: Pools, capfd: pytest.CaptureFixture[str]) -> None:
    pool = pools()
    bad = refused(pool, worker_operations.fail, reason="no_stream")
    assert (bad.reason, bad.detail) == (Reason.NO_STREAM, "as was asked")
    bad = refused(pool, worker_operations.fail)
    assert bad.reason == Reason.DECODE_FAILED
    assert bad.detail == "worker_operations:fail raised ZeroDivisionError: as was asked"
    with pytest.raises(BadSample, match="ModuleNotFoundError"):
        pool.call("no.such.module:function", {})
    assert pool.status().started == 1
    pool.close()
    assert "in fail" in capfd.readouterr().err, "the traceback is in the log"


def test_many_threads_get_their_own_answers(pools: Pools) -> None:
    pool = pools(workers=3)
    with ThreadPoolExecutor(16) as threads:
        payloads = [bytes([i % 256]) * (1 + i * 331) for i in range(300)]
        answers = threads.map(
            lambda data: pool.call(operation(worker_operations.echo), {"n": len(data)}, data), payloads
        )
        for data, answer in zip(payloads, answers, strict=True):
            assert answer.value["arguments"] == {"n": len(data)}
            assert answer.arrays[0].tobytes() == data
    assert pool.status().started <= 3


# ---- what takes too long


@pytest.mark.parametrize("function", [worker_operations.spin, worker_operations.sleep])
def test_a_deadline_ends_what_never_returns(pools: Pools, function: Callable[..., Answer]) -> None:
    pool = pools(timeout_s=SOON)
    before = pid(pool)
    bad = refused(pool, function)
    assert (bad.reason, bad.detail) == (Reason.DECODE_TIMEOUT, "not done after 1 s; its process was killed")
    assert not psutil.pid_exists(before)
    assert pid(pool) != before, "the next one is served by another"
    status = pool.status()
    assert (status.timeouts, status.crashes, status.started) == (1, 0, 2)


def test_what_hangs_holds_up_no_other(pools: Pools, announcement: Path) -> None:
    pool = pools(workers=2)
    with ThreadPoolExecutor(1) as thread:
        hanging = thread.submit(pool.call, operation(worker_operations.spin), {"announce": str(announcement)})
        stuck = int(announcement.read_text())
        others = {pid(pool) for _ in range(20)}
        assert len(others) == 1
        assert stuck not in others
        assert not hanging.done()
        pool.close()
        with pytest.raises(PeerError, match="stopped"):
            hanging.result()


def test_what_hung_once_is_refused_at_once(pools: Pools) -> None:
    """By what it is: another payload or other arguments are tried."""
    pool = pools(timeout_s=SOON)
    first = refused(pool, worker_operations.spin, b"clip")
    again = refused(pool, worker_operations.spin, b"clip")
    assert (again.reason, again.detail) == (first.reason, first.detail)
    assert pool.status().timeouts == 1
    refused(pool, worker_operations.spin, b"clip", other=1)
    assert pool.status().timeouts == 2
    refused(pool, worker_operations.spin, b"another clip")
    assert pool.status().timeouts == 3


def test_a_stopped_worker_is_replaced(pools: Pools) -> None:
    pool = pools(timeout_s=SOON)
    before = pid(pool)
    os.kill(before, signal.SIGSTOP)
    assert refused(pool, worker_operations.echo).reason == Reason.DECODE_TIMEOUT
    assert not psutil.pid_exists(before)
    assert pool.call(operation(worker_operations.echo), {"n": 1}).value["pid"] != before


def test_a_large_request_to_a_stopped_worker(pools: Pools) -> None:
    """More than the socket holds: the deadline counts while it is sent, too."""
    pool = pools(timeout_s=SOON)
    os.kill(pid(pool), signal.SIGSTOP)
    assert refused(pool, worker_operations.echo, bytes(30_000_000)).reason == Reason.DECODE_TIMEOUT


# ---- what takes its process with it


@pytest.mark.parametrize(
    ("function", "arguments", "words"),
    [
        (worker_operations.kill_itself, {"signal": "SIGSEGV"}, "ended by SIGSEGV"),
        (worker_operations.kill_itself, {"signal": "SIGKILL"}, "ended by SIGKILL"),
        (worker_operations.leave, {"code": 3}, "ended with code 3"),
        (worker_operations.leave, {"code": 0}, "ended with code 0"),
    ],
)
def test_a_crash_is_the_samples_after_a_second_try(
    pools: Pools, function: Callable[..., Answer], arguments: dict[str, Any], words: str
) -> None:
    pool = pools()
    before = pid(pool)
    bad = refused(pool, function, **arguments)
    assert bad.reason == Reason.DECODER_CRASHED
    assert bad.detail == f"its process {words}, and a second one {words}"
    assert pid(pool) != before
    status = pool.status()
    assert (status.crashes, status.timeouts, status.started) == (1, 0, 3)
    assert refused(pool, function, **arguments).detail == bad.detail, "and is not tried again"
    assert pool.status().started == 3


def test_a_single_death_costs_no_sample(pools: Pools, tmp_path: Path) -> None:
    pool = pools()
    arguments = {"signal": "SIGKILL", "first_only": str(tmp_path / "died")}
    assert pool.call(operation(worker_operations.kill_itself), arguments).value["pid"] == pid(pool)
    status = pool.status()
    assert (status.started, status.crashes) == (2, 0)


def test_one_that_died_while_idle_costs_no_sample(pools: Pools) -> None:
    pool = pools()
    before = pid(pool)
    os.kill(before, signal.SIGKILL)
    os.waitid(os.P_PID, before, os.WEXITED | os.WNOWAIT)  # dead, and not yet noticed by the pool
    assert pid(pool) != before
    assert pool.status().crashes == 0


def test_killed_in_the_middle(pools: Pools, announcement: Path) -> None:
    """By a person or the system: tried once more, on a fresh worker."""
    pool = pools()
    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(pool.call, operation(worker_operations.spin), {"announce": str(announcement)})
        first = int(announcement.read_text())
        os.kill(first, signal.SIGKILL)
        second = int(announcement.read_text())
        assert second != first
        os.kill(second, signal.SIGKILL)
        with pytest.raises(BadSample, match="decoder_crashed.*SIGKILL, and a second one ended by SIGKILL"):
            call.result()


# ---- what speaks nonsense


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\0" * 64,
        b"garbage from a library that found an open file\n" * 9,
        message(b"not JSON"),
        message(b"[]"),
        message(b"null"),
        message(b"{}"),
        message(b'{"bad": ["no such reason", ""]}'),
        message(b'{"bad": 3}'),
        message(b'{"value": 1, "arrays": 7}'),
        message(b'{"value": 1, "arrays": [["|O", [1]]]}', bytes(8)),
        message(b'{"value": 1, "arrays": [["<f4", [2, -1]]]}', bytes(8)),
        message(b'{"value": 1, "arrays": [["<f4", [3]]]}', bytes(8)),
        message(b'{"value": 1, "arrays": [["<f4", [1]]]}', bytes(8)),
        message(b'{"value": 1, "arrays": [["nothing", [1]]]}', bytes(8)),
        message(b"{}", size=2**60),  # memory for it must not be taken
        b"dlw1" + b"\xff" * 12,
    ],
    ids=lambda nonsense: repr(nonsense[:60]),
)
def test_nonsense_ends_the_worker(pools: Pools, nonsense: bytes) -> None:
    pool = pools()
    bad = refused(pool, worker_operations.garble, nonsense)
    assert bad.reason == Reason.DECODER_CRASHED
    assert bad.detail.startswith("its process said nonsense")
    assert pid(pool)
    assert pool.status().started == 3


def test_half_a_message_and_then_nothing(pools: Pools) -> None:
    pool = pools(timeout_s=SOON)
    assert refused(pool, worker_operations.garble, b"dlw1").reason == Reason.DECODER_CRASHED
    # The worker's own answer fills up what was promised here, but for the last bytes.
    short = message(b'{"value": 1, "arrays": [["|u1", [5000]]]}', size=5000)
    assert refused(pool, worker_operations.garble, short).reason == Reason.DECODE_TIMEOUT


def test_only_numbers_become_arrays(pools: Pools) -> None:
    bad = refused(pools(), worker_operations.objects)
    assert bad.reason in (Reason.DECODE_FAILED, Reason.DECODER_CRASHED)


def test_what_it_prints_goes_to_the_log(pools: Pools, capfd: pytest.CaptureFixture[str]) -> None:
    pool = pools()
    assert pool.call(operation(worker_operations.chatter), {}).value == "", "its standard input is empty"
    assert pid(pool)
    assert pool.status().started == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert "chatter of a library" in err
    assert err.count("chatter of native code") == 1000


# ---- memory and age


def test_the_system_refuses_it_more_memory(pools: Pools) -> None:
    pool = pools()
    bad = refused(pool, worker_operations.take_memory, size=2 * MEMORY)
    assert bad.reason == Reason.DECODE_FAILED
    assert bad.detail == f"needs more memory than loader.worker_memory ({MEMORY} bytes)"
    assert pool.call(operation(worker_operations.take_memory), {"size": MEMORY // 4})


def test_one_that_keeps_memory_is_replaced(pools: Pools) -> None:
    pool = pools()
    before = pid(pool)
    passing = {"size": MEMORY * 5 // 8}
    assert pool.call(operation(worker_operations.take_memory), passing).value["pid"] == before
    assert pid(pool) == before, "what is freed again counts for nothing"
    assert (
        pool.call(operation(worker_operations.take_memory), {**passing, "keep": True}).value["pid"] == before
    )
    assert not psutil.pid_exists(before)
    assert pid(pool) != before
    status = pool.status()
    assert (status.replaced, status.started, status.crashes) == (1, 2, 0)


def test_an_old_one_is_replaced(pools: Pools) -> None:
    pool = pools(max_tasks=3)
    pids = [pid(pool) for _ in range(7)]
    assert [pids.index(number) for number in pids] == [0, 0, 0, 3, 3, 3, 6]
    assert pool.status().replaced == 2


# ---- the end


def test_closed_while_busy(pools: Pools, announcement: Path) -> None:
    """Those at work and those that wait for a worker raise at once; no worker is left."""
    pool = pools(workers=1)
    asked = threading.Barrier(4)

    def wait_in_line() -> int:
        asked.wait()
        return pid(pool)

    with ThreadPoolExecutor(4) as threads:
        busy = threads.submit(pool.call, operation(worker_operations.spin), {"announce": str(announcement)})
        announcement.read_text()
        waiting = [threads.submit(wait_in_line) for _ in range(3)]
        asked.wait()
        pool.close()
        for call in (busy, *waiting):
            with pytest.raises(PeerError, match="stopped"):
                call.result()
    assert not worker_processes()
    with pytest.raises(PeerError, match="stopped"):
        pid(pool)
    pool.close()


def test_closed_while_starting(pools: Pools) -> None:
    pool = pools(workers=2)
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(pid, pool) for _ in range(2)]
        pool.close()
        for call in calls:
            with pytest.raises(PeerError):
                call.result()
    assert not worker_processes()


def test_one_that_can_not_start_is_no_samples_fault(pools: Pools, capfd: pytest.CaptureFixture[str]) -> None:
    pool = pools(preload=("no_such_module",))
    for _ in range(2):
        with pytest.raises(PeerError, match="a decode worker ended with code 1 before it was ready"):
            pid(pool)
    with pytest.raises(PeerError):
        pool.start()
    assert pool.status().running == 0
    assert "No module named 'no_such_module'" in capfd.readouterr().err


def test_no_file_is_left_open(pools: Pools) -> None:
    """Over many lives of workers, none of this process's numbers of files is lost."""
    pool = pools(max_tasks=1)
    pid(pool)
    before = open_files()
    for _ in range(5):
        pid(pool)
    refused(pool, worker_operations.leave, code=1)
    assert open_files() == before
    pool.close()
    assert open_files() < before


# ---- a machine that slept


class Watch:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


def test_a_process_that_was_stopped_itself_counts_anew() -> None:
    from dataloader_svc.media.worker_process import Deadline

    watch = Watch()
    deadline = Deadline(watch, 30.0)
    watch.now = 29.0
    assert deadline.left() == 1.0
    watch.now = 30.5
    assert deadline.left() == -0.5, "a wait that ends at the deadline is over"
    watch.now = 500.0
    assert deadline.left() == 30.0, "nobody waits so long beyond it, unless stopped"
    watch.now = 529.0
    assert deadline.left() == 1.0
