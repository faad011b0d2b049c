"""A short bad day by each store; `make soak` is a long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.chaos import made
from redis_server import needs_redis


@pytest.mark.parametrize(
    ("seed", "bad", "with_redis"),
    [(3, False, False), pytest.param(4, True, True, marks=needs_redis)],
    ids=["sqlite", "redis"],
)
def test_a_bad_day(tmp_path: Path, seed: int, bad: bool, with_redis: bool) -> None:
    with made(tmp_path, seed, bad=bad, with_redis=with_redis) as chaos:
        report = chaos.run(lambda so_far: so_far.events.total() < 9, print)
    print("\n".join(report.lines()))
    assert report.findings == []
    assert (report.lost, report.repeated) == (0, 0)
    assert report.steps > 20
    assert bool(report.quarantined) == bad
