"""Which steps a store's log holds, over the branches that it has gone through."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dataloader_svc.cli.plan_log import NoPlans, PlanLog
from dataloader_svc.errors import StateError
from dataloader_svc.planner.pieces import Pieces
from dataloader_svc.planner.place import MeshSize
from dataloader_svc.planner.plan import Plan
from dataloader_svc.planner.session import GENERATION_POINTER, SESSION_KEY, Generation, Session
from dataloader_svc.planner.state import SourceState, State
from dataloader_svc.store.base import Store
from dataloader_svc.store.open import open_existing, open_store

START = State.initial(("web",), seed=0, config={"job": "a"})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store("memory:", tmp_path)
    yield opened
    opened.close()


def after(step: int, *, each: int = 10) -> State:
    """The state before `step` of a job that reads `each` positions a step."""
    return replace(START, step=step, sources={"web": SourceState(position=each * step)})


def record(step: int, *, each: int = 10, length: int = 50) -> Plan:
    column = np.array([0])
    return Plan(
        step=step,
        sources=("web",),
        sequence_length=100,
        sequence_offsets=np.array([0, 1]),
        pieces=Pieces(column, column, np.array([each * step]), column, np.array([length]), *[column] * 4),
        skipped=(),
        state_json=after(step + 1, each=each).to_json(),
        last=False,
        metrics={},
    )


def begin(store: Store, number: int, base: State, records: list[Plan]) -> None:
    generation = Generation(number, base, f"hash{number}", number - 1 or None, "because")
    store.put(Generation.key(number), generation.to_json())
    store.put(GENERATION_POINTER, str(number).encode())
    for plan in records:
        store.append(generation.log, plan.step, plan.to_bytes(), fence=None)


def found(log: PlanLog, step: int) -> tuple[int, int]:
    """(generation, position) of a step."""
    generation, plan = log.read(step, 100)
    assert plan.step == step
    return generation.number, int(plan.pieces.position[0])


def test_one_life(store: Store) -> None:
    begin(store, 1, START, [record(step) for step in range(4)])
    log = PlanLog.of(store)
    assert [found(log, step) for step in range(4)] == [(1, 0), (1, 10), (1, 20), (1, 30)]
    assert log.words() == "it has steps 0 to 3"
    assert log.session is None
    with pytest.raises(StateError, match="step 4 is not in the plan log: it has steps 0 to 3"):
        log.read(4, 100)


def test_a_branch_replaces_what_follows_it(store: Store) -> None:
    begin(store, 1, START, [record(step) for step in range(6)])
    changed = replace(after(3), config={"job": "b"})
    begin(store, 2, changed, [record(step, length=60) for step in range(3, 5)])
    log = PlanLog.of(store)
    assert [found(log, step)[0] for step in range(5)] == [1, 1, 1, 2, 2]
    assert log.words() == "it has steps 0 to 4"
    with pytest.raises(StateError, match="step 5"):
        log.read(5, 100)


def test_a_branch_from_an_older_life(store: Store) -> None:
    """Generation 2 went another way; 3 goes on from a checkpoint of 1."""
    begin(store, 1, START, [record(step) for step in range(6)])
    begin(store, 2, START, [record(step, each=7) for step in range(6)])
    begin(store, 3, after(4), [record(4)])
    assert [found(PlanLog.of(store), step)[0] for step in range(5)] == [1, 1, 1, 1, 3]


def test_a_branch_of_a_branch_that_planned_nothing(store: Store) -> None:
    begin(store, 1, START, [record(step) for step in range(3)])
    begin(store, 2, after(3), [])
    begin(store, 3, after(3), [record(3)])
    assert [found(PlanLog.of(store), step)[0] for step in range(4)] == [1, 1, 1, 3]


def test_a_checkpoint_from_another_store_has_no_steps_before_it(store: Store) -> None:
    begin(store, 1, START, [record(step, each=7) for step in range(9)])
    begin(store, 2, after(5), [record(5)])
    log = PlanLog.of(store)
    assert found(log, 5) == (2, 50)
    assert log.words() == "it has step 5 alone"
    with pytest.raises(StateError, match="step 4 is not in the plan log"):
        log.read(4, 100)


def test_a_step_keeps_the_cap_that_it_was_planned_with(store: Store) -> None:
    begin(store, 1, START, [record(0, length=90)])
    assert PlanLog.of(store).read(0, 40)[1].sequence_length == 90
    assert PlanLog.of(store).read(0, 200)[1].sequence_length == 200


def test_nothing_yet(store: Store) -> None:
    with pytest.raises(NoPlans):
        PlanLog.of(store)
    begin(store, 1, START, [])
    with pytest.raises(StateError, match="step 0 is not in the plan log: it has no step yet"):
        PlanLog.of(store).read(0, 100)


def test_the_last_session(store: Store) -> None:
    begin(store, 1, START, [record(0)])
    store.put(SESSION_KEY, Session(4, 1, 0, "hash", MeshSize(dp=2, cp=4)).to_json())
    session = PlanLog.of(store).session
    assert session is not None
    assert session.mesh == MeshSize(dp=2, cp=4)


def test_a_store_is_opened_for_reading_only_where_it_is(tmp_path: Path) -> None:
    assert open_existing("sqlite:///job.db", tmp_path) is None
    assert open_existing(f"sqlite:///{tmp_path}/folder/job.db", tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    open_store("sqlite:///job.db", tmp_path).close()
    opened = open_existing("sqlite:///job.db", tmp_path)
    assert opened is not None
    opened.close()
