from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator

import pytest

from dataloader_svc.engine.doorbell import Doorbell

BOUND_S = 60.0


@pytest.fixture
def bell() -> Iterator[Doorbell]:
    bell = Doorbell()
    yield bell
    bell.close()


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """The signals whose handler has run: SIGUSR1, and SIGUSR2."""
    heard: list[int] = []
    both = (signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.signal(number, lambda number, _: heard.append(number)) for number in both}
    yield heard
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def other() -> Iterator[threading.Thread]:
    """A thread that is in the kernel, where Python's handlers don't run."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    yield thread
    end.set()
    thread.join()


def test_rung_before(bell: Doorbell) -> None:
    bell.ring()
    bell.wait()


def test_rung_from_another_thread(bell: Doorbell) -> None:
    ringing = threading.Timer(0.01, bell.ring)
    ringing.start()
    bell.wait()
    ringing.join()


def test_waited_for_in_another_thread(bell: Doorbell) -> None:
    waiting = threading.Thread(target=bell.wait)
    waiting.start()
    bell.ring()
    waiting.join(BOUND_S)
    assert not waiting.is_alive()


def test_nobody_rings(bell: Doorbell) -> None:
    bell.wait(0.01)


def test_rings_without_number(bell: Doorbell) -> None:
    for _ in range(10_000):
        bell.ring()
    bell.wait()


def test_rung_when_closed() -> None:
    bell = Doorbell()
    bell.close()
    bell.ring()


def test_a_signal_that_another_thread_takes(
    bell: Doorbell, heard: list[int], other: threading.Thread
) -> None:
    """A wait for a lock sleeps on then: nothing tells the main thread that its handler is to run."""
    assert other.ident is not None
    sending = threading.Timer(0.05, signal.pthread_kill, (other.ident, signal.SIGUSR1))
    sending.start()
    bell.wait()
    assert heard == [signal.SIGUSR1]
    sending.join()


def test_who_waited_for_signals_before_hears_of_them(bell: Doorbell, heard: list[int]) -> None:
    ours, loops = socket.socketpair()
    with ours, loops:
        loops.setblocking(False)
        before = signal.set_wakeup_fd(loops.fileno())
        try:
            sending = threading.Timer(0.05, signal.pthread_kill, (threading.get_ident(), signal.SIGUSR2))
            sending.start()
            while not heard:
                bell.wait()
            sending.join()
            assert ours.recv(16) == bytes([signal.SIGUSR2])
        finally:
            assert signal.set_wakeup_fd(before) == loops.fileno()
