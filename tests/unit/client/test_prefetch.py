"""Reading ahead: in order, never more than asked for, and every error where the trainer waits."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from dataloader_client.errors import DataStoppedError
from dataloader_client.failures import Closed
from dataloader_client.prefetch import Prefetch
from dataloader_client.wire import Frame


class FakePending:
    def __init__(self, step, stop):
        self.step, self.stop = step, stop

    def cancel(self):
        self.stop.set()


class FakeTransport:
    """Answers a read when told to; counts what is in flight and what was finished."""

    def __init__(self, num_steps=100, error_at=None, gate=False, size=lambda step: 1):
        self.num_steps, self.error_at, self.size = num_steps, error_at, size
        self.gate = threading.Semaphore(0) if gate else None
        self.started, self.finished = [], []

    def start(self, step, stop):
        self.started.append(step)
        return FakePending(step, stop)

    def finish_read(self, pending):
        if self.gate is not None:
            while not self.gate.acquire(timeout=0.01):
                if pending.stop.is_set():
                    raise Closed
        if pending.step == self.error_at:
            raise DataStoppedError("too many bad samples")
        self.finished.append(pending.step)
        x = np.zeros(self.size(pending.step))
        return Frame({"x": x}, {"step": pending.step, "end": pending.step >= self.num_steps})


def prefetch(transport, depth=2, first=0, most_bytes=None):
    return Prefetch(transport, transport.start, first, depth, most_bytes=most_bytes)


def test_frames_come_in_order_to_the_end():
    transport = FakeTransport(num_steps=5)
    ahead = prefetch(transport, depth=3)
    frames = [ahead.take() for _ in range(6)]
    assert [frame.meta["step"] for frame in frames] == [0, 1, 2, 3, 4, 5]
    assert frames[-1].meta["end"]
    ahead.stop()


def test_no_more_than_depth_is_asked_for():
    transport = FakeTransport(gate=True)
    ahead = prefetch(transport, depth=2, first=7)
    for taken in range(4):
        transport.gate.release()
        assert ahead.take().meta["step"] == 7 + taken
        assert len(transport.started) <= taken + 3
    transport.gate.release(100)
    ahead.take()
    ahead.stop()  # the thread is gone: what was started is final
    assert max(transport.started) <= 7 + 4 + 2


@pytest.mark.parametrize(("steps_of_memory", "ahead_at_most"), [(0, 1), (1, 1), (3, 3), (100, 5)])
def test_no_more_is_read_ahead_than_there_is_memory_for(steps_of_memory, ahead_at_most):
    """Steps of 80 bytes. Whoever has taken one in waits until it is known that no other is asked for."""
    transport = FakeTransport(gate=True, size=lambda step: 10)
    ahead = prefetch(transport, depth=5, most_bytes=80 * steps_of_memory)
    seen = set()
    for taken in range(12):
        transport.gate.release()
        assert ahead.take().meta["step"] == taken
        seen.add(len(transport.started) - taken - 1)
        assert max(seen) <= ahead_at_most
    ahead.stop()
    assert len(transport.started) - 12 <= ahead_at_most


def test_after_a_step_above_the_memory_one_is_read_at_a_time():
    transport = FakeTransport(num_steps=11, size=lambda step: 50 if step == 3 else 1)
    ahead = prefetch(transport, depth=4, most_bytes=8 * 20)
    for step in range(12):
        if step > 6:  # all that was asked for before it came has been taken
            assert max(transport.started) <= step
        assert ahead.take().meta["step"] == step
    ahead.stop()


def test_what_came_before_an_error_is_handed_out_first():
    transport = FakeTransport(error_at=2)
    ahead = prefetch(transport, depth=4)
    assert [ahead.take().meta["step"] for _ in range(2)] == [0, 1]
    for _ in range(2):
        with pytest.raises(DataStoppedError):
            ahead.take()
    ahead.stop()


def test_stop_ends_a_read_that_never_comes():
    transport = FakeTransport(gate=True)
    ahead = prefetch(transport)
    thread = ahead._thread
    ahead.stop()
    ahead.stop()
    assert not thread.is_alive()
    with pytest.raises(Closed):
        ahead.take()
