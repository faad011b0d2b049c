"""What is wrong between fields is found together with what is wrong in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from dataloader_svc.config.cross import cross_problems
from dataloader_svc.config.load import load_config, read_config
from dataloader_svc.config.schema import Config
from dataloader_svc.errors import ConfigProblems


def values(**changes: Any) -> dict[str, Any]:
    return {
        "job": "cross",
        "tokenizer": "tokenizer.json",
        "sequence_length": 64,
        "global_batch": {"sequences": 12, "per_microbatch": 2},
        "sources": {"a": {"format": "jsonl", "path": "a.jsonl", "text": "text"}},
        "mixture": {"schedule": [{"step": 0, "a": 1}]},
    } | changes


def problems(tmp_path: Path, **changes: Any) -> list[str]:
    path = tmp_path / "m.yaml"
    path.write_text(yaml.safe_dump(values(**changes), sort_keys=False))
    with pytest.raises(ConfigProblems) as caught:
        load_config(path)
    return [line.partition(": ")[2] for line in caught.value.problems]


def test_a_good_one_has_none() -> None:
    assert cross_problems(Config.model_validate(values(mesh={"dp": 3, "cp": 2, "tp": 4, "pp": 8}))) == []


def test_a_mesh_that_does_not_divide_the_batch(tmp_path: Path) -> None:
    (line,) = problems(tmp_path, mesh={"dp": 4})
    assert line.startswith("mesh.dp: 4 ranks can't share 6 microbatches")
    assert line.endswith("dp that fits: 1, 2, 3, 6")


def test_many_fitting_meshes_are_listed_with_the_middle_left_out(tmp_path: Path) -> None:
    (line,) = problems(tmp_path, mesh={"dp": 11}, global_batch={"sequences": 5040})
    assert line.endswith("dp that fits: 1, 2, 3, 4, 5, 6, ..., 5040")


def test_a_sequence_that_cp_can_not_cut_in_slices(tmp_path: Path) -> None:
    (line,) = problems(tmp_path, mesh={"cp": 3})
    assert line.startswith("mesh.cp: sequence_length 64 is not a multiple of 2 * cp = 6")
    assert line.endswith("the next that is: 66")


def test_names_of_strategies_and_presets(tmp_path: Path) -> None:
    strategy = {"pack": "best_fti", "balance": "ltp", "cost": {"llm": {"model": "7bb"}}}
    balance, model, pack = sorted(problems(tmp_path, strategy=strategy))
    assert pack.startswith("strategy.pack: unknown packer 'best_fti'; known: ")
    assert pack.endswith("; did you mean 'best_fit'?")
    assert balance.startswith("strategy.balance: unknown balancer 'ltp'; known: ")
    assert balance.endswith("; did you mean 'lpt'?")
    assert model.startswith("strategy.cost.llm.model: unknown model '7bb'; known: ")


def test_a_preset_is_not_asked_for_where_there_are_numbers(tmp_path: Path) -> None:
    strategy = {"cost": {"llm": {"linear": 1.0, "quadratic": 0.5}}}
    assert cross_problems(Config.model_validate(values(strategy=strategy))) == []


def test_fields_and_what_is_between_them_are_told_in_one_pass(tmp_path: Path) -> None:
    found = problems(
        tmp_path, layuot="packed", seed=-1, mesh={"dp": 5}, strategy={"pack": "none", "overdraw": "much"}
    )
    assert [line.partition(":")[0] for line in found] == [
        "layuot",
        "seed",
        "mesh.dp",
        "strategy.pack",
        "strategy.overdraw",
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"sources": {"a": {"format": "jsonl", "path": "a.jsonl"}}},  # without text
        {"mixture": {"schedule": [{"step": 0, "a": -1}]}},
        {"mixture": {"schedule": [{"step": 0, "a": 1}, {"step": 5, "a": 0}]}},
        {"sequence_length": "long"},
        {"global_batch": {"sequences": 4, "tokens": 64}},
    ],
)
def test_nothing_is_said_that_follows_from_another_problem_only(tmp_path: Path, changes: Any) -> None:
    assert len(problems(tmp_path, **changes)) == 1


def test_who_goes_on_looking_gets_what_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(yaml.safe_dump(values(seed="none", job_name="x")))
    loaded, found = read_config(path)
    assert loaded is not None
    assert loaded.config.seed == 0
    assert loaded.config.sources["a"].path == "a.jsonl"
    assert len(found) == 2


def test_an_unset_variable_is_one_problem(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(yaml.safe_dump(values(sequence_length="${LENGTH}", seed="${SEED}")))
    loaded, found = read_config(path, {})
    assert loaded is None
    assert len(found) == 2
    assert all("is not set" in line for line in found)


def test_a_model_that_is_built_directly_is_checked_too() -> None:
    with pytest.raises(ValidationError, match="can't share"):
        Config.model_validate(values(mesh={"dp": 5}))


def test_a_first_name_belongs_to_one_source(tmp_path: Path) -> None:
    source = {"format": "jsonl", "path": "a.jsonl", "text": "text"}
    schedule = {"schedule": [{"step": 0, "a": 1, "b": 1}]}
    sources = {"a": source, "b": {**source, "was": "a"}}
    (line,) = problems(tmp_path, sources=sources, mixture=schedule)
    assert line.startswith("sources.b.was: 'a' is another source of this file")
    sources = {"a": {**source, "was": "old"}, "b": {**source, "was": "old"}}
    (line,) = problems(tmp_path, sources=sources, mixture=schedule)
    assert line.startswith("sources.b.was: 'old' is what 'a' was, too")
    sources = {"a": {**source, "was": "a"}}
    (line,) = problems(tmp_path, sources=sources)
    assert line.startswith("sources.a.was: 'a' is its own name")
