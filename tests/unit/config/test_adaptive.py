"""`mixture.adaptive`: what is wrong with it is told with its line, before anything runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from dataloader_client.adaptive import Bounds
from dataloader_svc.config.digest import config_hash
from dataloader_svc.config.load import load_config
from dataloader_svc.errors import ConfigProblems

REFERENCES = {"a": 1.0, "b": 2.0}
EXCESS = {"rule": "excess_loss", "options": {"references": REFERENCES}}


def written(folder: Path, adaptive: dict[str, Any] | None, **weights: float) -> Path:
    (folder / "tokenizer.json").write_text("{}")
    path = folder / "m.yaml"
    mixture: dict[str, Any] = {"schedule": [{"step": 0, **(weights or {"a": 3, "b": 1})}]}
    values = {
        "job": "j",
        "tokenizer": "tokenizer.json",
        "sequence_length": 64,
        "global_batch": {"sequences": 2},
        "sources": {name: {"format": "jsonl", "path": "x", "text": "text"} for name in "ab"},
        "mixture": mixture if adaptive is None else {**mixture, "adaptive": adaptive},
    }
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return path


def problems(folder: Path, adaptive: dict[str, Any], **weights: float) -> list[str]:
    with pytest.raises(ConfigProblems) as caught:
        load_config(written(folder, adaptive, **weights))
    return [line.partition(": ")[2] for line in caught.value.problems]


def test_a_good_one_has_the_bounds_that_it_says(tmp_path: Path) -> None:
    adaptive = load_config(written(tmp_path, EXCESS)).config.mixture.adaptive
    assert adaptive is not None
    assert adaptive.bounds == Bounds(max_ratio=4, max_change=0.05)
    free = load_config(written(tmp_path, {"rule": "learning_speed", "max_ratio": None, "max_change": 1}))
    assert free.config.mixture.adaptive is not None
    assert free.config.mixture.adaptive.bounds == Bounds(max_ratio=math.inf, max_change=1)


def test_it_is_no_part_of_what_plans_are_made_by(tmp_path: Path) -> None:
    """What it did is in the log; so it can be turned on, off and tuned while a job lives."""
    hashes = {
        config_hash(load_config(written(tmp_path, adaptive)).config, tmp_path)
        for adaptive in (None, EXCESS, {"rule": "learning_speed", "every": 7})
    }
    assert len(hashes) == 1


@pytest.mark.parametrize(
    ("adaptive", "line"),
    [
        ({"rule": "exces_loss"}, "mixture.adaptive.rule: unknown rule 'exces_loss'; known: excess_loss, "),
        ({"rule": "excess_loss"}, "mixture.adaptive.options: excess_loss can't be used so: TypeError"),
        (
            {"rule": "excess_loss", "options": {"references": {"a": 1.0}}},
            "mixture.adaptive.options: excess_loss can't be used so: ValueError: there is no reference loss",
        ),
        (
            {"rule": "learning_speed", "options": {"smooting": 1}},
            "mixture.adaptive.options: learning_speed has no option 'smooting'; it takes credit, smoothing, ",
        ),
        (
            {"rule": "learning_speed", "options": {"credit": 3}},
            "mixture.adaptive.options: learning_speed can't be used so: ValueError: credit is 3",
        ),
        ({**EXCESS, "every": 0}, "mixture.adaptive.every: input should be greater than 0"),
        (
            {**EXCESS, "max_chang": 0.1},
            "mixture.adaptive.max_chang: unknown field; did you mean 'max_change'?",
        ),
        ({**EXCESS, "min_share": 0.6, "max_share": 0.5}, "mixture.adaptive: min_share is 0.6, max_share 0.5"),
    ],
)
def test_what_is_wrong_names_its_field(tmp_path: Path, adaptive: dict[str, Any], line: str) -> None:
    (found,) = problems(tmp_path, adaptive)
    assert found.startswith(line)


def test_declared_weights_are_within_the_bounds(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, {**EXCESS, "min_share": 0.1}, a=19, b=1)
    place, _, what = found.partition(": ")
    assert place == "mixture.schedule.0.b"
    assert what == (
        "its share is 0.05, and mixture.adaptive lets it be 0.1 to 1: widen min_share or max_share"
    )
