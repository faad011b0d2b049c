"""Repaired samples in the planner's core: each comes once, when it was asked for, and the state says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from dataloader_svc.planner import core
from dataloader_svc.planner.plan import Plan
from dataloader_svc.planner.readmit import STEP_SHARE, Asked, Request
from dataloader_svc.planner.state import State
from dataloader_svc.sample import SampleId
from dataloader_svc.testing.planning import PlanDriver, plan_config
from dataloader_svc.testing.scripted_loader import Sample, ScriptedSources

BLOCK = 5
BAD = (3, 4, 11, 38)
"""Positions of `a` in every epoch."""

CONFIG = plan_config({"a": 1, "b": 1}, planner={"ahead": 2})
ONE_EPOCH = plan_config({"a": 1, "b": 1}, planner={"ahead": 2}, mixture={"exhausted": "drop"})


def sources(bad: Iterable[int] = BAD) -> ScriptedSources:
    lengths = [0 if position in set(bad) else 4 + position % 5 for position in range(60)]
    return ScriptedSources.of_lengths({"a": lengths, "b": [6] * 50}, block=BLOCK)


def request(positions: Iterable[int], *, number: int = 1, at_step: int = 0, epoch: int = 0) -> Request:
    asked = enumerate(positions)
    return Request(number, at_step, tuple(Asked(i, SampleId("a", epoch, at), at // BLOCK) for i, at in asked))


def resumed(driver: PlanDriver, held: ScriptedSources, *requests: Request, opened: int = -1) -> PlanDriver:
    """A planner that was restarted after the last plan of `driver`, with files as in `held`."""
    state = State.from_json(driver.plans[-1].state_json)
    again = PlanDriver(ONE_EPOCH if driver.ended else CONFIG, held, state=state)
    again.apply(core.Requested(requests))
    if opened >= 0:
        again.apply(core.Opened(opened, 99))
    return again


def ledger(plans: Iterable[Plan]) -> tuple[Counter[SampleId], Counter[SampleId], Counter[SampleId]]:
    """How often each sample was delivered, skipped and readmitted, counted from the records alone."""
    delivered, skipped, readmitted = Counter[SampleId](), Counter[SampleId](), Counter[SampleId]()
    for plan in plans:
        names = ("source", "epoch", "position", "start")
        rows = zip(*(getattr(plan.pieces, name).tolist() for name in names), strict=True)
        delivered.update(SampleId(plan.sources[s], e, p) for s, e, p, start in rows if start == 0)
        skipped.update(SampleId(plan.sources[s], e, row.position) for s, e, row in plan.skipped)
        readmitted.update(SampleId(plan.sources[s], e, p) for s, e, p in plan.readmitted)
    return delivered, skipped, readmitted


def assert_each_once(plans: list[Plan]) -> None:
    delivered, skipped, readmitted = ledger(plans)
    state = plans[-1].state
    waiting = state.waiting
    rows = zip(waiting.source.tolist(), waiting.epoch.tolist(), waiting.position.tolist(), strict=True)
    delivered.update({SampleId(state.names[s], e, p) for s, e, p in rows})
    for name, reached in state.sources.items():
        length = len(sources().samples[name])
        for epoch in range(reached.epoch + 1):
            for position in range(reached.position if epoch == reached.epoch else length):
                sample = SampleId(name, epoch, position)
                assert delivered[sample] + skipped[sample] == 1 + readmitted[sample], sample


def test_repaired_samples_come_in_the_next_step_and_once() -> None:
    first = PlanDriver(CONFIG, sources())
    first.run(7)
    again = resumed(first, sources(()), request((3, 4, 11)))
    again.run(14)
    plans = first.plans + again.plans
    assert [plan.step for plan in plans] == list(range(15))
    delivered, skipped, readmitted = ledger(plans)
    for position in (3, 4, 11):
        sample = SampleId("a", 0, position)
        assert (delivered[sample], skipped[sample], readmitted[sample]) == (1, 1, 1)
    assert plans[8].readmitted == ((0, 0, 3),)  # a sixteenth of two sequences of 32 tokens is one sample
    assert [len(plan.readmitted) for plan in plans[8:12]] == [1, 1, 1, 0]
    assert plans[-1].state.readmitted == (1, 3)
    assert_each_once(plans)


def test_without_requests_records_and_states_say_nothing_of_them() -> None:
    driver = PlanDriver(CONFIG, sources())
    driver.run(3)
    assert "readmitted" not in driver.plans[-1].state_json
    assert not driver.plans[-1].to_message().readmitted


def test_killed_after_any_step_it_goes_on_the_same_way() -> None:
    first = PlanDriver(CONFIG, sources())
    first.run(7)
    asked = (request((3, 4)), request((11,), number=2))
    whole = resumed(first, sources(()), *asked)
    whole.run(14)
    for step in range(8, 14):
        state = State.from_json(whole.plans[step - 8].state_json)
        again = PlanDriver(CONFIG, sources(()), state=state)
        again.apply(core.Requested(asked))
        again.run(14)
        expected = [plan.to_bytes() for plan in whole.plans[step - 7 :]]
        assert [plan.to_bytes() for plan in again.plans] == expected
    assert_each_once(first.plans + whole.plans)


def test_a_running_planner_reads_the_blocks_again_that_it_has() -> None:
    driver = PlanDriver(CONFIG, sources())
    driver.run(2)  # the first blocks are at hand, with what was bad in them
    driver.sources = sources(())
    driver.apply(core.Requested((request((3, 4)),)))
    driver.run(9)
    assert "    read a/0#0 again" in driver.trace
    assert driver.trace.count("    read a/0#0 again") == 1
    delivered, _, _ = ledger(driver.plans)
    assert delivered[SampleId("a", 0, 3)] == delivered[SampleId("a", 0, 4)] == 1
    assert_each_once(driver.plans)


def test_a_read_that_was_on_its_way_does_not_count() -> None:
    driver = PlanDriver(CONFIG, sources())
    driver.run(7)
    block = request((3,)).samples[0].block_id
    fresh = PlanDriver(CONFIG, sources(), state=State.from_json(driver.plans[-1].state_json))
    fresh.core._leased.add(block)  # asked for before the repair
    fresh.apply(core.Requested((request((3,)),)))
    fresh.apply(core.Demanded(8, 0))
    while any(isinstance(action, core.Describe) for action in fresh._open):
        fresh._do(fresh._open.pop(0))
    assert "    read a/0#0 again" not in fresh.trace
    fresh.apply(core.Probed(sources().probe(block)))
    assert fresh.trace[-1] == "    read a/0#0 again"


def test_bad_again_is_skipped_again_in_the_same_record() -> None:
    first = PlanDriver(CONFIG, sources())
    first.run(7)
    again = resumed(first, sources((4,)), request((3, 4)))
    again.run(12)
    delivered, skipped, readmitted = ledger(first.plans + again.plans)
    assert (delivered[SampleId("a", 0, 4)], skipped[SampleId("a", 0, 4)]) == (0, 2)
    assert readmitted[SampleId("a", 0, 4)] == 1
    # What a source has had of bad samples counts each of them once, for `max_bad_fraction`.
    assert again.plans[-1].state.sources["a"].bad == {"empty_text": len(skipped)}
    assert_each_once(first.plans + again.plans)


def test_not_before_its_step() -> None:
    first = PlanDriver(CONFIG, sources())
    first.run(5)
    again = resumed(first, sources(()), request((3,), at_step=9))
    again.run(12)
    assert [plan.step for plan in again.plans if plan.readmitted] == [9]


def test_a_sample_that_has_not_been_passed_comes_in_its_turn() -> None:
    first = PlanDriver(CONFIG, sources())
    first.run(2)
    assert first.plans[-1].state.sources["a"].position <= 38
    again = resumed(first, sources(()), request((38,)))
    again.run(14)
    delivered, _, readmitted = ledger(first.plans + again.plans)
    assert (delivered[SampleId("a", 0, 38)], readmitted[SampleId("a", 0, 38)]) == (1, 0)


def test_many_trickle_in_and_the_state_stays_small() -> None:
    bad = range(0, 60, 2)
    config = plan_config({"a": 1, "b": 1}, sequences=8, source={"max_bad_fraction": 1})
    first = PlanDriver(config, sources(bad))
    first.run(4)
    state = State.from_json(first.plans[-1].state_json)
    again = PlanDriver(config, sources(()), state=state)
    positions = [position for position in bad if (0, position) < (state.sources["a"].epoch, 60)]
    again.apply(core.Requested((request(positions),)))
    again.run(30)
    share = 8 * 32 // STEP_SHARE
    lengths = {position: 4 + position % 5 for position in positions}
    for plan in again.plans:
        sizes = [lengths[position] for _, _, position in plan.readmitted]
        assert sum(sizes) <= share or len(sizes) == 1
    assert sum(len(plan.readmitted) for plan in again.plans) == len(positions)


def one_epoch() -> PlanDriver:
    driver = PlanDriver(ONE_EPOCH, sources())
    driver.run(99)
    assert driver.ended is not None
    assert driver.plans[-1].last
    return driver


def test_the_end_does_not_move_while_ranks_read() -> None:
    driver = one_epoch()
    driver.sources = sources(())
    steps = len(driver.plans)
    driver.apply(core.Requested((request((3,)),)))
    driver.run(120)
    assert len(driver.plans) == steps
    again = resumed(driver, sources(()), request((3,)))
    again.run(120)
    assert (again.plans, again.ended.step) == ([], steps)


@pytest.mark.parametrize("restarted", [True, False])
def test_a_session_that_begins_at_the_end_gets_all_that_was_asked_for(restarted: bool) -> None:
    driver = one_epoch()
    steps = len(driver.plans)
    asked = request(BAD)
    if restarted:
        again = resumed(driver, sources(()), asked, opened=steps)
        again.run(120)
        plans = driver.plans + again.plans
    else:
        driver.sources = sources(())
        driver.apply(core.Requested((asked,)))
        driver.apply(core.Opened(steps, 99))
        driver.run(120)
        plans = driver.plans
    delivered, _, readmitted = ledger(plans)
    assert {sample.position for sample in readmitted} == set(BAD)
    assert all(delivered[SampleId("a", 0, position)] == 1 for position in BAD)
    assert plans[-1].last
    assert len(plans) == steps + 1  # nothing else is left to fill steps with
    assert_each_once(plans)


def test_documents_that_are_cut_and_samples_with_pictures() -> None:
    picture = Sample(20, ((2, 10, 40),))
    held = [Sample(6)] * 30
    broken = list(held)
    broken[2] = Sample(0)
    mended = list(held)
    mended[2] = Sample(70)
    mended[7] = picture
    config = plan_config({"a": 1}, sequences=2, sequence_length=24)
    first = PlanDriver(config, ScriptedSources({"a": broken}, block=BLOCK))
    first.run(4)
    again = PlanDriver(
        config, ScriptedSources({"a": mended}, block=BLOCK), state=State.from_json(first.plans[-1].state_json)
    )
    again.apply(core.Requested((request((2, 7)),)))  # 7 was delivered, and could not be decoded
    again.run(12)
    tokens = Counter[int]()
    patches = 0
    for plan in again.plans:
        names = ("epoch", "position", "length", "patches")
        rows = zip(*(getattr(plan.pieces, name).tolist() for name in names), strict=True)
        for epoch, position, length, count in rows:
            if epoch == 0 and position in (2, 7):
                tokens[position] += length
                patches += count
    assert tokens == {2: 70, 7: 20}
    assert patches == 40
