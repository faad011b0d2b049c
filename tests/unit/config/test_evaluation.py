"""A job with `evaluation` as training has it, as evaluation has it, and what can be wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dataloader_svc.config.evaluation import (
    beside_evaluation,
    of_evaluation,
    of_training,
    sources_of,
    with_evaluation,
)
from dataloader_svc.config.load import load_config
from dataloader_svc.config.schema import Config
from dataloader_svc.errors import ConfigProblems

JOB = """\
job: held
tokenizer: tokenizer.json
sequence_length: 1024
global_batch: {sequences: 64}
mesh: {dp: 4}
sources:
  web: {format: jsonl, path: web.jsonl, text: text, transforms: [{subset: 0.5}]}
  old: {format: jsonl, path: old.jsonl, text: text, was: older}
mixture:
  {schedule: [{step: 0, web: 1, old: 1}], adaptive: {rule: learning_speed}}
strategy: {mode: relaxed, calibrate: true}
constructor: {memory: 1GiB, shared_memory: 256MiB}
evaluation:
  sources:
    test: {format: jsonl, path: test.jsonl, text: text}
  held_out: {web: 0.01, old: 0.1}
  global_batch: {sequences: 8}
"""


def config_of(folder: Path, text: str = JOB) -> Config:
    (folder / "m.yaml").write_text(text)
    return load_config(folder / "m.yaml").config


def test_training_reads_what_is_not_held_out(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    assert set(config.sources) == {"web", "old"}
    held = {"held_out": {"fraction": 0.01, "part": "rest"}}
    assert config.sources["web"].transforms == [{"subset": 0.5}, held]
    assert of_training(config) == config
    again = Config.model_validate(json.loads(config.model_dump_json()))  # as every process reads it
    assert of_training(again) == config


def test_evaluation_reads_the_same_extents_by_the_same_draws_and_in_order(tmp_path: Path) -> None:
    found = sources_of(config_of(tmp_path))
    assert list(found) == ["test", "web.eval", "old.eval"]
    held = {"held_out": {"fraction": 0.01, "part": "held_out"}}
    assert found["web.eval"].transforms == [{"subset": 0.5}, held]
    assert (found["web.eval"].was, found["old.eval"].was, found["test"].was) == ("web", "older", None)
    assert not any(source.shuffle for source in found.values())


def test_evaluation_is_a_job_that_ends(tmp_path: Path) -> None:
    view = of_evaluation(config_of(tmp_path))
    assert view.mixture.exhausted == "drop"
    assert set(view.mixture.schedule[0].weights) == set(view.sources)
    assert (view.num_sequences, view.last_batch, view.job) == (8, "pad", "held")
    assert view.strategy.waiting is None
    assert not view.strategy.calibrate
    assert view.mixture.adaptive is None  # what it loses is no reason to read other data of it
    assert of_evaluation(config_of(tmp_path, JOB.replace("  global_batch: {", "  #"))).num_sequences == 64


def test_both_share_a_constructors_memory(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    parts = [beside_evaluation(config).constructor, of_evaluation(config).constructor]
    assert sum(part.memory for part in parts) == 2**30
    assert sum(part.shared_bytes for part in parts) == 2**28
    alone = config.model_copy(update={"evaluation": None})
    assert beside_evaluation(alone) == alone


def test_loaders_have_all_sources(tmp_path: Path) -> None:
    assert list(with_evaluation(config_of(tmp_path)).sources) == [
        "web",
        "old",
        "test",
        "web.eval",
        "old.eval",
    ]


@pytest.mark.parametrize(
    ("before", "after", "line", "text"),
    [
        (
            "{web: 0.01, ",
            "{wbe: 0.01, ",
            16,
            "held_out.wbe: no source is called 'wbe'; sources: old, web; did",
        ),
        ("web: 0.01", "web: 1", 16, "held_out.web: input should be less than 1 (found 1)"),
        (
            "    test: {",
            "    web: {",
            15,
            "sources.web: a source of training, or what is held out of one, has",
        ),
        (
            "    test: {",
            "    old.eval: {",
            15,
            "sources.old.eval: a source of training, or what is held out of",
        ),
        ("    test: {", "    '1 2': {", 14, "sources: source name '1 2' must be letters, digits"),
        ("sequences: 8}", "sequences: 6}", 17, "global_batch: 4 ranks can't share 6 microbatches"),
        (
            "text: text}\n  held",
            "text: text, image: jpg}\n  held",
            13,
            "media_tokens.image: source 'test' has",
        ),
        (
            "test.jsonl, text",
            "test.jsonl, txet",
            15,
            "sources.test.txet: unknown field; did you mean 'text'?",
        ),
    ],
)
def test_what_is_wrong(tmp_path: Path, before: str, after: str, line: int, text: str) -> None:
    assert JOB.count(before) == 1
    with pytest.raises(ConfigProblems) as caught:
        config_of(tmp_path, JOB.replace(before, after))
    found = [problem.removeprefix(f"{tmp_path}/m.yaml:") for problem in caught.value.problems]
    place = "" if text.startswith("media_tokens") else "evaluation."
    assert any(problem.endswith(place + text) or f"{place}{text}" in problem for problem in found), found
    if place:
        assert any(problem.startswith(f"{line}: {place}") for problem in found), found


def test_nothing_to_evaluate_on(tmp_path: Path) -> None:
    text = JOB[: JOB.index("evaluation:")] + "evaluation: {global_batch: {sequences: 8}}\n"
    with pytest.raises(ConfigProblems, match="13: evaluation: give sources, held_out or both"):
        config_of(tmp_path, text)
