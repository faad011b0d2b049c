"""States changed by hand: what is said about it is what happens to positions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dataloader_svc.errors import StateError
from dataloader_svc.planner.pieces import Pieces
from dataloader_svc.planner.state import SourceState, State
from dataloader_svc.planner.state_edit import Move, differences, moved, without, without_waiting


def column(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.fixture
def state() -> State:
    """Of a, b and c; a waits with positions 3 and 8 of epoch 1, c with 5 of epoch 0."""
    waiting = Pieces(
        source=column(0, 0, 2),
        epoch=column(1, 1, 0),
        position=column(3, 8, 5),
        start=column(0, 0, 0),
        length=column(10, 20, 40),
        patches=column(0, 0, 0),
        block=column(0, 1, 0),
        frames=column(0, 0, 0),
        media=column(0, 0, 0),
    )
    sources = {
        "a": SourceState(1, 9, 109, 1000, 5.0, "index-a"),
        "b": SourceState(0, 7, 7, 70, -3.0),
        "c": SourceState(0, 6, 6, 600, -2.0),
    }
    return State(5, 12, sources, {"job": "x", "source/a": "y"}, waiting, column(2, 1, 0), 40, ended=True)


def waits(state: State) -> list[tuple[str, int, int]]:
    waiting = state.waiting
    names = [state.names[source] for source in waiting.source.tolist()]
    return list(zip(names, waiting.epoch.tolist(), waiting.position.tolist(), strict=True))


def test_back(state: State) -> None:
    after, notes = moved(state, [Move("a", 1, 5)])
    assert (after.sources["a"].epoch, after.sources["a"].position) == (1, 5)
    assert waits(after) == [("a", 1, 3), ("c", 0, 5)], "what lies behind the new place waits on"
    assert after.age.tolist() == [2, 0]
    assert not after.ended
    assert notes == [
        "a: epoch 1 position 5 up to epoch 1 position 9 is repeated",
        "a: 1 waiting pieces are dropped; they will be drawn again",
    ]


def test_forward(state: State) -> None:
    after, notes = moved(state, [Move("a", 2, 0)])
    assert waits(after) == waits(state)
    assert notes == ["a: epoch 1 position 9 up to epoch 2 position 0 is never delivered"]
    assert State.from_json(after.to_json()).hash() == after.hash()


def test_to_where_it_is(state: State) -> None:
    after, notes = moved(state, [Move("a", 1, 9)])
    assert notes == []
    assert after.hash() == state.hash()


def test_without_a_source(state: State) -> None:
    after, notes = without(state, ["a"])
    assert after.names == ("b", "c")
    assert waits(after) == [("c", 0, 5)]
    assert [after.sources[name].credit for name in "bc"] == [-0.5, 0.5]
    assert dict(after.config) == {"job": "x"}
    assert notes == [
        "a: 2 waiting pieces are dropped, never delivered",
        "a: if it comes back, it starts at its first sample",
    ]
    with pytest.raises(StateError, match="only source"):
        without(after, ["b", "c"])


def test_unknown_source(state: State) -> None:
    with pytest.raises(StateError, match=r"no source 'aa'; it has a, b, c"):
        moved(state, [Move("aa", 0, 0)])


def test_without_what_waits(state: State) -> None:
    after, notes = without_waiting(state)
    assert not len(after.waiting)
    assert notes == ["3 waiting pieces with 70 tokens are dropped, never delivered"]
    assert without_waiting(after) == (after, [])


def test_differences(state: State) -> None:
    assert differences(state, State.from_json(state.to_json())) == []
    after, _ = without(moved(replace(state, step=13), [Move("a", 1, 5)])[0], ["b"])
    assert differences(state, after) == [
        ("step", "12", "13"),
        ("ended", "True", "False"),
        ("a.position", "9", "5"),
        ("a.credit", "5.0", "3.5"),
        ("b", "present", "absent"),
        ("c.credit", "-2.0", "-3.5"),
        ("waiting", "3 pieces, 70 tokens", "2 pieces, 50 tokens"),
    ]
