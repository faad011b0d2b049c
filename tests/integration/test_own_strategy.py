"""A job whose strategy is the function of a user: served, explained, refused where it breaks a promise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dataloader_client import DataServiceLoader, Mesh
from real_job import job_values, run_cli, serve, write_config

CODE = """\
import numpy as np
from dataloader_balancers.strategy import Strategy

def backwards(costs, num_ranks, per_rank=None):
    return (num_ranks - 1 - np.arange(len(costs)) % num_ranks).astype(np.int32)

def one_each(lengths, num_sequences, capacity, priority=None, costs=None, *, limits=()):
    order = np.argsort(-np.asarray(priority), kind="stable")[:num_sequences]
    result = np.full(len(lengths), -1)
    result[order] = np.arange(len(order))
    return result

def strategy():
    return Strategy().mix(overdraw=0.0).pack(one_each).distribute("dp").balance(backwards)

def crowded(costs, num_ranks, per_rank=None):
    return np.zeros(len(costs), np.int32)
"""
SEQUENCES = 8


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own_plan.py").write_text(CODE)
    return tmp_path


def test_every_process_follows_it_and_explain_shows_it(data: Path, folder: Path) -> None:
    values = job_values(data, strategy={"function": "own_plan:strategy"})
    config = write_config(folder / "mixture.yaml", values)
    with serve(config) as served, DataServiceLoader(served.address, mesh=Mesh(dp=2), rank=0) as loader:
        documents = [len(batch.manifest) for batch in loader.read(0)]
    assert documents == [1] * (SEQUENCES // 2)  # the packer leaves each document by itself
    result = run_cli("explain", config, "--step", 0, "--mesh", "dp=2", "--json")
    assert result.returncode == 0, result.stderr
    explained = json.loads(result.stdout)
    assert [len(sequence["documents"]) for sequence in explained["sequences"]] == [1] * SEQUENCES
    texts = [step["text"] for step in explained["strategy"]]
    assert texts[2:5] == [
        "pack(own_plan:one_each, 8 sequences, 256 tokens each)",
        "distribute(dp)",
        "balance(own_plan:backwards, equal counts)",
    ]


def test_check_tells_what_a_function_gets_wrong(data: Path, folder: Path) -> None:
    values = job_values(data, strategy={"balance": "own_plan:crowded"})
    config = write_config(folder / "mixture.yaml", values)
    result = run_cli("check", config)
    assert result.returncode == 1
    line = next(n for n, text in enumerate(config.read_text().splitlines(), 1) if "balance:" in text)
    found = f"{config}:{line}: strategy.balance: own_plan:crowded put 8 items on rank 0; at most 2 a rank"
    assert found in result.stdout + result.stderr
