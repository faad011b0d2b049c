"""A strategy as a list or a function sets the fields of `strategy`; errors have their line."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from dataloader_balancers import BALANCERS, PACKERS
from dataloader_svc.config.digest import config_hash
from dataloader_svc.config.load import load_config
from dataloader_svc.config.methods import known_balancer, known_packer
from dataloader_svc.config.schema import Config
from dataloader_svc.errors import ConfigError, ConfigProblems

JOB = """\
job: steps
tokenizer: t.json
sequence_length: 64
global_batch: {sequences: 8}
sources: {a: {format: jsonl, path: a.jsonl, text: text}}
mixture: {schedule: [{step: 0, a: 1}]}
"""

CODE = """\
import numpy as np
from dataloader_balancers import LlmCost
from dataloader_balancers.strategy import Strategy

def alone(lengths, num_sequences, capacity, priority=None, costs=None, *, limits=()):
    index = np.arange(len(lengths))
    return np.where(index < num_sequences, index, -1)

def turns(costs, num_ranks, per_rank=None):
    return np.arange(len(costs)) % num_ranks

def wrong(costs, num_ranks, per_rank=None):
    return np.zeros(len(costs), int)

def squares(lengths):
    return lengths.astype(float) ** 2

def strategy():
    return Strategy().cost(squares).pack(alone).distribute("dp", 2).balance(turns).split("cp", "cheaper")

def relaxed():
    return Strategy(mode="relaxed").distribute()

def sized():
    return Strategy().pack("best_fit", capacity=9).distribute()

def inner():
    return Strategy().distribute().balance(lambda costs, *_: np.arange(len(costs)) % 4)

def nothing():
    return None

def broken():
    raise KeyError("oh")

def windowed():
    return Strategy().cost(LlmCost(1.0, 1.0, ((4, 1.0),))).pack().distribute()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_strategy", raising=False)
    for registry, name in ((PACKERS, "alone"), (BALANCERS, "turns")):
        monkeypatch.setitem(registry, f"own_strategy:{name}", None)
        monkeypatch.delitem(registry, f"own_strategy:{name}")
    (tmp_path / "own_strategy.py").write_text(CODE)
    return tmp_path


def load(folder: Path, strategy: str) -> Config:
    path = folder / "m.yaml"
    path.write_text(f"{JOB}strategy:\n{strategy}")
    return load_config(path).config


def problems(folder: Path, strategy: str) -> list[str]:
    with pytest.raises(ConfigProblems) as caught:
        load(folder, strategy)
    return [line.removeprefix(f"{folder / 'm.yaml'}:") for line in caught.value.problems]


def test_a_list_sets_the_fields(folder: Path) -> None:
    text = (
        "  steps:\n    - mix: {overdraw: 0.3}\n    - cost: {llm: {linear: 2, quadratic: 1}, encoder: 3}\n"
        "    - pack: first_fit\n    - distribute: {group_size: 2}\n    - balance: snake\n"
        "    - split: cheaper\n"
        "    - broadcast_at: [tp, pp]\n"
    )
    fields = load(folder, text).strategy
    assert (fields.pack, fields.overdraw, fields.balance) == ("first_fit", 0.3, "snake")
    assert (fields.group_size, fields.context_parallel) == (2, "cheaper")
    assert (fields.cost.llm.linear, fields.cost.encoder.patches) == (2, 3)


def test_a_list_without_balance_keeps_the_order_of_arrival(folder: Path) -> None:
    assert load(folder, "  steps: [pack, distribute]\n").strategy.balance == "arrival"
    assert load(folder, "  steps: [pack, distribute, balance]\n").strategy.balance == "lpt"


def test_a_job_without_either_is_as_it_was() -> None:
    values = yaml.safe_load(JOB)
    plain = Config.model_validate(values)
    assert plain.strategy.steps == []
    listed = ["mix", "pack", "distribute", {"balance": "lpt"}, "split"]
    same = Config.model_validate(values | {"strategy": {"steps": listed}})
    assert config_hash(plain, Path()) == config_hash(same, Path())


def test_roles_are_told_what_was_read(folder: Path) -> None:
    for text in ("  function: own_strategy:strategy\n", "  steps: [pack, distribute, {cost: 8b}]\n"):
        config = load(folder, text)
        assert Config.model_validate(config.model_dump(mode="json")) == config


def test_a_function_says_the_fields(folder: Path) -> None:
    fields = load(folder, "  function: own_strategy:strategy\n  calibrate: true\n").strategy
    assert (fields.pack, fields.balance) == ("own_strategy:alone", "own_strategy:turns")
    assert (fields.group_size, fields.context_parallel, fields.calibrate) == (2, "cheaper", True)
    assert fields.cost.llm.function == "own_strategy:squares"


def test_other_code_of_a_packer_makes_other_plans(folder: Path) -> None:
    config = load(folder, "  pack: own_strategy:alone\n")
    before = config_hash(config, folder)
    (folder / "own_strategy.py").write_text(CODE + "\n# changed\n")
    assert config_hash(config, folder) != before


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "  steps:\n    - pack\n    - {distribute: dq}\n",
            "10: strategy.steps.1: distribute: unknown axis 'dq'",
        ),
        ("  steps:\n    - pack\n    - stir\n", "10: strategy.steps.1: unknown primitive 'stir'"),
        (
            "  steps:\n    - pack\n    - balance\n",
            "10: strategy.steps.1: balance can't come behind pack(best_fit)",
        ),
        (
            "  steps:\n    - distribute\n    - pack\n",
            "10: strategy.steps.1: pack can't come behind distribute(dp)",
        ),
        ("  steps: [{pack: balancd}, distribute]\n", "8: strategy.steps.0: pack: unknown packer 'balancd'"),
        ("  steps: [7]\n", "8: strategy.steps.0: an entry is one primitive"),
        ("  steps: [pack]\n", "8: strategy.steps: work is spread by `distribute`, which the list lacks"),
        ("  steps: [distribute]\n", "8: strategy.steps: sequences are made by `pack`, which the list lacks"),
        ("  steps: [{mix: {a: 1}}]\n", "8: strategy.steps.0: mix: unknown argument 'a'"),
        (
            "  steps: [{mix: {weights: {a: 1}}}]\n",
            "8: strategy.steps.0: mix: weights is {'a': 1}; the job's `mix",
        ),
        ("  steps: [{pack: {capacity: 9}}]\n", "8: strategy.steps.0: pack: capacity is 9; the job's `seq"),
        (
            "  steps: [{distribute: cp}]\n",
            "8: strategy.steps.0: distribute: axis is 'cp'; the service spreads",
        ),
        ("  steps: [distribute, {balance: {caps: {tokens: 9}}}]\n", "8: strategy.steps.1: balance: caps is"),
        (
            "  steps: [distribute, {balance: {counts: some}}]\n",
            "8: strategy.steps.1: balance: counts is 'some'; known: equal, any",
        ),
        (
            "  steps: [distribute, {broadcast_at: cp}]\n",
            "8: strategy.steps.1: broadcast_at: cp ranks have slices",
        ),
        ("  steps: [pack, distribute, {cost: {llm: 9b}}]\n", "strategy.cost.llm.model: unknown model '9b'"),
        (
            "  steps: [pack, distribute, {mix: {overdraw: 5}}]\n",
            "8: strategy.steps.2: mix: overdraw is 5; a share from 0 to 1",
        ),
        (
            "  steps: [pack, distribute]\n  balance: lpt\n",
            "strategy: balance is 'lpt' beside steps, where it is 'arr",
        ),
        ("  steps: pack\n", "8: strategy.steps: input should be a valid list"),
        ("  function: own_strategy\n", "8: strategy.function: expected MODULE:FUNCTION"),
        (
            "  function: own_strategy:strategi\n",
            "8: strategy.function: .* has no function 'strategi'.*did you mean",
        ),
        ("  function: no_such:strategy\n", "8: strategy.function: no_such can't be imported"),
        (
            "  function: own_strategy:nothing\n",
            "8: strategy.function: own_strategy:nothing returned NoneType; exp",
        ),
        (
            "  function: own_strategy:broken\n",
            "8: strategy.function: own_strategy:broken failed: KeyError: 'oh' ",
        ),
        (
            "  function: own_strategy:relaxed\n",
            "8: strategy.function: own_strategy:relaxed: its mode is relaxed",
        ),
        (
            "  function: own_strategy:sized\n",
            "8: strategy.function: own_strategy:sized: pack: capacity is 9; the",
        ),
        (
            "  function: own_strategy:inner\n",
            "8: strategy.function: .*define the function at the top of a module",
        ),
        (
            "  function: own_strategy:windowed\n",
            "8: strategy.function: own_strategy:windowed: cost: .*no plain form",
        ),
        (
            "  function: own_strategy:strategy\n  pack: balanced\n",
            "8: strategy.function: pack is given beside it: keep one",
        ),
        ("  pack: 'own_strategy:'\n", "8: strategy.pack: expected MODULE:FUNCTION"),
    ],
)
def test_what_is_wrong_is_told_once_with_its_line(folder: Path, text: str, found: str) -> None:
    (line,) = problems(folder, text)
    assert re.search(found if ".*" in found else re.escape(found), line), line


def test_a_function_that_was_never_asked_is_no_strategy() -> None:
    values: dict[str, Any] = yaml.safe_load(JOB) | {"strategy": {"function": "mod:name"}}
    with pytest.raises(ValidationError, match="mod:name has not been asked"):
        Config.model_validate(values)


def test_methods_by_import_path(folder: Path) -> None:
    assert known_packer("own_strategy:alone", folder) in PACKERS
    assert known_balancer("own_strategy:turns", folder) in BALANCERS
    assert PACKERS["own_strategy:alone"]([3, 4], 1, 8).tolist() == [0, -1]
    assert known_balancer("both", folder) == "both"
    with pytest.raises(ConfigError, match="strategy.balance: own_strategy:wrong put 8 items on rank 0"):
        known_balancer("own_strategy:wrong", folder)
    with pytest.raises(ConfigError, match="strategy.pack: .* has no function 'alon'"):
        known_packer("own_strategy:alon", folder)
    with pytest.raises(
        ConfigError, match="strategy.pack: unknown packer 'best_fti'.*did you mean 'best_fit'"
    ):
        known_packer("best_fti", folder)


def test_what_a_function_gets_wrong_later_is_the_configurations_fault(folder: Path) -> None:
    (folder / "own_strategy.py").write_text(
        CODE + "def late(lengths, *_, **__):\n    return np.where(np.asarray(lengths) == 9, 0, -1)\n"
    )
    packer = PACKERS[known_packer("own_strategy:late", folder)]
    with pytest.raises(ConfigError, match="strategy.pack: own_strategy:late put 18 tokens into sequence 0"):
        packer([9, 9], 1, 10)
    del PACKERS["own_strategy:late"]


def test_a_list_limits_what_a_sequence_holds(folder: Path) -> None:
    config = load(folder, "  steps: [{pack: {limits: {patches: 4096}}}, distribute]\n")
    assert config.strategy.limits.given == {"patches": 4096}
    assert Config.model_validate(config.model_dump(mode="json")) == config
    assert config_hash(config, folder) != config_hash(load(folder, "  steps: [pack, distribute]\n"), folder)
    (problem,) = problems(folder, "  steps: [{pack: {limits: {pictures: 3}}}, distribute]\n")
    assert "limits has 'pictures'; the service counts patches, frames" in problem


def test_where_documents_are_cut_anywhere_media_have_no_limit(folder: Path) -> None:
    (problem,) = problems(folder, "  pack: concatenate\n  limits: {patches: 4096}\n")
    assert "concatenate caps sequences by tokens alone" in problem
