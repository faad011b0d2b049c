"""Who continues where, and who is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dataloader_svc.errors import StateError, VersionError
from dataloader_svc.planner.place import MeshSize
from dataloader_svc.planner.session import (
    Branch,
    Continue,
    Generation,
    Session,
    check_protocol,
    check_state,
    decide,
)
from dataloader_svc.planner.state import State

FRESH = State.initial(("a", "b"), seed=0, config={"job": "11-22"})
LATER = replace(FRESH, step=7)
FIRST = Generation(1, FRESH, "hash", None, "first start")
SECOND = Generation(2, LATER, "hash", 1, "a resume")


@pytest.mark.parametrize(
    ("state", "generation", "logged", "config_hash", "expected"),
    [
        (None, None, None, "hash", "first start"),
        (LATER, None, None, "hash", "a state, and a store that knows no plans"),
        (None, FIRST, None, "hash", None),
        (FRESH, FIRST, None, "hash", None),
        (None, FIRST, None, "other", "the configuration has changed"),
        (LATER, FIRST, LATER, "other", "the configuration has changed"),
        (LATER, FIRST, LATER, "hash", None),
        (LATER, FIRST, None, "hash", "the state of step 7 is not one of generation 1"),
        (LATER, FIRST, replace(LATER, largest=3), "hash", "the state of step 7 is not one of generation 1"),
        (LATER, SECOND, None, "hash", None),
        (replace(LATER, largest=3), SECOND, None, "hash", "the state of step 7 is not one of generation 2"),
        (None, SECOND, None, "hash", "from the start again"),
    ],
)
def test_where_a_client_goes_on(state, generation, logged, config_hash, expected):
    choice = decide(state, generation, logged, config_hash)
    assert choice == (Continue() if expected is None else Branch(expected))


def test_changed_files_begin_again_only_without_a_state():
    assert decide(None, FIRST, None, "hash", data_changed=True) == Branch("the files have changed")
    assert decide(LATER, FIRST, LATER, "hash", data_changed=True) == Continue()


def test_generations_and_sessions_survive_the_store():
    again = Generation.from_json(SECOND.to_json())
    assert again.base.hash() == LATER.hash()
    assert (again.number, again.config_hash, again.parent, again.log) == (2, "hash", 1, "plan/2")
    session = Session(4, 2, 7, "abc", MeshSize(dp=2, cp=4))
    assert Session.from_json(session.to_json()) == session


@pytest.mark.parametrize(
    "other",
    [(1, 7, "abc", MeshSize(dp=2)), (2, 8, "abc", MeshSize(dp=2)), (2, 7, "x", MeshSize(dp=2)),
     (2, 7, "abc", MeshSize(dp=4))],
)  # fmt: skip
def test_a_session_is_one_mesh_step_and_state(other):
    session = Session(4, 2, 7, "abc", MeshSize(dp=2))
    assert session.matches(2, 7, "abc", MeshSize(dp=2))
    assert not session.matches(*other)


def test_versions():
    check_protocol(1, "0.1", "0.1")
    with pytest.raises(
        VersionError, match=r"\(0.0.9\) speaks protocol 0, the service \(0.1\) 1: upgrade the client"
    ):
        check_protocol(0, "0.0.9", "0.1")
    with pytest.raises(VersionError, match=r"\(unnamed\) speaks protocol 2, .*: upgrade the service"):
        check_protocol(2, "", "0.1")


def test_a_state_of_other_data_is_refused_by_field():
    digests = {"job": "11-33", "source/a": "55"}
    state = replace(FRESH, config={"job": "11-22", "source/a": "44", "source/gone": "1"})
    with pytest.raises(
        StateError, match=r"^tokenizer, sources.a.format differ from what the state was made with"
    ):
        check_state(state, digests, force=False)
    check_state(state, digests, force=True)
    check_state(FRESH, {"job": "11-22", "source/new": "9"}, force=False)
