"""Rules as the service calls them: one form, and bounds that hold whatever a rule wants."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader_client.adaptive import (
    RULES,
    Bounds,
    Told,
    by_excess_loss,
    by_learning_speed,
    option_names,
    updated,
)

from .within import assert_within

DECLARED = {"books": 0.2, "captions": 0.3, "web": 0.5}
BOUNDS = Bounds(min_share=0.05, max_share=0.9, max_ratio=3, max_change=0.05)
LOSSES, TARGETS = {"books": 3.0, "captions": 2.5, "web": 2.0}, {"books": 10.0, "captions": 20.0, "web": 30.0}
REFERENCES = {"books": 2.0, "captions": 2.0, "web": 2.0, "poems": 1.0}


def told(**changes):
    values = {"weights": DECLARED, "declared": DECLARED, "losses": LOSSES, "targets": TARGETS}
    return Told(**{**values, "bounds": BOUNDS, **changes})


def test_the_built_in_ones_are_those_of_a_trainer():
    weights, memory = updated(RULES["excess_loss"], told(), None, {"references": REFERENCES, "rate": 0.2})
    known = {name: REFERENCES[name] for name in DECLARED}
    expected = by_excess_loss(DECLARED, LOSSES, known, declared=DECLARED, bounds=BOUNDS, rate=0.2)
    assert weights == pytest.approx(expected)
    assert memory is None
    memory, state, now = None, None, DECLARED
    for update in range(6):
        losses = {name: value / (1 + update) ** 0.5 for name, value in LOSSES.items()}
        weights, memory = updated(
            RULES["learning_speed"], told(weights=now, losses=losses), memory, {"kept": 4}
        )
        rounded = {name: float(f"{loss:.6g}") for name, loss in losses.items()}
        expected, state = by_learning_speed(
            now, rounded, TARGETS, state, declared=DECLARED, bounds=BOUNDS, kept=4
        )
        assert weights == pytest.approx(expected)
        assert memory == json.loads(json.dumps(state)), "what is read again is what was written"
        now = weights
    assert now != DECLARED
    assert all(len(points) <= 4 for points in memory["seen"].values())


def test_what_few_losses_tell_is_much_the_same():
    """16 losses of a source that the service keeps, against 64: the law has three unknowns."""
    found = {}
    for kept in (16, 64):
        now, memory = DECLARED, None
        for update in range(1, 200):
            losses = {
                "books": 1 + 5 * update**-0.5,
                "captions": 2 + 3 * update**-0.3,
                "web": 2 + 4 * update**-0.9,
            }
            now, memory = updated(
                RULES["learning_speed"], told(weights=now, losses=losses), memory, {"kept": kept}
            )
        found[kept] = now
    assert found[16] == pytest.approx(found[64], rel=0.02)


def test_sources_come_and_go_with_the_schedule():
    rule, memory = RULES["learning_speed"], None
    for update in range(4):
        losses = {name: value / (1 + update) for name, value in LOSSES.items()}
        _, memory = updated(rule, told(losses=losses), memory, {})
    two = {"books": 0.4, "poems": 0.6}
    now = {"weights": two, "declared": two, "targets": dict.fromkeys(two, 9.0)}
    for update in range(4):
        losses = {"books": 1 / (5 + update), "poems": 5 / (1 + update)}
        weights, memory = updated(rule, told(losses=losses, **now), memory, {})
        assert (weights == pytest.approx(two)) == (update < 2), "poems has no law before its third loss"
    assert {name: len(points) for name, points in memory["seen"].items()} == {"books": 8, "poems": 4}
    with pytest.raises(ValueError, match="the state has version 9"):
        updated(rule, told(), {**memory, "version": 9}, {})


def test_options_are_known_by_name():
    assert option_names(RULES["excess_loss"]) == ("references", "rate", "smoothing")
    assert option_names(RULES["learning_speed"]) == ("credit", "smoothing", "kept")
    assert option_names(lambda told, memory, **options: ({}, None)) is None


numbers = st.floats(min_value=0, max_value=1e300, allow_nan=False)


@st.composite
def wanted(draw):
    """Weights that a rule may want, not all of them 0 or enormous."""
    found = draw(st.dictionaries(st.sampled_from(sorted(DECLARED)), numbers, min_size=1))
    return found if 0 < sum(found.values()) < math.inf else {"web": 1.0}


@settings(max_examples=150, deadline=None)
@given(st.lists(wanted(), min_size=1, max_size=12))
def test_bounds_hold_whatever_a_rule_wants(steps):
    weights = DECLARED
    for step in steps:
        after, _ = updated(lambda told, memory, wants=step: (wants, memory), told(weights=weights), None, {})
        assert_within(BOUNDS, DECLARED, weights, after)
        weights = after


@pytest.mark.parametrize(
    ("result", "error", "text"),
    [
        ({"web": 1.0}, TypeError, "it gave dict; a rule gives"),
        ((3, None), TypeError, "it gave int for weights"),
        (({}, None), ValueError, "wanted weights sum to 0"),
        (({"web": math.nan}, None), ValueError, "wanted weights has nan for 'web'"),
        (({"web": -1.0}, None), ValueError, "wanted weights has -1.0 for 'web'"),
        (({"wob": 1.0}, None), ValueError, "weights has 'wob', which is no source"),
        ((DECLARED, {"x": math.nan}), ValueError, "what it remembers is no JSON"),
        ((DECLARED, object()), ValueError, "what it remembers is no JSON"),
        ((DECLARED, "x" * 2**20), ValueError, "it remembers 1048578 letters"),
    ],
)
def test_what_is_no_answer_is_refused(result, error, text):
    with pytest.raises(error, match=text):
        updated(lambda told, memory: result, told(), None, {})


def test_weights_outside_of_the_bounds_are_said_to_be():
    with pytest.raises(ValueError, match="the weight of 'books' is 0, and bounds let it be 0.0666667 to 0.6"):
        updated(lambda told, memory: (DECLARED, None), told(weights={"web": 1.0}), None, {})
