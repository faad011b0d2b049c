"""Weights that follow losses: the paper's rule where nothing binds, and bounds that hold whatever is told."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader_client.adaptive import Bounds, by_excess_loss

from .within import assert_within

NAMES = ("books", "captions", "web")
FREE = Bounds(max_change=1.0)
DECLARED = {"books": 0.2, "captions": 0.3, "web": 0.5}
REFERENCES = dict.fromkeys(NAMES, 2.0)


def test_the_rule_of_the_paper_where_nothing_binds():
    losses = {"books": 3.0, "captions": 2.5, "web": 1.0}  # web is better than its reference: no excess
    found = by_excess_loss(
        DECLARED, losses, REFERENCES, declared=DECLARED, bounds=FREE, rate=0.5, smoothing=0.1
    )
    raised = {"books": 0.2 * math.exp(0.5), "captions": 0.3 * math.exp(0.25), "web": 0.5}
    total = sum(raised.values())
    assert found == pytest.approx({name: 0.9 * raised[name] / total + 0.1 / 3 for name in NAMES})


def test_the_nearest_within_bounds():
    losses = {"books": 30.0, "captions": 2.0, "web": 2.0}  # wants all of it for books
    bounds = Bounds(max_change=0.06)
    found = by_excess_loss(DECLARED, losses, REFERENCES, declared=DECLARED, bounds=bounds, smoothing=0)
    left = 1 - 0.26  # for the others, in the ratio that they had
    assert found == pytest.approx({"books": 0.26, "captions": left * 3 / 8, "web": left * 5 / 8})
    weights = DECLARED
    bounds = Bounds(max_ratio=2, max_change=0.06)
    for _ in range(20):
        weights = by_excess_loss(weights, losses, REFERENCES, declared=DECLARED, bounds=bounds)
    assert weights["books"] == pytest.approx(0.4)


def test_a_source_without_a_loss_keeps_its_share_of_what_is_equal():
    losses = {"books": 2.7, "web": 2.7}
    found = by_excess_loss(DECLARED, losses, REFERENCES, declared=DECLARED, bounds=FREE, smoothing=0)
    assert found == pytest.approx(DECLARED)
    assert by_excess_loss(DECLARED, {}, {}, declared=DECLARED, bounds=FREE, smoothing=0) == pytest.approx(
        DECLARED
    )


@st.composite
def told(draw):
    """Bounds that the declared weights are in, and what ranks told in up to twelve updates."""
    parts = draw(st.lists(st.floats(0.05, 1), min_size=2, max_size=6))
    declared = {f"s{number}": part / sum(parts) for number, part in enumerate(parts)}
    bounds = Bounds(
        min_share=min(declared.values()) * draw(st.floats(0, 1)),
        max_share=draw(st.floats(max(declared.values()), 1)),
        max_ratio=draw(st.one_of(st.just(math.inf), st.floats(1, 10))),
        max_change=draw(st.floats(1e-4, 1)),
    )
    losses = st.dictionaries(st.sampled_from(sorted(declared)), st.floats(-1e6, 1e6))
    return declared, bounds, draw(st.lists(losses, min_size=1, max_size=12)), draw(st.floats(0, 1))


@settings(max_examples=150, deadline=None)
@given(told())
def test_bounds_hold_whatever_is_told(case):
    declared, bounds, reports, smoothing = case
    references = dict.fromkeys(declared, 1.0)
    weights = declared
    for losses in reports:
        after = by_excess_loss(
            weights, losses, references, declared=declared, bounds=bounds, smoothing=smoothing
        )
        assert_within(bounds, declared, weights, after)
        weights = after


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"losses": {"books": math.nan}}, "the loss of 'books' is nan"),
        ({"references": {"books": math.inf}}, "the reference loss of 'books' is inf"),
        ({"references": {}}, "no reference loss for 'books'"),
        ({"losses": {"book": 1.0}}, "losses has 'book', which is no source; there are books, captions, web"),
        ({"weights": {"books": 1.0}}, "the weight of 'books' is 1, and bounds let it be 0 to 0.9"),
        ({"weights": {}}, "weights sum to 0"),
        ({"declared": {**DECLARED, "web": -1.0}}, "declared has -1.0 for 'web'"),
    ],
)
def test_what_makes_no_sense_names_the_source(change, text):
    given_ = {"weights": DECLARED, "losses": {"books": 3.0}, "references": REFERENCES, "declared": DECLARED}
    values = {**given_, **change}
    with pytest.raises(ValueError, match=text):
        by_excess_loss(**values, bounds=Bounds(max_share=0.9))


@pytest.mark.parametrize(
    "values",
    [{"min_share": 0.5, "max_share": 0.4}, {"max_share": 1.5}, {"max_ratio": 0.5}, {"max_change": 0.0}]
    + [{name: math.nan} for name in ("min_share", "max_share", "max_ratio", "max_change")],
)
def test_bounds_that_make_no_sense(values):
    with pytest.raises(ValueError, match=next(reversed(values))):
        Bounds(**values)
