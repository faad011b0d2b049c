"""Limits on the media of a sequence: never breached, nothing lost, no picture cut, whatever the data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataloader_svc.errors import StateError
from dataloader_svc.planner.rules import Rules
from dataloader_svc.testing.planning import PlanDriver, plan_config
from dataloader_svc.testing.scripted_loader import Sample, ScriptedSources

ROOM, PATCHES, FRAMES = 40, 20, 24


@st.composite
def documents(draw: st.DrawFn) -> Sample:
    """Text, media, text, media, ...: some of them too long, or of too many patches or frames."""
    at, media = draw(st.integers(0, 10)), []
    for _ in range(draw(st.integers(0, 4))):
        tokens = draw(st.integers(1, 12))
        patches, frames = draw(st.sampled_from([(tokens, 0), (2 * tokens, 0), (0, 3 * tokens)]))
        media.append((at, tokens, patches, frames))
        at += tokens + draw(st.integers(0, 9))
    return Sample(at + draw(st.integers(1, 30)), tuple(media))


sizes = st.sampled_from([{"sequences": 3}, {"samples": 7}])
packers = st.sampled_from(["best_fit", "first_fit", "balanced", "variable"])


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(documents(), min_size=3, max_size=24), packers, sizes)
def test_no_sequence_is_above_its_limits_and_every_token_comes_once(samples, pack, size):
    config = plan_config(
        {"a": 1},
        sequence_length=ROOM,
        mixture={"exhausted": "stop"},
        source={"too_long": "split", "max_bad_fraction": 1.0},
        strategy={"pack": pack, "limits": {"patches": PATCHES, "frames": FRAMES}},
        **size,
    )
    driver = PlanDriver(config, ScriptedSources({"a": samples}))
    plans = driver.run(10 * len(samples))
    assert driver.ended is not None
    counts = {position: np.zeros(sample.tokens, int) for position, sample in enumerate(samples)}
    for plan in plans:
        ends = plan.sequence_offsets.tolist()
        for low, high in zip(ends, ends[1:], strict=False):
            held = plan.pieces.take(np.arange(low, high))
            assert held.tokens <= ROOM
            assert held.patches.sum() <= PATCHES
            assert held.frames.sum() <= FRAMES
        rows = (plan.pieces.position, plan.pieces.start, plan.pieces.length, plan.pieces.patches)
        for position, start, length, patches in zip(*(row.tolist() for row in rows), strict=True):
            counts[position][start : start + length] += 1
            spans = [(at, at + tokens, has) for at, tokens, has, _ in samples[position].media]
            cuts = (start, start + length)
            assert not any(low < cut < high for low, high, _ in spans for cut in cuts)
            assert patches == sum(has for low, _, has in spans if start <= low < start + length)
    for position, sample in enumerate(samples):
        fits = all(n <= ROOM and p <= PATCHES and f <= FRAMES for _, n, p, f in sample.media)
        assert counts[position].tolist() == [int(fits)] * sample.tokens


def test_what_waits_and_has_no_room_now_is_named():
    limits = {"limits": {"patches": 8}}
    samples = [Sample(10, ((0, 4, 8, 0),))] * 12
    config = plan_config({"a": 1}, sequences=1, sequence_length=30, strategy=limits)
    (plan,) = PlanDriver(config, ScriptedSources({"a": samples})).run(0)
    assert len(plan.pieces) == 1
    assert len(plan.state.waiting) > 0
    rules = Rules.of(config)
    rules.check_waiting(plan.state)
    with pytest.raises(
        StateError, match=r"waiting document of 'a'.* has 8 patches, strategy.limits.patches 7"
    ):
        replace(rules, room=replace(rules.room, patches=7)).check_waiting(plan.state)
