"""Limits on the media of a sequence: never breached, nothing lost, no picture cut, whatever the data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataloader_svc.errors import SourceError, StateError
from dataloader_svc.planner.rules import Rules
from dataloader_svc.testing.planning import PlanDriver, plan_config
from dataloader_svc.testing.scripted_loader import Sample, ScriptedSources

ROOM, PATCHES, FRAMES, MEDIA = 40, 20, 24, 3


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
        strategy={"pack": pack, "limits": {"patches": PATCHES, "frames": FRAMES, "media": MEDIA}},
        **size,
    )
    fit = [all(n <= ROOM and p <= PATCHES and f <= FRAMES for _, n, p, f in each.media) for each in samples]
    driver = PlanDriver(config, ScriptedSources({"a": samples}))
    if not any(fit):
        with pytest.raises(SourceError, match=f"none of its {len(samples)} samples can be used"):
            driver.run(10 * len(samples))
        return
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
            assert held.media.sum() <= MEDIA
        names = ("position", "start", "length", "patches", "media")
        rows = (getattr(plan.pieces, name).tolist() for name in names)
        for position, start, length, patches, media in zip(*rows, strict=True):
            counts[position][start : start + length] += 1
            spans = [(at, at + tokens, has) for at, tokens, has, _ in samples[position].media]
            cuts = (start, start + length)
            assert not any(low < cut < high for low, high, _ in spans for cut in cuts)
            inside = [has for low, _, has in spans if start <= low < start + length]
            assert (patches, media) == (sum(inside), len(inside))
    for position, sample in enumerate(samples):
        assert counts[position].tolist() == [int(fit[position])] * sample.tokens


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


def test_what_waits_uncounted_takes_no_limit_on_its_number():
    """A state of before the count: as many as there may be would be above any limit."""
    samples = [Sample(10, ((0, 2, 8, 0), (2, 2, 8, 0)))] * 12
    config = plan_config({"a": 1}, sequences=1, sequence_length=30, strategy={"limits": {"media": 2}})
    (plan,) = PlanDriver(config, ScriptedSources({"a": samples})).run(0)
    assert len(plan.pieces) == 1
    waiting = plan.state.waiting
    assert set(waiting.media.tolist()) == {2}
    rules = Rules.of(config)
    rules.check_waiting(plan.state)
    with pytest.raises(StateError, match="has 2 media, strategy.limits.media 1"):
        replace(rules, room=replace(rules.room, media=1)).check_waiting(plan.state)
    older = replace(plan.state, waiting=replace(waiting, media=np.zeros_like(waiting.media)))
    with pytest.raises(StateError, match=r"media that were never counted, .* resume once with the old"):
        rules.check_waiting(older)
    replace(rules, room=replace(rules.room, media=None)).check_waiting(older)
