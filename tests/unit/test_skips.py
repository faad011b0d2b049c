"""Counting past skipped steps, against a list of the steps that are read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dataloader_svc.skips import after, before, is_skipped

LAST = 60


@st.composite
def runs(draw) -> tuple[tuple[int, int], ...]:
    """Some that touch each other, some that begin at 0."""
    bounds = sorted(draw(st.sets(st.integers(0, LAST // 2), max_size=12)))
    return tuple(zip(bounds[::2], bounds[1::2], strict=False))


def test_without_skips_steps_are_counted_plainly():
    assert after((), -1, 4) == 3
    assert before((), 3, 4) == -1


@given(skips=runs(), step=st.integers(-1, LAST // 2), count=st.integers(1, 8))
def test_they_count_the_steps_that_are_read(skips, step, count):
    read = [n for n in range(-LAST, 2 * LAST) if not any(n in range(*run) for run in skips)]
    assert all(is_skipped(skips, n) == (n not in read) for n in range(LAST))
    last = after(skips, step, count)
    assert last in read
    assert sum(step < n <= last for n in read) == count
    first = before(skips, step, count)
    assert first in read
    assert sum(first <= n < step for n in read) == count
    assert before(skips, last, count) == step or step not in read
