"""What a loader tells of its work: seconds, shares, pieces put together, works under way."""

from __future__ import annotations

import pytest

from dataloader_client._pb import loader_service_pb2
from dataloader_svc.loader.meter import KEPT, Meter


class Ticks:
    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


def told(meter: Meter) -> tuple[list[tuple[str, int, float, float]], int, int]:
    status = loader_service_pb2.LoaderStatus()
    meter.tell(status)
    columns = (status.work, status.work_units, status.work_s, status.work_share_s)
    return list(zip(*columns, strict=True)), status.works_done, status.works_under_way


def test_time_is_shared_by_what_is_under_way() -> None:
    clock = Ticks()
    meter = Meter(clock)
    with meter.work("read web", 10):
        clock.now = 1.0
        with meter.work("decode photos", 3):
            clock.now = 3.0
            assert told(meter) == ([("read web", 10, 3.0, 2.0), ("decode photos", 3, 2.0, 1.0)], 0, 2)
        clock.now = 4.0
    assert told(meter) == ([("decode photos", 3, 2.0, 1.0), ("read web", 10, 4.0, 3.0)], 2, 0)


def test_small_works_of_a_kind_are_put_together() -> None:
    clock = Ticks()
    meter = Meter(clock)
    for _ in range(20):
        with meter.work("read web", 7):
            clock.now += 0.006
    works, done, _ = told(meter)
    assert done == len(works) == 10
    assert [units for _, units, _, _ in works] == [14] * 10


def test_a_work_that_fails_is_not_kept() -> None:
    clock = Ticks()
    meter = Meter(clock)
    with pytest.raises(KeyError), meter.work("read web", 7):
        clock.now += 1.0
        raise KeyError
    assert told(meter) == ([], 0, 0)


def test_old_pieces_go() -> None:
    clock = Ticks()
    meter = Meter(clock)
    for _ in range(KEPT + 3):
        with meter.work("read web", 7):
            clock.now += 1.0
    works, done, _ = told(meter)
    assert (len(works), done) == (KEPT, KEPT + 3)
