"""A plan survives the log, knows its set, and can't breach a cap."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dataloader_client._pb import plan_pb2
from dataloader_svc.errors import StoreError
from dataloader_svc.planner.pieces import Pieces
from dataloader_svc.planner.plan import Plan, digest
from dataloader_svc.sample import BlockId
from dataloader_svc.testing.planning import PlanDriver, plan_config
from dataloader_svc.testing.scripted_loader import ScriptedSources


@pytest.fixture(scope="module")
def plan() -> Plan:
    config = plan_config({"a": 2, "b": 1}, sequences=3)
    lengths = {"a": [7, 0, 3, 9] * 30, "b": [40, 12] * 30}
    config = config.model_copy()
    return PlanDriver(config, ScriptedSources.of_lengths(lengths)).run(1)[1]


def shuffled(plan: Plan, order: np.ndarray) -> Pieces:
    return plan.pieces.take(order)


def test_there_and_back(plan):
    again = Plan.from_bytes(plan.to_bytes(), plan.sequence_length)
    assert again.to_bytes() == plan.to_bytes()
    assert again.skipped == plan.skipped
    assert len(plan.skipped) > 0
    assert again.state.to_json() == plan.state_json
    assert again.sequence_offsets.tolist() == plan.sequence_offsets.tolist()
    assert again.metrics == plan.metrics


def test_a_record_is_kilobytes(plan):
    assert len(plan.to_bytes()) < 4096


def test_the_digest_is_of_the_set(plan):
    order = np.random.default_rng(0).permutation(len(plan.pieces))
    assert digest(plan.sources, shuffled(plan, order)) == plan.digest
    # Other numbers for the same names.
    renumbered = replace(plan.pieces, source=1 - plan.pieces.source)
    assert digest(("b", "a"), renumbered) == plan.digest
    unused = replace(plan.pieces, source=plan.pieces.source + 1)
    assert digest(("0", "a", "b"), unused) == plan.digest


@pytest.mark.parametrize("column", ["source", "epoch", "position", "start", "length"])
def test_the_digest_tells_sets_apart(plan, column):
    changed = getattr(plan.pieces, column).copy()
    changed[0] = 1 - changed[0] if column == "source" else changed[0] + 1
    assert digest(plan.sources, replace(plan.pieces, **{column: changed})) != plan.digest


@pytest.mark.parametrize("column", ["patches", "block"])
def test_the_digest_does_not_depend_on_what_follows_from_the_name(plan, column):
    changed = getattr(plan.pieces, column) + 1
    assert digest(plan.sources, replace(plan.pieces, **{column: changed})) == plan.digest


def test_an_empty_step_has_a_digest():
    assert len(digest(("a",), Pieces.empty())) == 16


def rebuilt(plan: Plan, **changes) -> Plan:
    names = (
        "step",
        "sources",
        "sequence_length",
        "sequence_offsets",
        "pieces",
        "skipped",
        "state_json",
        "last",
    )
    values = {name: getattr(plan, name) for name in names}
    return Plan(**{**values, "metrics": {}, **changes})


def test_a_breach_is_a_bug(plan):
    with pytest.raises(AssertionError, match=r"a sequence of \d+ tokens, cap 8"):
        rebuilt(plan, sequence_length=8)
    with pytest.raises(AssertionError, match="every piece is in a sequence"):
        rebuilt(plan, sequence_offsets=plan.sequence_offsets[:-1])
    twice = Pieces.concat([plan.pieces.take(np.array([0])), plan.pieces.take(np.array([0]))])
    with pytest.raises(AssertionError, match="planned twice"):
        rebuilt(plan, pieces=twice, sequence_offsets=np.array([0, 1, 2]))
    part = replace(twice, start=np.array([0, 2]), length=np.array([3, 3]))
    with pytest.raises(AssertionError, match="planned twice"):
        rebuilt(plan, pieces=part, sequence_offsets=np.array([0, 1, 2]))
    beside = replace(twice, start=np.array([0, 3]), length=np.array([3, 3]))
    rebuilt(plan, pieces=beside, sequence_offsets=np.array([0, 1, 2]))
    nothing = replace(twice, start=np.array([0, 3]), length=np.array([0, 3]))
    with pytest.raises(AssertionError, match="no piece is empty"):
        rebuilt(plan, pieces=nothing, sequence_offsets=np.array([0, 1, 2]))


def test_damage_is_found(plan):
    with pytest.raises(StoreError, match="can't be parsed"):
        Plan.from_bytes(b"\xff\xff\xff", 32)
    record = plan.to_message()
    record.position[0] += 100
    with pytest.raises(StoreError, match="the plan of step 1 is damaged"):
        Plan.from_bytes(record.SerializeToString(), 32)
    with pytest.raises(StoreError, match="has version 9; this service reads 1"):
        Plan.from_bytes(plan_pb2.PlanRecord(version=9).SerializeToString(), 32)


def test_blocks_of_a_plan(plan):
    rows = zip(
        plan.pieces.source.tolist(), plan.pieces.epoch.tolist(), plan.pieces.block.tolist(), strict=True
    )
    assert plan.blocks() == {BlockId(plan.sources[s], e, b) for s, e, b in rows}


def test_media_are_counted_in_the_record_where_there_are_any(plan):
    """An older record has no count: its pieces have 0, whatever their patches."""
    assert plan.to_message().media == []
    media = np.arange(len(plan.pieces))
    pieces = replace(plan.pieces, media=media, patches=64 * media)
    counted = replace(plan, pieces=pieces)
    again = Plan.from_bytes(counted.to_bytes(), plan.sequence_length)
    assert again.pieces.media.tolist() == media.tolist()
    older = counted.to_message()
    del older.media[:]
    again = Plan.from_bytes(older.SerializeToString(), plan.sequence_length)
    assert again.pieces.media.tolist() == [0] * len(media)
    assert again.digest == counted.digest


def test_sound_is_in_the_record_where_there_is_any(plan):
    assert plan.to_message().frames == []
    again = Plan.from_bytes(plan.to_bytes(), plan.sequence_length)
    assert again.pieces.frames.tolist() == [0] * len(plan.pieces)
    frames = np.arange(len(plan.pieces)) * 4
    heard = replace(plan, pieces=replace(plan.pieces, frames=frames))
    again = Plan.from_bytes(heard.to_bytes(), plan.sequence_length)
    assert again.pieces.frames.tolist() == frames.tolist()
