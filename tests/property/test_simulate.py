"""Pipelines beside devices that act by rule, tick by tick: what they hold in flight, not a list of turns."""

from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader_balancers.simulate import pipeline


class Device:
    """Runs a backward when as many passes are in flight as it may hold or no forward is left; else a forward.
    It does not know what others do, and waits for what is next.
    """

    def __init__(self, stage, stages, chunks, num):
        self.most = stages - stage if chunks == 1 else 2 * (stages - stage - 1) + (chunks - 1) * stages + 1
        parts = [stage + stages * chunk for chunk in range(chunks)]
        groups = [range(at, min(at + stages, num)) for at in range(0, num, stages)]
        self.forwards = [("F", m, part) for group in groups for part in parts for m in group]
        self.backwards = [("B", m, part) for group in groups for part in reversed(parts) for m in group]
        self.flying = 0
        self.ends = 0

    def next(self):
        if self.backwards and (self.flying == self.most or not self.forwards):
            return self.backwards[0]
        return self.forwards[0] if self.forwards else None

    def take(self):
        if self.flying == self.most or not self.forwards:
            self.flying -= 1
            return self.backwards.pop(0)
        self.flying += 1
        return self.forwards.pop(0)


def run(costs, stages, chunks, backward):
    """Whole-number times: the clock goes on one by one."""
    num, last = len(costs), stages * chunks - 1
    devices = [Device(stage, stages, chunks, num) for stage in range(stages)]
    finished = {}

    def ready(operation, now):
        kind, m, part = operation
        needs = ("F", m, part - 1) if kind == "F" else ("B", m, part + 1) if part < last else ("F", m, part)
        return needs[2] < 0 or finished.get(needs, now + 1) <= now

    now = 0
    while any(device.next() for device in devices):
        moved = True
        while moved:  # what takes no time makes others ready at once
            moved = False
            for device in devices:
                operation = device.next()
                if operation and device.ends <= now and ready(operation, now):
                    kind, m, part = device.take()
                    device.ends = now + costs[m][part] * (backward if kind == "B" else 1)
                    finished[operation] = device.ends
                    moved = True
        now += 1
        assert now < 10_000
    return max(device.ends for device in devices)


@st.composite
def tasks(draw):
    stages = draw(st.integers(1, 4))
    chunks = draw(st.integers(1, 3)) if stages > 1 else 1
    num = draw(st.integers(1, 6)) if chunks == 1 else stages * draw(st.integers(1, 3))
    row = st.lists(st.integers(0, 5), min_size=stages * chunks, max_size=stages * chunks)
    return draw(st.lists(row, min_size=num, max_size=num)), stages, chunks, draw(st.integers(0, 3))


@settings(max_examples=200)
@given(tasks())
def test_devices_that_follow_the_rule_end_when_simulated(task):
    costs, stages, chunks, backward = task
    simulated = pipeline(costs, stages, chunks=chunks, backward=float(backward))
    times = [[backward * cost for cost in row] for row in costs]
    assert pipeline(costs, stages, chunks=chunks, backward=times).time == simulated.time
    assert float(simulated.time) == run(costs, stages, chunks, backward)
    for stage in range(stages):
        work = sum(row[part] for row in costs for part in range(stage, stages * chunks, stages))
        assert simulated.busy[stage] == work * (1 + backward)
