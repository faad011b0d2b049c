"""The examples of docs/adaptive.md, run: the YAML as a job's mixture, the rule as one of the user's."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import yaml

from dataloader_client.adaptive import RULES, Bounds, Told, option_names, updated
from dataloader_client.feedback import MOST_LOSSES
from dataloader_svc.config.adaptive_rule import known_rule
from dataloader_svc.config.schema import Adaptive, Config

PAGE = (Path(__file__).parents[2] / "docs" / "adaptive.md").read_text()
(MIXTURE,) = (yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.S))
LOOP, RULE = re.findall(r"```python\n(.*?)```", PAGE, re.S)


def test_the_mixture_is_one_of_a_job() -> None:
    (entry,) = MIXTURE["mixture"]["schedule"]
    names = [name for name in entry if name != "step"]
    config = Config.model_validate(
        {
            "job": "page",
            "tokenizer": "t.json",
            "sequence_length": 64,
            "global_batch": {"sequences": 2},
            "sources": {name: {"format": "jsonl", "path": "x", "text": "text"} for name in names},
            **MIXTURE,
        }
    )
    adaptive = config.mixture.adaptive
    assert adaptive is not None
    assert adaptive.bounds == Bounds(min_share=0.02, max_ratio=3, max_change=0.02)


def test_every_rule_is_listed_with_its_options() -> None:
    rows = {
        row[0].strip(" `"): row for row in (line.split("|")[1:] for line in PAGE.splitlines()) if len(row) > 3
    }
    for name, rule in RULES.items():
        options = re.findall(r"`(\w+)`(?: by source)? \(([^)]*)\)", rows[name][2])
        assert tuple(option for option, _ in options) == option_names(rule)
        for option, default in options:
            given = inspect.signature(rule).parameters[option].default
            assert default == "needed" if given is inspect.Parameter.empty else float(default) == given


def test_the_rule_of_one_s_own_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page_rules.py").write_text(RULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = Adaptive(rule="page_rules:by_age", options={"half_life": 100.0})
    rule = known_rule(settings, ["a", "b"], tmp_path)
    even = {"a": 0.5, "b": 0.5}
    told = Told(
        weights=even, declared=even, losses={"a": 1.0}, targets={"a": 100.0}, bounds=Bounds(max_change=1)
    )
    weights, memory = updated(rule, told, None, settings.options)
    assert weights == pytest.approx({"a": 1 / 3, "b": 2 / 3})
    weights, memory = updated(rule, told, memory, settings.options)
    assert weights == pytest.approx({"a": 1 / 5, "b": 4 / 5})
    assert memory == {"a": 200.0, "b": 0.0}


def test_the_loop_is_python_and_the_limit_is_the_client_s() -> None:
    compile(LOOP, "adaptive.md", "exec")
    assert f"up to {MOST_LOSSES:,} reports" in PAGE
