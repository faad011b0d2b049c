"""`pack: concatenate`: every sequence full to the token, no medium and no pair cut, nothing lost."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dataloader_balancers.strategy import Items, Mesh, Strategy, StrategyError
from dataloader_svc.planner.plan import Plan
from dataloader_svc.planner.state import State
from dataloader_svc.testing.planning import PlanDriver, plan_config
from dataloader_svc.testing.scripted_loader import Sample, ScriptedSources

Ranges = dict[tuple[str, int, int], list[tuple[int, int, int]]]


def job(length: int = 32, sequences: int = 3, weights=None, **fields):
    strategy = {"pack": "concatenate"}
    return plan_config(
        weights or {"a": 1, "b": 1},
        sequence_length=length,
        **({} if "samples" in fields else {"sequences": sequences}),
        strategy=strategy,
        **fields,
    )


def ranges(plans: list[Plan], state: State | None = None) -> Ranges:
    """(start, length, patches) of all that is placed, and waits, of each sample, in order of start."""
    found: Ranges = defaultdict(list)
    parts = [(plan.sources, plan.pieces) for plan in plans]
    if state is not None:
        parts.append((state.names, state.waiting))
    for names, pieces in parts:
        columns = (pieces.source, pieces.epoch, pieces.position, pieces.start, pieces.length, pieces.patches)
        for source, epoch, position, *rest in zip(*(column.tolist() for column in columns), strict=True):
            found[names[source], epoch, position].append(tuple(rest))
    return {key: sorted(parts) for key, parts in found.items()}


def test_texts_leave_no_gap_and_go_on_where_they_were_cut():
    sources = ScriptedSources.of_lengths({"a": [7, 50, 3, 90, 11] * 20, "b": [13, 2, 64, 8] * 20})
    plans = PlanDriver(job(), sources).run(9)
    for plan in plans:
        assert plan.metrics["packing_efficiency"] == 1.0
    whole = ranges(plans, plans[-1].state)
    for (name, _, position), parts in whole.items():
        assert parts[0][0] == 0
        assert sum(length for _, length, _ in parts) == sources.samples[name][position].tokens
    cut = [parts for parts in whole.values() if len(parts) > 1]
    # One document is cut at most at each end of a sequence.
    assert 0 < sum(len(parts) - 1 for parts in cut) <= 30 + len(plans[-1].state.waiting)


media = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 8)), max_size=3)  # text before it, its tokens


@given(
    documents=st.lists(st.tuples(media, st.integers(1, 70)), min_size=1, max_size=25),
    length=st.sampled_from([8, 9, 16, 50]),
    sequences=st.integers(1, 3),
    rule=st.sampled_from(["split", "truncate", "drop"]),
    in_samples=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_no_medium_is_cut_and_no_token_lost(documents, length, sequences, rule, in_samples):
    samples = []
    for parts, tail in documents:
        spans, at = [], 0
        for before, tokens in parts:
            spans.append((at + before, tokens, tokens * 4))
            at += before + tokens
        samples.append(Sample(at + tail, tuple(spans)))
    fields = {"samples": 4} if in_samples else {"sequences": sequences}
    config = job(length, weights={"a": 1}, source={"too_long": rule, "max_bad_fraction": 1.0}, **fields)
    usable = [n for n, sample in enumerate(samples) if rule != "drop" or sample.tokens <= length]
    if not usable:
        return
    plans = PlanDriver(config, ScriptedSources({"a": samples}, block=6)).run(6)
    state = plans[-1].state
    for (_, _, position), parts in ranges(plans, state).items():
        sample, at = samples[position], 0
        for start, tokens, patches in parts:
            assert start == at
            at = start + tokens
            inside = [span for span in sample.media if start <= span[0] < at]
            assert all(first + number <= at for first, number, _ in inside), "a medium is cut"
            assert patches == sum(span[2] for span in inside)
        if rule != "truncate":
            assert at == sample.tokens
        else:
            assert at <= length
    for plan in plans:
        # A sequence ends early only before a medium.
        tokens = np.add.reduceat(plan.pieces.length, plan.sequence_offsets[:-1])
        if not any(sample.media for sample in samples) and not in_samples:
            assert (tokens == length).all()
    drawn = state.sources["a"]
    seen = {key[1:] for key in ranges(plans, state)}
    expected = {
        (epoch, position)
        for epoch in range(drawn.epoch + 1)
        for position in usable
        if (epoch, position) < (drawn.epoch, drawn.position)
    }
    assert seen == expected


def test_a_job_goes_on_from_any_state_to_the_byte():
    picture = Sample(30, ((4, 10, 40), (20, 6, 24)))
    sources = ScriptedSources({"a": [Sample(45), picture, Sample(9)] * 20, "b": [picture, Sample(70)] * 20})
    config = job(24)
    whole = PlanDriver(config, sources).run(12)
    for cut in range(12):
        rest = PlanDriver(config, sources, state=State.from_json(whole[cut].state_json)).run(12)
        assert [plan.to_bytes() for plan in rest] == [plan.to_bytes() for plan in whole[cut + 1 :]]


def test_the_last_step_is_full_in_sequences():
    lengths = {"a": [10] * 13}
    config = job(20, 3, weights={"a": 1}, mixture={"exhausted": "stop"}, last_batch="drop")
    plans = PlanDriver(config, ScriptedSources.of_lengths(lengths)).run(9)
    assert [len(plan.sequence_offsets) - 1 for plan in plans] == [3, 3]  # of 130 tokens, 10 are left
    lengths = {"a": [10] * 17}  # the third step has 50 tokens, in three sequences
    assert len(PlanDriver(config, ScriptedSources.of_lengths(lengths)).run(9)) == 3


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ({"pack": "concatenate", "fill": 0.8}, "fills each sequence before the next"),
        ({"pack": "concatenate", "mode": "relaxed"}, "takes documents as they come"),
        ({"pack": "concatenated"}, "unknown packer .*did you mean"),
    ],
)
def test_what_does_not_go_with_it(strategy, said):
    with pytest.raises(ValidationError, match=said):
        plan_config({"a": 1}, strategy=strategy)


def test_a_list_of_primitives_may_name_it_and_plan_says_why_not():
    config = plan_config({"a": 1}, strategy={"steps": [{"pack": "concatenate"}, "distribute", "balance"]})
    assert config.strategy.pack == "concatenate"
    strategy = Strategy().pack("concatenate", sequences=2, capacity=8).distribute("dp")
    with pytest.raises(StrategyError, match="makes other items of those that it cuts"):
        strategy.plan(Items.of([5, 5, 5]), Mesh(dp=2))
