"""A step is a function of rules, state and data; what waits goes first; what runs out ends as configured."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from dataloader_svc.errors import DataError, SourceError
from dataloader_svc.planner.pieces import BlockPieces, Room, cut
from dataloader_svc.planner.select import Ended, Needed, Rules, Selected, select
from dataloader_svc.planner.state import State
from dataloader_svc.planner.supply import Epoch, Supply
from dataloader_svc.sample import BlockId
from dataloader_svc.testing.planning import PlanDriver, plan_config
from dataloader_svc.testing.scripted_loader import Sample, ScriptedSources


def block_of(sources: ScriptedSources, block: BlockId, length: int) -> BlockPieces:
    return cut(sources.probe(block), "split", Room(length))


def stocked(sources: ScriptedSources, length: int, epochs: int = 3) -> dict[str, Supply]:
    """Everything at hand."""
    supplies = {}
    for name in sorted(sources.samples):
        starts = sources.block_starts(name)
        blocks = [BlockId(name, epoch, b) for epoch in range(epochs) for b in range(len(starts) - 1)]
        supplies[name] = Supply(
            name,
            dict.fromkeys(range(epochs), starts),
            {(b.epoch, b.block): block_of(sources, b, length) for b in blocks},
        )
    return supplies


def initial(rules: Rules) -> State:
    return State.initial(rules.names, seed=0, config={})


def test_what_is_missing_is_named_and_nothing_selected():
    config = plan_config({"a": 1, "b": 1})
    rules = Rules.of(config)
    sources = ScriptedSources.of_lengths({"a": [5] * 40, "b": [5] * 40})
    full = stocked(sources, 32)
    supplies = {name: Supply(name) for name in rules.names}
    assert select(rules, initial(rules), supplies) == Needed((Epoch("a", 0), Epoch("b", 0)))
    for name in rules.names:
        supplies[name].layouts[0] = full[name].layouts[0]
    assert select(rules, initial(rules), supplies) == Needed((BlockId("a", 0, 0), BlockId("b", 0, 0)))
    asked: list[BlockId] = []
    while isinstance(result := select(rules, initial(rules), supplies), Needed):
        for lack in result.lacking:
            assert isinstance(lack, BlockId)
            asked.append(lack)
            supplies[lack.source].blocks[0, lack.block] = full[lack.source].blocks[0, lack.block]
    assert isinstance(result, Selected)
    assert len(asked) == len(set(asked))
    everything = select(rules, initial(rules), full)
    assert isinstance(everything, Selected)
    assert result.state.to_json() == everything.state.to_json()
    assert result.pieces.position.tolist() == everything.pieces.position.tolist()


def test_a_step_holds_exactly_its_sequences_and_no_more_than_fits():
    config = plan_config({"a": 2, "b": 1}, sequences=3, sequence_length=20)
    lengths = {"a": [7, 3, 9, 4, 11, 6] * 10, "b": [13, 2, 5, 8] * 10}
    rules, sources = Rules.of(config), ScriptedSources.of_lengths(lengths)
    state, supplies = initial(rules), stocked(sources, 20)
    for _ in range(8):
        selected = select(rules, state, supplies)
        assert isinstance(selected, Selected)
        assert len(selected.sequence_offsets) == 4
        bounds = selected.sequence_offsets.tolist()
        for low, high in zip(bounds, bounds[1:], strict=False):
            assert selected.pieces.length[low:high].sum() <= 20
        placed = selected.pieces.tokens
        assert selected.metrics["packing_efficiency"] == placed / 60
        assert selected.metrics["waiting_tokens"] == selected.state.waiting.tokens
        state = selected.state


def test_sequences_of_unequal_length_are_equal_work():
    """The long ones are dear; four fifths of the room are taken, so that others can be longer."""
    strategy = {
        "pack": "variable",
        "fill": 0.8,
        "overdraw": 0.0,
        "cost": {"llm": {"linear": 1.0, "quadratic": 1 / 64}},
    }
    config = plan_config({"a": 1}, sequences=4, sequence_length=100, strategy=strategy)
    lengths = [60, 3, 5, 4, 7, 2, 9, 5, 4, 3, 6, 8, 5, 4, 7, 3, 2, 6] * 12
    rules, sources = Rules.of(config), ScriptedSources.of_lengths({"a": lengths})
    state, supplies = initial(rules), stocked(sources, 100)
    widths = []
    for _ in range(4):
        selected = select(rules, state, supplies)
        assert isinstance(selected, Selected)
        assert 0.8 * 400 - 60 < selected.pieces.tokens < 0.8 * 400 + 60  # to within a document
        tokens = np.add.reduceat(selected.pieces.length, selected.sequence_offsets[:-1])
        work = np.add.reduceat(
            rules.llm_cost.of_documents(selected.pieces.length), selected.sequence_offsets[:-1]
        )
        assert tokens.max() <= 100
        assert work.max() <= 1.05 * work.mean()
        widths.append(np.ptp(tokens))
        state = selected.state
    assert max(widths) >= 10


def test_what_has_waited_long_is_placed_before_what_is_longer():
    config = plan_config({"a": 1}, sequences=1, sequence_length=20)
    rules = Rules.of(config)
    supplies = stocked(ScriptedSources.of_lengths({"a": [3, *[18] * 20]}), 20)
    state, placed = initial(rules), []
    for _ in range(4):
        selected = select(rules, state, supplies)
        assert isinstance(selected, Selected)
        placed.append(selected.pieces.length.tolist())
        state = selected.state
    # A sequence of 18 has no room for 3, which must not wait for ever all the same.
    assert placed.index([3]) == 2
    assert state.age.max() <= 3


def test_a_very_long_document_is_placed_over_many_steps_in_order():
    config = plan_config({"a": 1, "b": 1}, sequences=2, sequence_length=10)
    rules = Rules.of(config)
    supplies = stocked(ScriptedSources.of_lengths({"a": [205] * 2, "b": [4] * 40}, block=2), 10)
    state, starts = initial(rules), []
    for _ in range(9):
        selected = select(rules, state, supplies)
        assert isinstance(selected, Selected)
        mine = (selected.pieces.source == 0) & (selected.pieces.position == 0)
        starts += sorted(selected.pieces.start[mine].tolist())
        state = selected.state
    assert starts == sorted(starts)
    assert starts[:4] == [0, 10, 20, 30]


def test_a_step_that_waiting_pieces_fill_draws_nothing():
    config = plan_config({"a": 1}, sequences=2, sequence_length=10)
    rules = Rules.of(config)
    supplies = stocked(ScriptedSources.of_lengths({"a": [100, 5, 5]}), 10)
    first = select(rules, initial(rules), supplies)
    assert isinstance(first, Selected)
    second = select(rules, first.state, {"a": Supply("a")})
    assert isinstance(second, Selected)  # nothing needs to be at hand for it
    assert second.state.sources["a"] == first.state.sources["a"]


@pytest.mark.parametrize("unit", ["tokens", "samples"])
def test_repeat_goes_on_with_the_next_epoch(unit):
    config = plan_config({"tiny": 1, "big": 1}, sequences=2, sequence_length=16, mixture={"unit": unit})
    driver = PlanDriver(config, ScriptedSources.of_lengths({"tiny": [4] * 3, "big": [4] * 200}))
    plans = driver.run(19)
    rows = [
        (plan.sources[s], e, p)
        for plan in plans
        for s, e, p in zip(
            plan.pieces.source.tolist(),
            plan.pieces.epoch.tolist(),
            plan.pieces.position.tolist(),
            strict=True,
        )
    ]
    assert len(rows) == len(set(rows)) == 160
    tiny = [row for row in rows if row[0] == "tiny"]
    assert len(tiny) == pytest.approx(80, abs=1)
    assert {position for _, _, position in tiny} == {0, 1, 2}
    assert max(epoch for _, epoch, _ in tiny) == pytest.approx(80 / 3, abs=1)


def test_stop_ends_with_the_first_source_that_runs_out():
    config = plan_config({"a": 1, "b": 1}, mixture={"exhausted": "stop"})
    driver = PlanDriver(config, ScriptedSources.of_lengths({"a": [8] * 10, "b": [8] * 100}))
    plans = driver.run(100)
    counts = np.bincount(np.concatenate([plan.pieces.source for plan in plans]))
    assert counts.tolist() == [10, 10]
    assert [plan.last for plan in plans] == [False, False, True]
    assert driver.ended is not None
    assert driver.ended.step == 3


def test_drop_ends_with_the_last():
    config = plan_config({"a": 3, "b": 1, "c": 1}, mixture={"exhausted": "drop"})
    lengths = {"a": [8] * 9, "b": [8] * 30, "c": [8] * 40}
    plans = PlanDriver(config, ScriptedSources.of_lengths(lengths)).run(100)
    counts = np.bincount(np.concatenate([plan.pieces.source for plan in plans]))
    assert counts.tolist() == [9, 30, 40]
    assert plans[-1].last
    assert not any(plan.last for plan in plans[:-1])
    # While b and c are both there and a is not, they share evenly.
    shares = [np.bincount(plan.pieces.source, minlength=3) for plan in plans[3:8]]
    assert all(abs(int(share[1]) - int(share[2])) <= 1 for share in shares)


@pytest.mark.parametrize("unit", ["tokens", "samples"])
def test_a_step_of_samples_has_exactly_so_many_and_leaves_nothing_waiting(unit):
    config = plan_config({"a": 2, "b": 1}, samples=6, sequence_length=20, mixture={"unit": unit})
    lengths = {"a": [7, 3, 9, 4, 51, 6] * 10, "b": [13, 2, 5, 8] * 10}
    rules, sources = Rules.of(config), ScriptedSources.of_lengths(lengths)
    state, supplies = initial(rules), stocked(sources, 20)
    counts = set()
    for step in range(1, 8):
        selected = select(rules, state, supplies)
        assert isinstance(selected, Selected)
        assert len({*zip(selected.pieces.source, selected.pieces.position, strict=True)}) == 6
        state, bounds = selected.state, selected.sequence_offsets.tolist()
        assert sum(source.samples for source in state.sources.values()) == 6 * step
        assert not len(state.waiting)
        counts.add(len(bounds) - 1)
        for low, high in zip(bounds, bounds[1:], strict=False):
            assert 0 < selected.pieces.length[low:high].sum() <= 20
        filled = selected.pieces.tokens / (20 * (len(bounds) - 1))
        assert selected.metrics["packing_efficiency"] == filled
    assert len(counts) > 1


def test_what_waits_of_steps_in_sequences_are_the_first_samples_of_a_step_in_samples():
    sources = ScriptedSources.of_lengths({"a": [100, 5, 6, 4, 7, 8] * 4})
    before = plan_config({"a": 1}, sequences=2, sequence_length=10)
    state = PlanDriver(before, sources).run(0)[0].state
    assert state.waiting.position.tolist() == [0] * 8  # of a document of ten pieces, two were placed
    for samples, expected in ((1, {0}), (3, {0, 1, 2})):
        config = plan_config({"a": 1}, samples=samples, sequence_length=10)
        first, second = PlanDriver(config, sources, state=state).run(2)
        assert set(first.pieces.position.tolist()) == expected
        assert min(second.pieces.position.tolist()) == samples
        assert not len(first.state.waiting)


def test_more_that_waits_than_a_step_of_samples_takes_goes_oldest_first():
    sources = ScriptedSources.of_lengths({"a": [6] * 50})
    before = plan_config({"a": 1}, sequences=2, sequence_length=10, strategy={"overdraw": 1.0})
    state = PlanDriver(before, sources).run(0)[0].state
    waiting = state.waiting.position.tolist()
    assert len(waiting) > 2
    config = plan_config({"a": 1}, samples=2, sequence_length=10)
    plans = PlanDriver(config, sources, state=state).run(4)
    assert plans[0].pieces.position.tolist() == waiting[:2]
    assert plans[0].state.waiting.position.tolist() == waiting[2:]
    assert plans[0].state.sources == state.sources  # nothing was drawn
    assert sorted(p for plan in plans for p in plan.pieces.position.tolist())[: len(waiting)] == waiting


def test_a_short_last_step_is_padded_or_left_out():
    lengths = {"a": [8] * 20}  # two steps of 64 tokens and 32 tokens
    for rule, steps in (("pad", 3), ("drop", 2)):
        config = plan_config({"a": 1}, mixture={"exhausted": "stop"}, last_batch=rule)
        driver = PlanDriver(config, ScriptedSources.of_lengths(lengths))
        plans = driver.run(100)
        assert len(plans) == steps
        assert all(plan.num_sequences == 2 for plan in plans)
        assert [plan.last for plan in plans] == [False] * (steps - 1) + [True]
        assert driver.ended is not None
        left = (0, 0) if rule == "pad" else (32, 4)
        assert (driver.ended.left_tokens, driver.ended.left_samples) == left


def test_data_for_less_than_a_step_dropped_is_no_step():
    config = plan_config({"a": 1}, mixture={"exhausted": "stop"}, last_batch="drop")
    driver = PlanDriver(config, ScriptedSources.of_lengths({"a": [8] * 3}))
    assert driver.run(100) == []
    assert driver.ended is not None
    assert (driver.ended.step, driver.ended.left_tokens) == (0, 24)


def test_the_end_is_found_again_after_a_restart():
    config = plan_config({"a": 1}, mixture={"exhausted": "stop"})
    sources = ScriptedSources.of_lengths({"a": [8] * 20})
    last = PlanDriver(config, sources).run(100)[-1]
    again = PlanDriver(config, sources, state=last.state)
    assert again.run(100) == []
    assert again.ended is not None
    assert again.ended.step == 3


def test_bad_samples_are_passed_over_counted_and_named():
    config = plan_config({"a": 1}, source={"max_bad_fraction": 0.5}, mixture={"exhausted": "stop"})
    lengths = [8, 0, 8, 8, 0, 0, 8, 8, 8, 8, 8, 8, 8, 0]
    plans = PlanDriver(config, ScriptedSources.of_lengths({"a": lengths})).run(10)
    skipped = [row.position for plan in plans for _, _, row in plan.skipped]
    placed = [p for plan in plans for p in plan.pieces.position.tolist()]
    assert sorted(skipped) == [1, 4, 5, 13]
    assert sorted(skipped + placed) == list(range(14))
    assert plans[-1].state.sources["a"].bad == {"empty_text": 4}
    assert plans[-1].state.sources["a"].position == 14


def test_too_many_bad_samples_stop_the_job_by_name():
    config = plan_config({"a": 1, "b": 1}, source={"max_bad_fraction": 0.2, "max_bad_minimum": 5})
    lengths = {"a": [8] * 100, "b": [8, 8, 0, 8, 0] * 20}
    driver = PlanDriver(config, ScriptedSources.of_lengths(lengths))
    with pytest.raises(DataError) as caught:
        driver.run(100)
    text = str(caught.value)
    assert re.match(r"source 'b': (\d+) of its first \d+ samples are bad, above max_bad_fraction 0.2", text)
    assert re.search(r"empty_text \(\d+ times\)", text)
    assert "b.jsonl:" in text
    assert "dataloader-svc quarantine" in text


def test_few_bad_samples_are_no_share():
    config = plan_config({"a": 1}, source={"max_bad_fraction": 0.01, "max_bad_minimum": 5})
    driver = PlanDriver(config, ScriptedSources.of_lengths({"a": [0, 8, 0, *[8] * 100]}))
    assert len(driver.run(5)) == 6


@pytest.mark.parametrize("exhausted", ["repeat", "stop", "drop"])
def test_a_source_without_a_usable_sample(exhausted):
    config = plan_config({"a": 1, "b": 1}, mixture={"exhausted": exhausted})
    driver = PlanDriver(config, ScriptedSources.of_lengths({"a": [8] * 100, "b": [0] * 7}))
    with pytest.raises(SourceError, match=r"'b': none of its 7 samples can be used \(empty_text 7\)"):
        driver.run(3)


def test_too_long_documents_do_not_count_as_bad():
    config = plan_config({"a": 1}, source={"too_long": "drop", "max_bad_fraction": 0.1, "max_bad_minimum": 1})
    plans = PlanDriver(config, ScriptedSources.of_lengths({"a": [8, 99, 8] * 50})).run(3)
    assert {row.reason for plan in plans for _, _, row in plan.skipped} == {"too_long"}
    assert plans[-1].state.sources["a"].bad == {}


def test_too_long_error_names_source_and_sample():
    config = plan_config({"a": 1}, source={"too_long": "error"})
    driver = PlanDriver(config, ScriptedSources.of_lengths({"a": [8, 8, 99]}))
    with pytest.raises(DataError, match=r"'a': the sample at epoch 0 position 2 has 99 tokens"):
        driver.run(0)


def test_a_source_whose_weight_ended_gives_at_most_the_sample_that_it_is_owed():
    config = plan_config([{"step": 0, "a": 1, "b": 1}, {"step": 3, "b": 1}])
    plans = PlanDriver(config, ScriptedSources.of_lengths({"a": [9, 4] * 200, "b": [7, 5] * 200})).run(12)
    drawn = [plan.state.sources["a"].samples for plan in plans]
    assert drawn[-1] - drawn[2] <= 1


def test_an_unequal_share_of_samples_with_media_counts_their_tokens():
    config = plan_config({"a": 1, "b": 1}, sequences=4, sequence_length=64)
    media = [Sample(40, ((4, 32, 128),))] * 100
    sources = ScriptedSources({"a": media, "b": [Sample(5)] * 400})
    plan = PlanDriver(config, sources).run(6)[-1]
    state = plan.state.sources
    assert abs(state["a"].tokens - state["b"].tokens) <= 2 * 40
    assert plan.pieces.patches[plan.pieces.source == 0].tolist() == [128] * int(
        (plan.pieces.source == 0).sum()
    )


def test_the_order_of_sources_in_the_file_does_not_matter():
    lengths = {"a": [7, 3, 9] * 30, "b": [4, 12] * 30}
    one = PlanDriver(plan_config({"a": 2, "b": 1}), ScriptedSources.of_lengths(lengths)).run(5)
    two = PlanDriver(plan_config({"b": 1, "a": 2}), ScriptedSources.of_lengths(lengths)).run(5)
    assert [plan.to_bytes() for plan in one] == [plan.to_bytes() for plan in two]


def test_unknown_packers_are_named():
    config = plan_config({"a": 1})
    config = config.model_copy(update={"strategy": config.strategy.model_copy(update={"pack": "bestfit"})})
    with pytest.raises(Exception, match="unknown packer 'bestfit'.*did you mean 'best_fit'"):
        Rules.of(config)


def test_an_ended_state_stays_ended_whatever_is_at_hand():
    config = plan_config({"a": 1}, mixture={"exhausted": "stop"})
    rules = Rules.of(config)
    supplies = stocked(ScriptedSources.of_lengths({"a": [8] * 100}), 32)
    assert select(rules, replace(initial(rules), ended=True), supplies) == Ended(0, 0)


def test_without_packing_each_document_is_a_sequence():
    config = plan_config({"a": 1}, samples=5, sequence_length=20, strategy={"pack": "none"})
    sources = ScriptedSources.of_lengths({"a": [7, 3, 51, 4, 11, 6] * 10})
    for plan in PlanDriver(config, sources).run(5):
        assert np.diff(plan.sequence_offsets).tolist() == [1] * len(plan.pieces)
        assert len({*plan.pieces.position.tolist()}) == 5
        assert not len(plan.state.waiting)


def test_without_packing_a_step_is_of_samples():
    with pytest.raises(ValidationError, match="a step is of samples: use global_batch"):
        plan_config({"a": 1}, strategy={"pack": "none"})
    with pytest.raises(ValidationError, match="the packed layout has no padding"):
        plan_config({"a": 1}, pad_to="longest")
    steps = [{"pack": "none"}, {"distribute": "dp"}, "balance"]
    assert plan_config({"a": 1}, samples=3, strategy={"steps": steps}).strategy.pack == "none"
