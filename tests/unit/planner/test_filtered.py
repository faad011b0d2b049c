"""What a source's transforms leave out is passed over: named in the plan, but no sign of bad data."""

from __future__ import annotations

import pytest

from dataloader_svc.errors import Reason, SourceError
from dataloader_svc.planner.pieces import Room, cut
from dataloader_svc.planner.plan import Plan
from dataloader_svc.sample import BlockId
from dataloader_svc.testing.planning import PlanDriver, plan_config
from dataloader_svc.testing.scripted_loader import Sample, ScriptedSources, probe_columns

FILTERED = Sample(0, reason=Reason.FILTERED)


def test_every_position_is_placed_or_filtered_whatever_the_share():
    config = plan_config(
        {"a": 1}, source={"max_bad_fraction": 0.0, "max_bad_minimum": 1}, mixture={"exhausted": "stop"}
    )
    samples = [Sample(8) if n % 5 == 0 else FILTERED for n in range(60)]
    plans = PlanDriver(config, ScriptedSources({"a": samples})).run(20)
    filtered = [row.position for plan in plans for _, _, row in plan.skipped]
    placed = [position for plan in plans for position in plan.pieces.position.tolist()]
    assert sorted(placed) == list(range(0, 60, 5))
    assert sorted(filtered + placed) == list(range(60))
    assert plans[-1].state.sources["a"].bad == {}


def test_the_share_of_bad_ones_is_of_those_that_are_left():
    config = plan_config({"a": 1}, source={"max_bad_fraction": 0.4, "max_bad_minimum": 5})
    samples = [*[FILTERED] * 8, Sample(0), Sample(8)] * 30  # a tenth of all, half of what is left
    with pytest.raises(Exception, match="samples are bad, above max_bad_fraction 0.4"):
        PlanDriver(config, ScriptedSources({"a": samples})).run(20)


def test_a_source_of_which_nothing_is_left():
    config = plan_config({"a": 1, "b": 1})
    driver = PlanDriver(config, ScriptedSources({"a": [Sample(8)] * 99, "b": [FILTERED] * 7}))
    with pytest.raises(SourceError, match=r"'b': none of its 7 samples can be used \(filtered 7\)"):
        driver.run(3)


def test_a_record_names_no_row_of_them_and_survives_the_log():
    block = cut(probe_columns(BlockId("a", 0, 0), 10, [FILTERED, Sample(4), Sample(0)]), "split", Room(32))
    assert [(row.position, row.shard, row.reason) for row in block.skipped] == [
        (10, "", "filtered"),
        (12, "a.jsonl", "empty_text"),
    ]
    config = plan_config({"a": 1}, mixture={"exhausted": "stop"})
    (plan, *_) = PlanDriver(config, ScriptedSources({"a": [FILTERED, Sample(8)]})).run(0)
    again = Plan.from_bytes(plan.to_bytes(), plan.sequence_length)
    assert again.skipped == plan.skipped
    assert again.skipped[0][2].reason == "filtered"
