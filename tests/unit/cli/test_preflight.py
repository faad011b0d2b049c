"""A configuration that is handed to processes names the tokenizer's library: they must not decide again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dataloader_svc.cli import preflight
from dataloader_svc.cli.preflight import load_checked
from dataloader_svc.config.digest import compare, config_hash, made_plans, read_digest
from dataloader_svc.config.load import load_config
from dataloader_svc.errors import ConfigProblems
from dataloader_svc.loader.agreement import Decision
from dataloader_svc.testing.tokenizer import make_tokenizer


def job(folder: Path, **changes: Any) -> Path:
    make_tokenizer(folder / "tokenizer")
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": f"row {i}"}) + "\n" for i in range(20)))
    values = {
        "job": "j",
        "tokenizer": "tokenizer",
        "sequence_length": 64,
        "global_batch": {"sequences": 2},
        "sources": {"a": {"format": "jsonl", "path": "a.jsonl", "text": "text"}},
        "mixture": {"schedule": [{"step": 0, "a": 1}]},
        **changes,
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(values))
    return folder / "job.yaml"


def test_auto_is_decided_before_anything_starts(tmp_path: Path) -> None:
    loaded = load_checked(job(tmp_path))
    assert loaded.config.tokenizer_backend == "fastokens"
    assert list((tmp_path / ".dataloader-svc" / "index").glob("*.agreement"))


def test_a_library_that_is_named_is_not_decided(tmp_path: Path) -> None:
    for name in ("fastokens", "tokenizers"):
        assert load_checked(job(tmp_path, tokenizer_backend=name)).config.tokenizer_backend == name
    assert not list((tmp_path / ".dataloader-svc" / "index").glob("*.agreement"))


def test_another_decision_is_another_job_and_says_which_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = job(tmp_path)
    before = load_checked(path)
    monkeypatch.setattr(preflight, "decide_backend", lambda *_: Decision("tokenizers", "so"))
    after = load_checked(path)
    digests = [read_digest(loaded.config, tmp_path) for loaded in (before, after)]
    assert compare(*digests) == ["tokenizer_backend"]
    # What reads the log later asks nobody: `auto` may have been either.
    asked = load_config(path)
    assert asked.config.tokenizer_backend == "auto"
    assert all(
        made_plans(config_hash(one.config, tmp_path), asked.config, tmp_path) for one in (before, after)
    )


def test_what_costs_come_from_is_looked_at_before_anything_starts(tmp_path: Path) -> None:
    cost = {"llm": {"config": "nowhere.json"}, "encoder": {"function": "costs_missing_of_test:f"}}
    with pytest.raises(ConfigProblems) as caught:
        load_checked(job(tmp_path, strategy={"cost": cost}))
    first, second = str(caught.value).splitlines()[-2:]
    assert "strategy.cost.llm.config: " in first
    assert "nowhere.json can't be read" in first
    assert "strategy.cost.encoder.function: costs_missing_of_test can't be imported" in second
