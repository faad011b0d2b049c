"""Who continues where, and who is refused."""

from __future__ import annotations

import json
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


AGAIN = Generation(3, FRESH, "hash", 2, "from the start again")
OTHER = replace(LATER, largest=3)


@pytest.mark.parametrize(
    ("state", "generation", "logged", "config_hash", "expected"),
    [
        (FRESH, None, None, "hash", "first start"),
        (LATER, None, None, "hash", "a state, and a store that knows no plans"),
        (FRESH, FIRST, None, "hash", FRESH),
        (FRESH, FIRST, None, "other", "the configuration has changed"),
        (LATER, FIRST, LATER, "other", "the configuration has changed"),
        (LATER, FIRST, LATER, "hash", LATER),
        (LATER, FIRST, None, "hash", "the state of step 7 is not one of generation 1"),
        (LATER, FIRST, OTHER, "hash", "the state of step 7 is not one of generation 1"),
        (LATER, SECOND, None, "hash", LATER),
        (OTHER, SECOND, None, "hash", "the state of step 7 is not one of generation 2"),
        (FRESH, SECOND, None, "hash", "from the start again"),
        (FRESH, AGAIN, None, "hash", FRESH),
    ],
)
def test_where_a_client_goes_on(state, generation, logged, config_hash, expected):
    choice = decide(state, state, generation, logged, config_hash)
    assert choice == (Branch(expected) if isinstance(expected, str) else Continue(expected))


@pytest.mark.parametrize("state", [FRESH, LATER])
def test_only_the_first_of_several_ranks_begins_a_generation(state):
    """They join one after the other with the same state, which a new source makes the service adapt."""
    adapted = state.adapted(("a", "b", "c"), {"job": "11-22"}, 100)
    assert adapted.hash() != state.hash()
    choice = decide(state, adapted, FIRST, None, "new hash")
    assert isinstance(choice, Branch)
    begun = Generation(2, adapted, "new hash", 1, choice.reason)
    for _ in range(3):
        assert decide(state, adapted, begun, None, "new hash") == Continue(adapted)


def test_a_state_that_fits_is_adapted_to_itself():
    state = replace(LATER, sources={**LATER.sources, "a": replace(LATER.sources["a"], credit=0.1)})
    assert state.adapted(("b", "a"), {"job": "11-22"}, 100) is state


def test_changed_files_begin_again_only_without_a_state():
    assert decide(FRESH, FRESH, FIRST, None, "hash", data_changed=True) == Branch("the files have changed")
    assert decide(LATER, LATER, FIRST, LATER, "hash", data_changed=True) == Continue(LATER)


def test_equal_states_are_equal_text_whatever_the_order_of_their_keys():
    state = replace(FRESH, config={"source/b": "1", "job": "2", "source/a": "3"})
    back = State.from_json(json.dumps(json.loads(state.to_json()), sort_keys=True))
    assert back.hash() == state.hash()


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
