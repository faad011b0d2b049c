"""Waiting in `simulate`: like goes with like, no item is lost or in two steps, and the age is told."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader_svc.cli.simulate_strategies import Layout, compare
from dataloader_svc.cli.simulate_waiting import waited
from dataloader_svc.cli.simulate_work import Work


def steps(*lengths, quadratic=0.1):
    """Costs name the items: all are unlike by a little that no rounding hides."""
    made, number = [], 0
    for each in lengths:
        tokens = np.array(each, np.int64)
        made.append(Work(tokens + quadratic * tokens**2, (number + np.arange(len(tokens))) * 1.0, tokens))
        number += len(tokens)
    return made


def test_a_long_item_waits_for_its_like():
    """On two ranks a step of one long item is twice as long as it need be; two of them are level."""
    one = [*[5] * 16, 40]
    found = waited(steps(*[one] * 6), 2)
    assert [step.tokens.tolist() for step in found.steps] == [[5] * 24, [40, *[5] * 8, 40]] * 3
    assert found.oldest == 1
    assert found.delay == 1 / 6  # every other long one waits a step
    outcome = compare(steps(*[one] * 6), Layout(2), iter(range(1000)).__next__)
    assert outcome.rows["waiting"].llm < outcome.rows["place"].llm - 0.1
    assert outcome.rows["waiting"].delay == pytest.approx(found.delay)
    assert outcome.rows["place"].delay == 0.0


def test_no_step_is_whole_where_all_waits():
    assert not waited(steps([40, 5, 5]), 2).steps
    assert "waiting" not in compare(steps([40, 5, 5]), Layout(2), iter(range(1000)).__next__).rows


@given(
    st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=30), min_size=1, max_size=8), st.integers(1, 5)
)
@settings(max_examples=120, deadline=None)
def test_no_item_is_in_two_steps(lengths, ranks):
    given_steps = steps(*lengths)
    found = waited(given_steps, ranks)
    numbers = [number for step in found.steps for number in step.encoder.astype(int).tolist()]
    assert len(numbers) == len(set(numbers))
    flat = [length for each in lengths for length in each]
    assert all(
        flat[int(number)] == tokens
        for step in found.steps
        for number, tokens in zip(step.encoder.tolist(), step.tokens.tolist(), strict=True)
    )
    size = sum(flat) // len(lengths)
    assert all(int(step.tokens.sum()) >= size for step in found.steps)
    assert found.delay <= found.oldest
