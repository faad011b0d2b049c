"""The planner's promises, under whatever data, mixture and order of events can be thought of."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dataloader_svc.observe.audit import weights_at
from dataloader_svc.planner.place import MeshSize, Strategy, check_mesh, place
from dataloader_svc.planner.plan import Plan
from dataloader_svc.planner.state import State
from dataloader_svc.testing.planning import PlanDriver, plan_config
from dataloader_svc.testing.scripted_loader import Sample, ScriptedSources

from .oracle import draw_order, packed_tokens, packed_whole

COMMON = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])

lengths = st.lists(st.integers(1, 40), min_size=5, max_size=30)
weights = st.integers(1, 50)
units = st.sampled_from(["tokens", "samples"])
sizes = st.one_of(
    st.fixed_dictionaries({"sequences": st.integers(1, 8)}),
    st.fixed_dictionaries({"samples": st.integers(1, 40)}),
)
COLUMNS = ("source", "epoch", "position", "start", "length")


@st.composite
def mixtures(draw: st.DrawFn, most: int = 6) -> tuple[dict[str, int], dict[str, list[int]]]:
    names = [f"s{number}" for number in range(draw(st.integers(1, most)))]
    return {name: draw(weights) for name in names}, {name: draw(lengths) for name in names}


@st.composite
def schedules(draw: st.DrawFn, most: int = 6) -> list[dict[str, Any]]:
    """Entries that jump or ramp, with sources that come and go."""
    names = [f"s{number}" for number in range(draw(st.integers(2, most)))]
    entries: list[dict[str, Any]] = []
    step = 0
    for number in range(draw(st.integers(1, 4))):
        shares = {name: draw(st.sampled_from([0, 0, 1, 2, 5, 20])) for name in names}
        if number == 0:  # every source has a weight somewhere
            shares = {name: max(share, 1) for name, share in shares.items()}
        assume(any(shares.values()))
        ramp = {"ramp": "linear"} if number and draw(st.booleans()) else {}
        entries.append({"step": step, **shares, **ramp})
        step += draw(st.integers(1, 6))
    return entries


def pieces_of(plan: Plan) -> list[tuple[str, int, int, int, int]]:
    rows = zip(*(getattr(plan.pieces, name).tolist() for name in COLUMNS), strict=True)
    return [(plan.sources[source], *rest) for source, *rest in rows]


def waiting_of(state: State) -> list[tuple[str, int, int, int, int]]:
    w = state.waiting
    rows = zip(*(getattr(w, name).tolist() for name in COLUMNS), strict=True)
    return [(state.names[source], *rest) for source, *rest in rows]


@COMMON
@given(mixtures(), units, st.integers(1, 5))
def test_draws_are_the_oracle_s(mixture, unit, steps):
    weights, lengths = mixture
    config = plan_config(weights, sequences=3, sequence_length=40, mixture={"unit": unit})
    plans = PlanDriver(config, ScriptedSources.of_lengths(lengths, block=16)).run(steps - 1)
    state = plans[-1].state
    drawn = {name: source.samples for name, source in state.sources.items()}
    order = draw_order(weights, lengths, unit, sum(drawn.values()))
    assert Counter(name for name, _ in order) == Counter({n: c for n, c in drawn.items() if c})
    # Every one of them is in a plan or waits, whole, and nothing else is.
    expected = {
        (
            name,
            number // len(lengths[name]),
            number % len(lengths[name]),
            0,
            lengths[name][number % len(lengths[name])],
        )
        for name, number in order
    }
    found = [piece for plan in plans for piece in pieces_of(plan)] + waiting_of(state)
    assert len(found) == len(set(found))
    assert set(found) == expected


@COMMON
@given(mixtures(), units, st.integers(1, 40), st.integers(1, 6))
def test_a_step_of_samples_is_the_oracle_s_next_samples_in_as_few_sequences(mixture, unit, samples, steps):
    weights, lengths = mixture
    config = plan_config(weights, samples=samples, sequence_length=40, mixture={"unit": unit})
    plans = PlanDriver(config, ScriptedSources.of_lengths(lengths, block=16)).run(steps - 1)
    order = draw_order(weights, lengths, unit, samples * steps)
    for number, plan in enumerate(plans):
        expected = set()
        for name, count in order[number * samples : (number + 1) * samples]:
            position = count % len(lengths[name])
            expected.add((name, count // len(lengths[name]), position, 0, lengths[name][position]))
        assert set(pieces_of(plan)) == expected
        assert len(plan.pieces) == samples
        assert not len(plan.state.waiting)
        ends = np.cumsum(plan.pieces.length)[plan.sequence_offsets[1:] - 1]
        found = np.diff(ends, prepend=0).tolist()
        assert sorted(found) == sorted(packed_whole(plan.pieces.length.tolist(), 40))


@COMMON
@given(mixtures(), st.integers(1, 6))
def test_packing_is_no_worse_than_the_oracle_s(mixture, sequences):
    weights, lengths = mixture
    config = plan_config(weights, sequences=sequences, sequence_length=40)
    driver = PlanDriver(config, ScriptedSources.of_lengths(lengths, block=16))
    plan = driver.run(0)[0]
    pool = plan.pieces.length.tolist() + plan.state.waiting.length.tolist()
    naive = packed_tokens(pool, sequences, 40)
    assert plan.pieces.tokens >= min(naive, 0.9 * sequences * 40) - 40


def assert_within_one_sample(entries: list[dict[str, Any]], unit: str, plans: list[Plan]) -> None:
    """As the audit counts: targets from the schedule as written and what each step drew in all."""
    written = [
        {
            "step": entry["step"],
            "ramp": entry.get("ramp", "none"),
            "weights": {name: share for name, share in entry.items() if name not in ("step", "ramp")},
        }
        for entry in entries
    ]
    target: Counter[str] = Counter()
    before: Counter[str] = Counter()
    for plan in plans:
        state = json.loads(plan.state_json)
        now = Counter({name: source[unit] for name, source in state["sources"].items()})
        total = sum(now.values()) - sum(before.values())
        for name, weight in weights_at(written, plan.step).items():
            target[name] += weight * total
        largest = state["largest"]
        for name in now:
            deviation = abs(now[name] - target[name])
            assert deviation <= largest * (1 + 1e-9), (
                f"step {plan.step}: {name} has {now[name]}, target {target[name]:.3f}, largest {largest}"
            )
        before = now


@settings(COMMON, max_examples=60)
@given(schedules(), st.data(), units, sizes)
def test_every_source_is_within_one_sample_at_every_step(entries, data, unit, size):
    names = [name for name in entries[0] if name != "step"]
    equal = data.draw(st.booleans(), label="equal lengths")
    drawn = {name: [7] if equal else data.draw(lengths, label=name) for name in names}
    config = plan_config(entries, **size, sequence_length=40, mixture={"unit": unit})
    sources = ScriptedSources.of_lengths({name: values * 20 for name, values in drawn.items()}, block=50)
    plans = PlanDriver(config, sources).run(24)
    assert_within_one_sample(entries, unit, plans)


@pytest.mark.parametrize("unit", ["tokens", "samples"])
@pytest.mark.parametrize("size", [{"sequences": 16}, {"samples": 100}], ids=str)
def test_hundreds_of_sources_stay_within_one_sample_on_ramps(unit, size):
    rng = np.random.default_rng(3)
    names = [f"s{number:03}" for number in range(300)]
    entries: list[dict[str, Any]] = [
        {"step": 0, **dict(zip(names, rng.exponential(1, 300).tolist(), strict=True))},
        {"step": 12, **dict(zip(names, rng.exponential(1, 300).tolist(), strict=True)), "ramp": "linear"},
        {"step": 16, **dict(zip(names, rng.exponential(1, 300).tolist(), strict=True))},
    ]
    drawn = {name: np.clip(rng.lognormal(3, 1, 60), 1, 400).astype(int).tolist() for name in names}
    config = plan_config(entries, **size, sequence_length=512, mixture={"unit": unit})
    plans = PlanDriver(config, ScriptedSources.of_lengths(drawn, block=30)).run(20)
    assert_within_one_sample(entries, unit, plans)


@COMMON
@given(mixtures(4), units, sizes, st.integers(0, 2**32 - 1))
def test_steps_do_not_depend_on_the_order_of_events(mixture, unit, size, seed):
    weights, lengths = mixture
    config = plan_config(weights, **size, mixture={"unit": unit}, sequence_length=40)
    sources = ScriptedSources.of_lengths(lengths, block=16)
    rng = np.random.default_rng(seed)
    expected = PlanDriver(config, sources).run(5)
    found = PlanDriver(config, sources, choose=lambda n: int(rng.integers(n))).run(5)
    assert [plan.to_bytes() for plan in found] == [plan.to_bytes() for plan in expected]


@COMMON
@given(mixtures(4), units, sizes, st.integers(0, 5))
def test_going_on_from_any_state_is_going_on(mixture, unit, size, stop):
    weights, lengths = mixture
    config = plan_config(weights, **size, mixture={"unit": unit}, sequence_length=40)
    sources = ScriptedSources.of_lengths(lengths, block=16)
    expected = PlanDriver(config, sources).run(8)
    state = State.from_json(expected[stop].state_json)
    found = PlanDriver(config, sources, state=state).run(8)
    assert [plan.to_bytes() for plan in found] == [plan.to_bytes() for plan in expected[stop + 1 :]]


@st.composite
def dirty(draw: st.DrawFn) -> dict[str, list[Sample]]:
    """Sources with bad samples, long documents and media."""

    def sample() -> Sample:
        tokens = draw(st.sampled_from([0, 1, 3, 8, 20, 31, 32, 33, 64, 100]))
        if tokens < 8 or draw(st.booleans()):
            return Sample(tokens)
        start = draw(st.integers(0, tokens - 8))
        return Sample(tokens, ((start, draw(st.integers(1, tokens - start)), 4),))

    count = draw(st.integers(1, 3))
    sources = {f"s{n}": [sample() for _ in range(draw(st.integers(1, 25)))] for n in range(count)}
    for samples in sources.values():
        samples.append(Sample(5))  # one that can be used under every rule
    return sources


@settings(COMMON, max_examples=60)
@given(
    dirty(),
    st.sampled_from(["split", "truncate", "drop"]),
    st.sampled_from(["repeat", "stop", "drop"]),
    st.sampled_from(["pad", "drop"]),
    sizes,
)
def test_every_position_once_or_in_the_quarantine(samples, rule, exhausted, last_batch, size):
    config = plan_config(
        dict.fromkeys(samples, 1),
        **size,
        source={"too_long": rule, "max_bad_fraction": 1.0},
        mixture={"exhausted": exhausted},
        last_batch=last_batch,
    )
    driver = PlanDriver(config, ScriptedSources(samples, block=4))
    plans = driver.run(10 if exhausted == "repeat" else 1000)
    if exhausted != "repeat":
        assert driver.ended is not None
        assert [plan.last for plan in plans] == [False] * (len(plans) - 1) + [True] * bool(plans)
    if not plans:
        return
    if "samples" in size:
        counts = [len({piece[:3] for piece in pieces_of(plan)}) for plan in plans]
        least = size["samples"] if exhausted == "repeat" or last_batch == "drop" else 1
        assert counts[:-1] == [size["samples"]] * (len(plans) - 1)
        assert least <= counts[-1] <= size["samples"]
        assert not any(len(plan.state.waiting) for plan in plans)
    state = plans[-1].state
    covered: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
    for name, epoch, position, start, length in [
        *(piece for plan in plans for piece in pieces_of(plan)),
        *waiting_of(state),
    ]:
        covered.setdefault((name, epoch, position), []).append((start, start + length))
    skipped = [(plan.sources[s], e, row.position) for plan in plans for s, e, row in plan.skipped]
    assert len(skipped) == len(set(skipped))
    assert not set(skipped) & set(covered)
    reached = {
        (name, epoch, position)
        for name, source in state.sources.items()
        for epoch in range(source.epoch + 1)
        for position in range(source.position if epoch == source.epoch else len(samples[name]))
    }
    assert set(covered) | set(skipped) == reached
    for (name, _, position), ranges in covered.items():
        ranges.sort()
        assert ranges[0][0] == 0
        assert all(a[1] == b[0] for a, b in zip(ranges, ranges[1:], strict=False))
        if rule == "split":
            assert ranges[-1][1] == samples[name][position].tokens
        for start, tokens, _ in samples[name][position].media:
            cuts = {end for _, end in ranges}
            assert not any(start < at < start + tokens for at in cuts)


@COMMON
@given(mixtures(4), st.sampled_from([1, 2, 3, 4, 6, 12]), st.sampled_from([1, 2]))
def test_placement_permutes_whole_sequences_evenly(mixture, dp, per_microbatch):
    assume(12 % (dp * per_microbatch) == 0)
    weights, lengths = mixture
    batch = {"sequences": 12, "per_microbatch": per_microbatch}
    config = plan_config(weights, sequence_length=40, global_batch=batch)
    plan = PlanDriver(config, ScriptedSources.of_lengths(lengths, block=16)).run(1)[1]
    placement = place(plan, MeshSize(dp=dp), Strategy.of(config))
    places = Counter(zip(placement.dp_rank.tolist(), placement.microbatch.tolist(), strict=True))
    assert set(places.values()) == {per_microbatch}
    assert len(places) == 12 // per_microbatch
    assert placement.metrics["llm_imbalance"] >= placement.metrics["llm_floor"] - 1e-9


@COMMON
@given(mixtures(4), st.integers(1, 60), st.integers(1, 9), st.integers(1, 3))
def test_steps_of_samples_fit_every_mesh(mixture, samples, dp, per_microbatch):
    weights, lengths = mixture
    batch = {"samples": samples, "per_microbatch": per_microbatch}
    config = plan_config(weights, sequence_length=40, global_batch=batch)
    mesh = MeshSize(dp=dp)
    check_mesh(config, mesh)
    for plan in PlanDriver(config, ScriptedSources.of_lengths(lengths, block=16)).run(2):
        placement = place(plan, mesh, Strategy.of(config))
        places = Counter(zip(placement.dp_rank.tolist(), placement.microbatch.tolist(), strict=True))
        count = -(-plan.num_sequences // (dp * per_microbatch))
        assert places == {(rank, mb): per_microbatch for rank in range(dp) for mb in range(count)}


@COMMON
@given(mixtures(3), st.integers(0, 6))
def test_nothing_waits_for_ever(mixture, seed):
    weights, lengths = mixture
    rng = np.random.default_rng(seed)
    lengths = {
        name: [int(n) for n in rng.permutation([*values, 39, 40, 38])] for name, values in lengths.items()
    }
    config = plan_config(weights, sequences=2, sequence_length=40)
    for plan in PlanDriver(config, ScriptedSources.of_lengths(lengths, block=16)).run(25):
        assert plan.metrics["waiting_steps"] <= 5
