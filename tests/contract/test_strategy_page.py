"""The examples of docs/strategies.md, run: Python as it stands, and each YAML as the strategy of a job."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dataloader_balancers import BALANCERS
from dataloader_balancers.strategy import StrategyError
from dataloader_svc.config.digest import config_hash
from dataloader_svc.config.load import load_config
from dataloader_svc.config.schema import Config
from dataloader_svc.planner.graph import plan_trace, strategy_graph
from dataloader_svc.planner.place import MeshSize, Strategy, place
from dataloader_svc.testing.planning import PlanDriver
from dataloader_svc.testing.scripted_loader import Sample, ScriptedSources

PAGE = (Path(__file__).parents[2] / "docs" / "strategies.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.S)
FILES = dict(re.findall(r"```python file=(\S+)\n(.*?)```", PAGE, re.S))
SHORT, LIST, *OTHERS, FUNCTION, BALANCER = (
    yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
)
JOB: dict[str, Any] = {
    "job": "page",
    "tokenizer": "t.json",
    "sequence_length": 256,
    "global_batch": {"sequences": 16},
    "media_tokens": {"image": 1},
    "sources": {
        "captions": {"format": "webdataset", "path": "c.tar", "text": "txt", "image": "jpg"},
        "web": {"format": "jsonl", "path": "w.jsonl", "text": "text"},
    },
    "mixture": {"schedule": [{"step": 0, "captions": 1, "web": 3}]},
}
PRIMITIVES = ["mix", "cost", "pack", "distribute", "balance", "split", "broadcast_at", "broadcast_at"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With the page's files, whose modules and balancers are forgotten afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
        monkeypatch.delitem(sys.modules, Path(name).stem, raising=False)
    monkeypatch.setitem(BALANCERS, "mine:snake_from_the_dearest", BALANCERS["lpt"])
    monkeypatch.delitem(BALANCERS, "mine:snake_from_the_dearest")
    return tmp_path


def config_of(folder: Path, strategy: dict[str, Any]) -> Config:
    path = folder / "mixture.yaml"
    path.write_text(yaml.safe_dump(JOB | strategy))
    return load_config(path).config


def scripted() -> ScriptedSources:
    rng = np.random.default_rng(5)
    texts = [Sample(int(n)) for n in np.clip(rng.lognormal(4, 1, 600), 1, 256)]
    media = [Sample(int(n) + 16, ((0, 16, 64),)) for n in rng.integers(1, 100, 400)]
    return ScriptedSources({"captions": media, "web": texts}, block=50)


def test_the_python_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in PYTHON:
        exec(compile(block, "strategies.md", "exec"), names)
    out = capsys.readouterr().out
    for primitive in ("mix(", "cost(", "pack(", "distribute(", "balance(", "split(", "broadcast_at("):
        assert f"\n{primitive}" in f"\n{out}"
    assert "balance can't come behind pack(best_fit): distribute says over which ranks; what may: " in out
    assert names["by_rank"].packs_by_rank
    assert names["planned"].readers.sum() == 16
    with pytest.raises(StrategyError, match="strict"):
        names["Strategy"]().distribute("dp").pack("best_fit")


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_what_a_job_may_say_besides(folder: Path, other: dict[str, Any]) -> None:
    config = config_of(folder, other)
    plan = PlanDriver(config, scripted()).run(0)[0]
    placement = place(plan, MeshSize(dp=4), Strategy.of(config, folder))
    real = placement.dp_rank[: len(plan.sequence_offsets) - 1]  # behind them, empty microbatches
    assert len(real) == len(plan.sequence_offsets) - 1
    ranks = config.strategy.ranks
    idle = [] if ranks is None else [rank for rank, speed in enumerate(ranks.llm) if speed == 0]
    assert not set(idle) & set(real.tolist())


def test_the_list_is_the_same_strategy_as_the_fields(folder: Path) -> None:
    short, long = config_of(folder, SHORT), config_of(folder, LIST)
    assert config_hash(short, folder) == config_hash(long, folder)
    assert strategy_graph(short) == strategy_graph(long)
    assert short.strategy.model_dump(exclude={"steps"}) == long.strategy.model_dump(exclude={"steps"})


@pytest.mark.parametrize(
    "strategy", [SHORT, LIST, FUNCTION, BALANCER], ids=["short", "list", "own", "balancer"]
)
def test_a_job_is_planned_by_it(folder: Path, strategy: dict[str, Any]) -> None:
    config = config_of(folder, strategy)
    placing, graph = Strategy.of(config, folder), strategy_graph(config, 0, folder)
    plan = PlanDriver(config, scripted()).run(0)[0]
    mesh = MeshSize(dp=4, cp=2, tp=2)
    placement = place(plan, mesh, placing)
    steps = plan_trace(graph, plan, placement, mesh, placing)
    assert [step.name for step in steps] == PRIMITIVES
    assert [step.text for step in steps] == [str(node) for node in graph.nodes]
    mix, _, pack, _, balance, split, tp, pp = steps
    assert abs(mix.figures["share web"] - 0.75) < 0.05
    assert pack.inputs == mix.outputs == len(plan.pieces) + len(plan.state.waiting)
    assert (pack.outputs, pack.waiting) == (16, len(plan.state.waiting))
    assert pack.figures["fill"] == plan.pieces.tokens / (16 * 256) > 0.97
    assert balance.figures["llm after"] == pytest.approx(placement.metrics["llm_imbalance"], abs=1e-9)
    assert balance.figures["llm before"] == pytest.approx(
        placement.metrics["llm_imbalance_arrival"], abs=1e-9
    )
    assert balance.figures["llm gap"] == pytest.approx(placement.metrics["llm_gap"], abs=1e-9)
    assert balance.figures["encoder floor"] == pytest.approx(placement.metrics["encoder_floor"], abs=1e-9)
    assert split.figures["ranks"] == 2
    assert [(step.inputs, step.outputs) for step in (tp, pp)] == [(16, 8), (8, 8)]


def test_the_strategy_of_ones_own_says_all_that_is_asked(folder: Path) -> None:
    config = config_of(folder, FUNCTION)
    assert config.strategy.balance == "mine:snake_from_the_dearest"
    assert (config.strategy.pack, config.strategy.overdraw) == ("balanced", 0.05)
    assert config.strategy.context_parallel == "per_sequence"
    assert config.strategy.cost.llm.model == "8b"
    assert Config.model_validate(config.model_dump(mode="json")) == config  # as roles are told it
