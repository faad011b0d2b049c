"""Weights that follow how fast sources are learned: the law is found, bounds hold, a state is all."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader_client.adaptive import Bounds, by_learning_speed

from .within import assert_within

DECLARED = {"books": 0.2, "captions": 0.3, "web": 0.5}
FREE = Bounds(max_change=1.0)
LAWS = {"books": (1.0, 8.0, 0.5), "captions": (2.0, 4.0, 0.3), "web": (0.5, 2.0, 0.1)}
EACH = 1000.0


def told(step):
    """Losses that follow the laws exactly, after `step` reports of as many targets each."""
    return {
        name: floor + scale * (EACH * step) ** -exponent for name, (floor, scale, exponent) in LAWS.items()
    }


def run(weights, state, steps, **settings_):
    for step in steps:
        weights, state = by_learning_speed(
            weights, told(step), dict.fromkeys(LAWS, EACH), state, declared=DECLARED, **settings_
        )
    return weights, state


def test_the_laws_are_found_and_the_weights_are_those_of_the_formula():
    weights, state = run(DECLARED, None, range(1, 3), bounds=FREE)
    assert weights == pytest.approx(DECLARED), "two losses fit any law"
    weights, _ = run(weights, state, [3], bounds=FREE)
    speed = {name: a * b * (3 * EACH) ** (-a - 1) for name, (_, b, a) in LAWS.items()}
    wanted = {name: DECLARED[name] * DECLARED[name] ** 0.5 * speed[name] for name in LAWS}
    total = sum(wanted.values())
    expected = {name: 0.1 * wanted[name] / total + 0.9 * DECLARED[name] for name in LAWS}
    assert weights == pytest.approx(expected, rel=1e-6)


def test_a_state_saved_and_loaded_gives_the_same_weights():
    bounds = Bounds(min_share=0.05, max_change=0.02)
    through = run(DECLARED, None, range(1, 161), bounds=bounds)
    half = run(DECLARED, None, range(1, 101), bounds=bounds)
    text = json.dumps(half, allow_nan=False)
    assert run(*json.loads(text), range(101, 161), bounds=bounds) == through
    assert json.dumps(half, allow_nan=False) == text, "a state that is kept does not change"
    assert max(map(len, through[1]["seen"].values())) <= 64
    assert through[1]["seen"]["web"][-1][0] == 160 * EACH
    assert through[0] != pytest.approx(DECLARED)


def test_sources_that_get_no_better_keep_their_weights():
    state, weights = None, DECLARED
    for _ in range(5):
        same = dict.fromkeys(LAWS, 2.0)
        weights, state = by_learning_speed(weights, same, same, state, declared=DECLARED, bounds=FREE)
    assert weights == pytest.approx(DECLARED)


@st.composite
def reports(draw):
    parts = draw(st.lists(st.floats(0.05, 1), min_size=2, max_size=4))
    declared = {f"s{number}": part / sum(parts) for number, part in enumerate(parts)}
    bounds = Bounds(
        min_share=min(declared.values()) * draw(st.floats(0, 1)),
        max_share=draw(st.floats(max(declared.values()), 1)),
        max_ratio=draw(st.one_of(st.just(math.inf), st.floats(1, 10))),
        max_change=draw(st.floats(1e-4, 1)),
    )
    loss = st.floats(allow_nan=False, allow_infinity=False)
    losses = st.fixed_dictionaries(dict.fromkeys(declared, loss))
    return declared, bounds, draw(st.lists(losses, min_size=3, max_size=8)), draw(st.floats(1e-3, 1e15))


@settings(max_examples=100, deadline=None)
@given(reports())
def test_bounds_hold_whatever_is_told(case):
    declared, bounds, told_, count = case
    weights, state = declared, None
    for losses in told_:
        after, state = by_learning_speed(
            weights,
            losses,
            dict.fromkeys(losses, count),
            state,
            declared=declared,
            bounds=bounds,
            smoothing=1,
        )
        assert_within(bounds, declared, weights, after)
        weights = after


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"losses": {"books": math.nan}}, "the loss of 'books' is nan"),
        ({"losses": {"book": 1.0}}, "losses has 'book', which is no source"),
        ({"targets": {}}, "the targets of 'books' are 0"),
        ({"targets": {"books": math.nan}}, "the targets of 'books' are nan"),
        ({"state": {}}, "version None"),
        ({"state": {"version": 1, "past": {"web": 1.0}, "seen": {}}}, "past of the state is of web"),
        ({"weights": {"books": 1.0}}, "the weight of 'books' is 1, and bounds"),
        ({"credit": math.nan}, "credit is nan"),
    ],
)
def test_what_makes_no_sense_names_the_source(change, text):
    values = {"weights": DECLARED, "losses": {"books": 3.0}, "targets": {"books": 5.0}, "state": None}
    with pytest.raises(ValueError, match=text):
        by_learning_speed(**{**values, **change}, declared=DECLARED, bounds=Bounds(max_share=0.9))
