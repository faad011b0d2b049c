"""Who is slow is named within ten seconds, and nobody else: a simulated clock, costs with long tails."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dataloader_svc.planner.stragglers import (
    AGAIN_S,
    SILENT_S,
    Answered,
    Known,
    Stragglers,
    Unanswered,
    Work,
)
from loader_day import TICK_S, Day

KINDS = {"read web": (1e-4, 0.4), "read pages": (2e-4, 0.5), "decode photos": (2e-4, 0.7)}
HOUR_S = 3600.0
ONSET_S = 40.0


def slow_from(onset_s: float, factor: float, loader: int = 1):
    return lambda number, at: factor if number == loader and at >= onset_s else 1.0


@pytest.mark.parametrize(("loaders", "threads", "seed"), [(2, 2, 0), (4, 2, 1), (8, 1, 2)])
def test_nobody_is_named_in_four_clean_hours_of_a_thread(loaders: int, threads: int, seed: int) -> None:
    assert Day(loaders, threads, KINDS, seed).run(HOUR_S * 4 / (loaders * threads)) == []


@pytest.mark.parametrize("seed", range(2))
def test_what_slows_all_at_once_is_nobodys_fault(seed: int) -> None:
    loads = np.random.default_rng(seed).choice([1.0, 1.0, 2.0, 5.0], 100)
    day = Day(4, 2, KINDS, seed, slowness=lambda _, at: float(loads[int(at / 30) % 100]))
    assert day.run(HOUR_S / 2) == []


@pytest.mark.parametrize("seed", range(2))
def test_one_that_is_half_as_fast_stays(seed: int) -> None:
    assert Day(4, 2, KINDS, seed, slowness=slow_from(ONSET_S, 1.8)).run(HOUR_S / 4) == []


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("loaders", [2, 4])
def test_a_slow_one_is_named_within_ten_seconds(loaders: int, seed: int) -> None:
    day = Day(loaders, 4, KINDS, seed, units=500, slowness=slow_from(ONSET_S, 8.0))
    ((at, verdict),) = day.run(ONSET_S + 10, stop_at_first=True)
    assert (verdict.name, verdict.kind) == ("loader-1", "slow")
    assert ONSET_S < at <= ONSET_S + 10
    assert " times as long as its peers for like work" in verdict.why


@pytest.mark.parametrize("loaders", [1, 2, 5])
def test_a_stopped_one_is_named_within_ten_seconds(loaders: int) -> None:
    day = Day(loaders, 2, KINDS, 0, slowness=slow_from(ONSET_S, math.inf, loader=loaders - 1))
    ((at, verdict),) = day.run(ONSET_S + 10, stop_at_first=True)
    assert (verdict.name, verdict.kind) == (f"loader-{loaders - 1}", "silent")
    assert ONSET_S + SILENT_S <= at + TICK_S <= ONSET_S + 10


def test_where_most_are_silent_it_is_not_them() -> None:
    day = Day(4, 2, KINDS, 0, slowness=lambda number, at: math.inf if number and at > ONSET_S else 1.0)
    assert day.run(ONSET_S + 60) == []


def test_a_judge_that_stood_still_begins_anew() -> None:
    core = Stragglers()
    core.apply(Known({"a": "loader-0"}), 0.0)
    core.apply(Answered("a", ()), 0.0)
    core.judge(0.0)
    for _ in range(5):
        core.apply(Unanswered("a"), 60.0)
    assert core.judge(60.0) is None
    assert core.judge(61.0) is None


def test_a_film_among_pictures_is_no_sign() -> None:
    """One piece of a hundred times the work, on its own, while it runs and when it is done."""
    core = Stragglers()
    picture = Work("decode photos", 1000, 0.1, 0.05)
    core.apply(Known({"a": "loader-0", "b": "loader-1"}), 0.0)
    for second in range(60):
        film = Work("decode photos", 1000, second - 20.0, (second - 20.0) / 2)
        under_way = [film] if 20 < second <= 45 else []
        finished = [film] if second == 46 else []
        core.apply(Answered("a", [picture] * 5 + finished, under_way), float(second))
        core.apply(Answered("b", [picture] * 5), float(second))
        assert core.judge(float(second)) is None


def test_a_pause_is_no_slowness() -> None:
    """All that was under way is late, and then the trainer has enough and asks for nothing for a while."""
    core = Stragglers()
    core.apply(Known({"a": "loader-0", "b": "loader-1"}), 0.0)
    for second in range(60):
        quick = [Work("decode photos", 1000, 0.1, 0.0125)] * 20
        late = [Work("decode photos", 1000, 2.5, 0.4)] * 8
        done = quick if second < 30 else late if second == 30 else quick[:1] if second > 50 else []
        core.apply(Answered("a", done), float(second))
        core.apply(Answered("b", quick if second < 30 else []), float(second))
        assert core.judge(float(second)) is None


def test_kinds_that_only_one_does_are_not_compared() -> None:
    core = Stragglers()
    core.apply(Known({"a": "loader-0", "b": "loader-1"}), 0.0)
    for second in range(60):
        core.apply(Answered("a", [Work("read cheap", 1000, 0.1, 0.1)] * 5), float(second))
        core.apply(Answered("b", [Work("read dear", 1000, 9.0, 9.0)] * 5), float(second))
        assert core.judge(float(second)) is None


def test_the_successor_of_a_slow_one_is_given_time() -> None:
    """Where it is slow as well, as for the place it runs at, it is named again later and later."""
    core, named = Stragglers(), []
    for second in range(1000):
        life = f"b{len(named)}"
        core.apply(Known({"a": "loader-0", life: "loader-1"}), float(second))
        core.apply(Answered("a", [Work("read web", 1000, 0.05, 0.05)] * 5), float(second))
        core.apply(Answered(life, [Work("read web", 1000, 0.5, 0.5)] * 2), float(second))
        if (verdict := core.judge(float(second))) is not None:
            assert verdict.loader == life
            named.append(second)
    gaps = np.diff(named)
    assert len(gaps) >= 2
    assert gaps[0] >= AGAIN_S
    assert (gaps[1:] >= 2 * gaps[:-1] - AGAIN_S / 10).all()


def test_whoever_is_unknown_is_passed_over() -> None:
    core = Stragglers()
    core.apply(Answered("x", [Work("read web", 1, 1.0, 1.0)]), 0.0)
    core.apply(Unanswered("x"), 0.0)
    assert core.judge(0.0) is None
