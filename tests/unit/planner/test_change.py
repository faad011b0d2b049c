"""Changes of the mixture: what can be asked, what a schedule becomes, what a state carries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dataloader_svc.config.schema import MixtureStep
from dataloader_svc.errors import MixtureError
from dataloader_svc.planner.change import (
    MOST_AHEAD,
    Change,
    Learned,
    accepted,
    in_force,
    still_to_come,
    with_new,
    without_past,
)
from dataloader_svc.planner.mixture import Schedule

NAMES = ("a", "b", "c")
FILE = [
    {"step": 0, "a": 1},
    {"step": 20, "a": 1, "b": 1, "ramp": "linear"},
    {"step": 40, "c": 1},
    {"step": 60, "a": 1, "b": 2, "c": 1, "ramp": "linear"},
]


def change(
    at_step: int, weights: dict[str, float], over: int = 0, known_from: int = 0, name: str = ""
) -> Change:
    return Change(name or f"{at_step}+{over}", at_step, weights, over, known_from, "d")


def learned(before: int, known_from: int) -> Change:
    """What `mixture.adaptive` made of losses of steps before `before`."""
    made = change(before + 8, {"a": 1}, known_from=known_from, name=f"adaptive/{before}")
    return replace(made, learned=Learned("own", before, {"calls": before}, {"a": 2.5}))


def schedule(*entries: dict) -> Schedule:
    return Schedule.of([MixtureStep(**entry) for entry in entries], NAMES)


def normalised(weights: dict) -> np.ndarray:
    row = np.array([weights.get(name, 0.0) for name in NAMES])
    return row / row.sum()


def slow_file(step: int, floor: int, before: np.ndarray) -> np.ndarray:
    """By the entries of the file after step `floor`, at which `before` holds."""
    row, at = before, floor
    for entry in (entry for entry in FILE if entry["step"] > floor):
        target = normalised(entry)
        if entry["step"] <= step:
            row, at = target, entry["step"]
        elif entry.get("ramp") == "linear":
            share = (step - at) / (entry["step"] - at)
            return (1 - share) * row + share * target
        else:
            break
    return row


def slow_weights(changes: list[Change], step: int) -> np.ndarray:
    """By the words: the last change that has begun decides, else the file. Changes stand in order of step."""
    begun = [number for number, one in enumerate(changes) if one.at_step <= step]
    if not begun:
        return slow_file(step, 0, normalised(FILE[0]))
    one = changes[begun[-1]]
    target = normalised(one.weights)
    if step >= one.stop:
        return slow_file(step, one.stop, target)
    share = (step - one.at_step) / one.over
    return (1 - share) * slow_weights(changes[: begun[-1]], one.at_step) + share * target


@pytest.mark.parametrize(
    "changes",
    [
        [change(30, {"b": 1})],
        [change(0, {"b": 1})],
        [change(0, {"b": 1}, over=7)],
        [change(10, {"c": 1})],  # inside a ramp
        [change(10, {"c": 1}, over=5)],
        [change(20, {"c": 1})],  # where a ramp ends
        [change(30, {"b": 1}, over=15)],  # across an entry
        [change(10, {"c": 1}, over=45)],  # across two
        [change(41, {"b": 1}), change(50, {"a": 0.5, "c": 0.5}, over=4)],
        [change(41, {"b": 1}, over=10), change(45, {"a": 1}, over=10)],
        [change(70, {"b": 1}), change(70, {"a": 1})],  # the later word at one step
    ],
)
def test_a_schedule_with_changes_is_what_the_words_say(changes: list[Change]) -> None:
    changed = schedule(*FILE).changed(changes)
    for step in range(90):
        expected = slow_weights(changes, step)
        np.testing.assert_allclose(changed.weights(step), expected, atol=1e-12, err_msg=f"step {step}")
        ahead = changed.ahead(step, np.zeros(3, bool))
        assert (np.diff(ahead.steps) > 0).all()
        assert np.isfinite(ahead.integral).all()


def test_a_change_before_another_one_leaves_that_in_place() -> None:
    changed = schedule({"step": 0, "a": 1}).changed([change(50, {"b": 1}), change(30, {"c": 1})])
    held = {step: NAMES[int(np.argmax(changed.weights(step)))] for step in (29, 30, 49, 50)}
    assert held == {29: "a", 30: "c", 49: "c", 50: "b"}


def test_a_change_of_sources_that_left_changes_nothing() -> None:
    before = schedule(*FILE)
    assert before.changed([change(10, {"gone": 1})]) is before


def test_the_digest_is_of_weights_and_not_of_sources_without_any() -> None:
    one = schedule(*FILE)
    assert one.digest == Schedule.of([MixtureStep(**entry) for entry in FILE], (*NAMES, "d")).digest
    assert one.digest != schedule(*FILE[:3]).digest


def test_what_a_state_no_longer_carries_has_no_effect() -> None:
    changes = (change(10, {"b": 1}), change(20, {"c": 1}, over=10), change(25, {"a": 1}, over=10))
    plain = schedule({"step": 0, "a": 1})
    for step in range(36, 60):
        kept = without_past(changes, step)
        assert kept == changes[2:]
        for later in range(step - 1, 60):
            whole, less = (plain.changed(each).weights(later) for each in (changes, kept))
            np.testing.assert_allclose(whole, less, atol=1e-12, err_msg=f"step {later} after {step}")
    assert without_past(changes, 31) == changes[1:]  # that of step 20 stands wholly from 30 on
    assert without_past(changes, 30) == changes


def test_a_state_takes_up_what_was_made_at_its_step_once() -> None:
    one, two = change(9, {"a": 1}, known_from=5), change(9, {"b": 1}, known_from=6, name="two")
    assert with_new((), (one, two), 4) == ()
    assert with_new((), (one, two), 5) == (one,)
    assert with_new((one,), (one, two), 5) == (one,)
    assert with_new((one,), (one, two), 6) == (one, two)
    assert with_new((), (one, two), 7) == ()
    assert still_to_come((one, two), 6, "d") == (two,)
    assert still_to_come((one, two), 6, "another file") == ()
    assert in_force((one, replace(two, schedule="e")), "d") == (one,)


def test_json_there_and_back() -> None:
    one = change(9, {"a": 0.1, "b": 0.9}, over=3, known_from=5)
    assert Change.from_json(one.to_json()) == one


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (change(4, {"a": 1}), "step 4 is already planned: the first step that is not is 5"),
        (change(9, {"d": 1}), "there is no source 'd'"),
        (change(9, {"a": -1, "b": 2}), "weight of 'a' is -1"),
        (change(9, {"a": float("nan")}), "weight of 'a' is nan"),
        (change(9, {"a": float("inf")}), "weight of 'a' is inf"),
        (change(9, {"a": 1e308, "b": 1e308}), "sum to inf"),
        (change(9, {"a": 0}), "sum to 0"),
        (change(9, {}), "sum to 0"),
        (change(2**53, {"a": 1}), "steps go to"),
        (change(9, {"a": 1}, over=2**60), "steps go to"),
    ],
)
def test_what_is_refused(asked: Change, words: str) -> None:
    with pytest.raises(MixtureError, match=words):
        accepted(asked, (), NAMES, 5, None)


def test_what_is_accepted_sums_to_one_from_the_step_that_is_named() -> None:
    made = accepted(change(-1, {"c": 3, "a": 1, "b": 0}), (), NAMES, 5, None)
    assert (made.at_step, made.known_from, dict(made.weights)) == (5, 5, {"a": 0.25, "c": 0.75})
    assert list(made.weights) == ["a", "c"]


def test_no_change_after_the_end_of_the_data_nor_too_many_ahead() -> None:
    with pytest.raises(MixtureError, match="the data ends before step 7"):
        accepted(change(9, {"a": 1}), (), NAMES, 5, 7)
    ahead = tuple(change(step, {"a": 1}) for step in range(10, 10 + MOST_AHEAD))
    with pytest.raises(MixtureError, match="8 changes are still to come, at steps 10, 11"):
        accepted(change(99, {"a": 1}), ahead, NAMES, 5, None)
    assert accepted(change(99, {"a": 1}), ahead, NAMES, 10, None).at_step == 99


def test_what_a_rule_remembers_is_carried_once_and_losses_are_the_log_s() -> None:
    first, second = learned(10, 12), learned(20, 24)
    assert Change.from_json(first.to_json()) == first
    carried = with_new((), [first], 12)
    assert [each.learned for each in carried] == [Learned("own", 10, {"calls": 10})]
    carried = with_new(carried, [first, second], 24)
    assert [each.learned for each in carried] == [
        Learned("own", 10, None),
        Learned("own", 20, {"calls": 20}),
    ]
    assert with_new(carried, [first, second], 25) == carried
    by_hand = change(40, {"b": 1}, known_from=26)
    assert with_new(carried, [by_hand], 26) == (*carried, by_hand), "it says nothing of what was learned"


def test_a_decision_by_losses_that_come_again_is_taken_back() -> None:
    """Of a history that is left at step 15; what was decided by steps before it stands."""
    stands, goes, by_hand = learned(10, 16), learned(20, 24), change(40, {"b": 1}, known_from=26)
    assert still_to_come([stands, goes, by_hand], 15, "d") == (stands, by_hand)
