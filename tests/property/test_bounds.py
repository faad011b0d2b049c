"""The floor and the remedies beside the best of all placements of a few items."""

import itertools
import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dataloader_balancers import floor, remedies

few = st.lists(st.integers(0, 20), min_size=1, max_size=6)


def best_of_all(costs, speeds, limits):
    """Least time of the dearest rank over all placements that keep the limits: (weights, caps of ranks)."""
    best = math.inf
    ranks = range(len(speeds))
    for placement in itertools.product(ranks, repeat=len(costs)):
        load = [sum(c for c, r in zip(costs, placement, strict=True) if r == rank) for rank in ranks]
        used = {r for r in placement if speeds[r] == 0}
        held = [
            sum(w for w, r in zip(weights, placement, strict=True) if r == rank) <= caps[rank]
            for weights, caps in limits
            for rank in ranks
        ]
        if not used and all(held):
            best = min(best, max(a / s for a, s in zip(load, speeds, strict=True) if s))
    return best


@st.composite
def tasks(draw):
    costs = draw(few)
    speeds = draw(st.lists(st.sampled_from([0, 1, 1, 1, 2, 5]), min_size=1, max_size=3))
    ranks = len(speeds)
    per_rank = draw(
        st.none() | st.integers(1, 6) | st.lists(st.integers(0, 6), min_size=ranks, max_size=ranks)
    )
    tokens = draw(st.none() | st.lists(st.integers(0, 9), min_size=len(costs), max_size=len(costs)))
    room = draw(st.lists(st.integers(0, 20), min_size=ranks, max_size=ranks))
    return costs, speeds, per_rank, tokens, room


@settings(max_examples=200)
@given(tasks())
def test_no_placement_is_below_the_floor(task):
    costs, speeds, per_rank, tokens, room = task
    limits = [] if tokens is None else [(tokens, room)]
    if per_rank is not None:
        limits.append(
            ([1] * len(costs), per_rank if isinstance(per_rank, list) else [per_rank] * len(speeds))
        )
    best = best_of_all(costs, speeds, limits)
    arguments = {} if tokens is None else {"weights": tokens, "capacity": room}
    try:
        bound = floor(costs, len(speeds), speeds=speeds, per_rank=per_rank, **arguments)
    except ValueError:
        assert best == math.inf  # what is refused is impossible
        return
    assert bound.value <= best * (1 + 1e-9)
    assert costs[bound.item] == max(costs)


@given(few, st.integers(1, 3))
def test_the_floor_is_at_least_that_of_a_relaxed_task(costs, ranks):
    bound = floor(costs, ranks).value
    for per_rank in range(-(-len(costs) // ranks), len(costs) + 1):
        assert floor(costs, ranks, per_rank=per_rank).value >= bound
    assert floor(costs, ranks, speeds=[2] * ranks).value == pytest.approx(bound / 2)


@settings(max_examples=60)
@given(few, st.integers(1, 3), st.booleans(), st.integers(1, 3), st.integers(0, 3))
def test_what_a_remedy_spares_is_that_of_the_floors(costs, ranks, equal, max_cut, max_age):
    per_rank = -(-len(costs) // ranks) if equal else None
    groups = [at % 2 for at in range(len(costs))]
    found = remedies(
        costs,
        ranks,
        per_rank=per_rank,
        microbatch=groups,
        strict=False,
        max_cut=max_cut,
        max_age=max_age,
    )
    now = sum(
        floor([c for c, g in zip(costs, groups, strict=True) if g == group], ranks, per_rank=per_rank).value
        for group in set(groups)
    )
    assert [each.gain for each in found] == sorted((each.gain for each in found), reverse=True)
    for each in found:
        assert each.gain > 0
        assert each.time == pytest.approx(now * (1 - each.gain))
        assert each.time >= sum(costs) / ranks * (1 - 1e-9)
        assert each.keeps_set == (each.name != "wait")
        if each.name == "cut":
            assert 1 < max(each.ranks) <= min(max_cut, ranks)
        if each.name == "wait":
            assert 2 <= each.steps <= max_age + 1
            assert each.mean_age <= max_age / 2
    strict = remedies(costs, ranks, per_rank=per_rank, microbatch=groups, max_cut=max_cut, max_age=max_age)
    assert {each.name for each in strict} == {each.name for each in found} - {"wait"}


@settings(max_examples=60)
@given(st.lists(st.integers(1, 20), min_size=2, max_size=6), st.integers(2, 3))
def test_a_cut_promises_no_less_than_the_best_placement_of_the_pieces(costs, ranks):
    found = {each.name: each for each in remedies(costs, ranks)}
    assume("cut" in found)
    cut = found["cut"]
    pieces = [c for at, c in enumerate(costs) if at not in cut.items.tolist()]
    pieces += [
        costs[at] / n for at, n in zip(cut.items.tolist(), cut.ranks.tolist(), strict=True) for _ in range(n)
    ]
    assume(len(pieces) <= 9)
    assert cut.time <= best_of_all(pieces, [1] * ranks, []) * (1 + 1e-9)
