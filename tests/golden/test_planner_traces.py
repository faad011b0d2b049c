"""What the planner does with each event, as text that a person can read: `traces/*.txt`.

A line `> ...` is an event, the lines under it are the actions that the core answers with. Pieces are written
source/epoch/position:tokens, with +start where a document was cut; sequences stand in brackets. A change of
which samples a step holds is a breaking change for running jobs: it shows here first. `make golden` rewrites.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from dataloader_svc.errors import DataloaderError
from dataloader_svc.planner.state import State
from dataloader_svc.testing.planning import PlanDriver, plan_config
from dataloader_svc.testing.scripted_loader import Sample, ScriptedSources

TRACES = Path(__file__).parent / "traces"

SCENARIOS: dict[str, Callable[[], list[str]]] = {}


def scenario(make: Callable[[], list[str]]) -> Callable[[], list[str]]:
    SCENARIOS[make.__name__] = make
    return make


@scenario
def two_sources_by_tokens() -> list[str]:
    """Long documents of one source against short ones of another, shared 3 to 1 by tokens."""
    lengths = {"books": [21, 30, 17, 25, 28, 19, 23, 30] * 2, "chats": [4, 6, 3, 5, 8, 2, 7, 4] * 3}
    driver = PlanDriver(plan_config({"books": 3, "chats": 1}), ScriptedSources.of_lengths(lengths))
    driver.run(3)
    driver.run(3, done_below=3)
    return driver.trace


@scenario
def a_ramp() -> list[str]:
    """New data is phased in over four steps; a step later the old is gone."""
    schedule = [
        {"step": 0, "old": 1},
        {"step": 4, "old": 0.2, "new": 0.8, "ramp": "linear"},
        {"step": 5, "new": 1},
    ]
    lengths = {"old": [8] * 40, "new": [8] * 60}
    driver = PlanDriver(plan_config(schedule, sequences=2), ScriptedSources.of_lengths(lengths, block=20))
    driver.run(6)
    return driver.trace


@scenario
def long_documents_and_pictures() -> list[str]:
    """Documents longer than a sequence are cut, but never through a picture; what is left over waits."""
    picture = Sample(40, ((10, 20, 80),))  # 10 tokens of text, a picture of 20, 10 of text
    samples = [Sample(70), picture, Sample(5), Sample(33, ((0, 33, 132),)), Sample(9)] * 3
    config = plan_config({"web": 1}, sequences=2, sequence_length=24)
    driver = PlanDriver(config, ScriptedSources({"web": samples}, block=5))
    driver.run(5)
    return driver.trace


@scenario
def a_tiny_source_repeats() -> list[str]:
    """Two samples, half of the mixture: several epochs a step, each sample as often as the other."""
    lengths = {"big": [8] * 40, "tiny": [8, 4]}
    driver = PlanDriver(plan_config({"big": 1, "tiny": 1}), ScriptedSources.of_lengths(lengths, block=20))
    driver.run(2)
    return driver.trace


@scenario
def the_first_source_that_ends_stops() -> list[str]:
    """`exhausted: stop`: what is drawn is still delivered; the last step says that it is the last."""
    config = plan_config({"a": 1, "b": 1}, mixture={"exhausted": "stop"})
    driver = PlanDriver(config, ScriptedSources.of_lengths({"a": [10, 20, 5, 31, 7], "b": [8] * 20}, block=5))
    driver.run(9)
    return driver.trace


@scenario
def the_others_go_on() -> list[str]:
    """`exhausted: drop` with `last_batch: drop`: a source is left out; a last short step is, too."""
    config = plan_config({"a": 1, "b": 1, "c": 2}, mixture={"exhausted": "drop"}, last_batch="drop")
    lengths = {"a": [8] * 3, "b": [8] * 9, "c": [8] * 13}
    driver = PlanDriver(config, ScriptedSources.of_lengths(lengths, block=7))
    driver.run(9)
    return driver.trace


@scenario
def bad_samples() -> list[str]:
    """They are passed over and named; when they are too many, the job stops and says of which source."""
    config = plan_config({"a": 1, "b": 1}, source={"max_bad_fraction": 0.4, "max_bad_minimum": 4})
    lengths = {"a": [8] * 40, "b": [8, 8, 0, 8, 8, 8, 0, 0, 8, 0, 0, 0, 8, 0, 0, 8] * 2}
    driver = PlanDriver(config, ScriptedSources.of_lengths(lengths, block=8))
    with contextlib.suppress(DataloaderError):
        driver.run(9)
    return driver.trace


@scenario
def a_restart_between_log_and_readers() -> list[str]:
    """The record is in the log, nobody was told: the next planner is based on it and goes on behind it."""
    config = plan_config({"a": 1, "b": 1}, planner={"ahead": 1})
    sources = ScriptedSources.of_lengths({"a": [8] * 40, "b": [6] * 40}, block=10)
    first = PlanDriver(config, sources)
    first.run(1)
    state = State.from_json(first.plans[1].state_json)
    second = PlanDriver(config, sources, state=state)
    second.run(3)
    return [*first.trace, "", "# killed; the next one:", "", *second.trace]


@scenario
def steps_of_samples() -> list[str]:
    """Four samples a step, in as many sequences as they need: all pieces of a long one stay in its step.

    `last_batch: drop`: what is left at the end are fewer than four, and no step.
    """
    config = plan_config({"a": 3, "b": 1}, samples=4, mixture={"exhausted": "stop"}, last_batch="drop")
    lengths = {"a": [8, 30, 12, 5, 9, 70, 8, 8, 20, 8, 8, 7, 3], "b": [31, 2, 16, 8, 8]}
    driver = PlanDriver(config, ScriptedSources.of_lengths(lengths, block=6))
    driver.run(9)
    return driver.trace


@pytest.mark.parametrize("name", SCENARIOS)
def test_trace(name: str, update: bool) -> None:
    make = SCENARIOS[name]
    text = "\n".join([f"# {make.__doc__}", "", *make(), ""])
    path = TRACES / f"{name}.txt"
    if update:
        path.write_text(text)
    assert path.read_text() == text, (
        "the planner acts otherwise than before; `make golden`, and read the diff"
    )


def test_no_trace_is_left_over() -> None:
    assert {path.stem for path in TRACES.iterdir()} == set(SCENARIOS)
