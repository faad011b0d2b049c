"""Random phases, caps, speeds and counts for `place`, beside slow and obvious checks."""

import importlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader_balancers.assign import Cap, Ranks, place
from dataloader_balancers.assign.items import _PACKED_FROM, descending

PLACE = importlib.import_module("dataloader_balancers.assign.place")  # whose name its function has, too
quiet = settings(deadline=None)  # other work on the machine is no failure


@st.composite
def problems(draw, max_items=14, max_ranks=5):
    """Keyword arguments of `place`, of whole numbers, so that sums are exact in any order."""
    items, ranks = draw(st.integers(0, max_items)), draw(st.integers(1, max_ranks))

    def numbers(strategy, size):
        return draw(st.lists(strategy, min_size=size, max_size=size))

    phases = draw(st.integers(1, 3))
    costs = [numbers(st.integers(0, 20), items) for _ in range(phases)]
    speed = [numbers(st.sampled_from([0, 1, 1, 2, 4]), ranks) for _ in range(phases)]
    for row in speed:
        row[0] = max(row[0], 1)  # that some rank can
    per_rank = draw(
        st.one_of(
            st.none(), st.integers(0, items), st.lists(st.integers(0, 5), min_size=ranks, max_size=ranks)
        )
    )
    caps = []
    for name in draw(st.sampled_from([(), ("tokens",), ("tokens", "patches")])):
        weights = numbers(st.integers(0, 9), items)
        limits = numbers(st.integers(0, 30), ranks)
        limits[-1] = max(limits[-1], *weights, 9)
        caps.append(Cap(name, weights, limits))
    return {"costs": costs, "ranks": Ranks(ranks, speed=speed, per_rank=per_rank), "caps": caps}


def may_hold(problem, rank, item, held):
    """Could `rank`, which has the items `held`, take `item` as well?"""
    together = [*held, item]
    speed = [row[rank] for row in problem["ranks"].speed]
    if not any(speed) or any(
        not fast and row[item] for fast, row in zip(speed, problem["costs"], strict=True)
    ):
        return False
    most = problem["ranks"].per_rank
    most = most[rank] if isinstance(most, list) else most
    return (most is None or len(together) <= most) and all(
        sum(cap.weights[i] for i in together) <= cap.limit[rank] for cap in problem["caps"]
    )


def step_time(problem, result):
    """Ranks meet after each phase."""
    total = 0.0
    for costs, speed in zip(problem["costs"], problem["ranks"].speed, strict=True):
        held = [
            sum(cost for cost, rank in zip(costs, result, strict=True) if rank == r)
            for r in range(len(speed))
        ]
        total += max(work / fast if fast else 0.0 for work, fast in zip(held, speed, strict=True))
    return total


@settings(deadline=None, max_examples=300)
@given(problems())
def test_caps_hold_and_nothing_waits_that_a_rank_has_room_for(problem):
    result = place(**problem).tolist()
    count = problem["ranks"].count
    assert len(result) == len(problem["costs"][0])
    held = {rank: [i for i, r in enumerate(result) if r == rank] for rank in range(-1, count)}
    assert sum(map(len, held.values())) == len(result)
    for rank in range(count):
        for n, item in enumerate(held[rank]):
            assert may_hold(problem, rank, item, held[rank][:n])
        assert not any(may_hold(problem, rank, item, held[rank]) for item in held[-1])


@quiet
@given(problems())
def test_the_search_only_lowers_the_time_of_a_step(problem):
    greedy, found = place(**problem, steps=0).tolist(), place(**problem).tolist()
    assert found.count(-1) <= greedy.count(-1)
    if found.count(-1) == greedy.count(-1) == 0:
        assert step_time(problem, found) <= step_time(problem, greedy) * (1 + 1e-12)


@settings(deadline=None, max_examples=60)
@given(problems(max_items=6, max_ranks=3))
def test_against_the_best_of_all_placements(problem):
    """Where everything has a place: never below the best, and not far above."""
    result = place(**problem).tolist()
    ranks, items = range(problem["ranks"].count), range(len(result))

    def possible(placement):
        held = {rank: [] for rank in ranks}
        for item, rank in enumerate(placement):
            if not may_hold(problem, rank, item, held[rank]):
                return False
            held[rank].append(item)
        return True

    times = [step_time(problem, p) for p in itertools.product(ranks, repeat=len(items)) if possible(p)]
    if -1 not in result:
        assert times
        assert min(times) <= step_time(problem, result) <= 2 * min(times)


@quiet
@given(problems(), st.data())
def test_the_order_of_arrival_does_not_matter(problem, data):
    items = len(problem["costs"][0])
    order = data.draw(st.permutations(range(items)))
    shuffled = {
        "costs": [[row[i] for i in order] for row in problem["costs"]],
        "ranks": problem["ranks"],
        "caps": [Cap(cap.name, [cap.weights[i] for i in order], cap.limit) for cap in problem["caps"]],
    }

    def contents(task):
        columns = [*task["costs"], *(cap.weights for cap in task["caps"])]
        return sorted(zip(place(**task).tolist(), *columns, strict=True))

    assert contents(shuffled) == contents(problem)


@quiet
@given(problems(max_items=40, max_ranks=12))
def test_rounds_keep_what_one_by_one_keeps(problem):
    """The way of 2 million pairs and more, on few: rounds, then exchanges in bulk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dataloader_balancers.assign.greedy._ONE_BY_ONE", 20)
        patch.setattr("dataloader_balancers.assign.greedy._ONE_BY_ONE_PHASES", 20)
        patch.setattr(PLACE, "_MANY", 20)
        patch.setattr(PLACE, "_ONLY_MANY", 100)
        start = place(**problem, steps=0).tolist()
        result = place(**problem).tolist()
    assert result.count(-1) <= start.count(-1)
    if result.count(-1) == start.count(-1) == 0:
        assert step_time(problem, result) <= step_time(problem, start) * (1 + 1e-12)
    held = {
        rank: [i for i, r in enumerate(result) if r == rank] for rank in range(-1, problem["ranks"].count)
    }
    for rank in range(problem["ranks"].count):
        for n, item in enumerate(held[rank]):
            assert may_hold(problem, rank, item, held[rank][:n])
        assert not any(may_hold(problem, rank, item, held[rank]) for item in held[-1])


@quiet
@given(
    st.lists(
        st.sampled_from([0.0, -0.0, 1.0, 1 + 2**-52, 1 + 2**-40, 2.0, 1e300, 5e-324]), min_size=1, max_size=30
    )
)
def test_packed_keys_sort_as_a_stable_sort(values):
    """Equal values by index; values that differ only in bits which the packed keys have no room for, too."""
    repeated = np.tile(values, _PACKED_FROM // len(values) + 1)
    expected = sorted(range(len(repeated)), key=lambda i: (-repeated[i], i))
    assert descending(repeated).tolist() == expected
