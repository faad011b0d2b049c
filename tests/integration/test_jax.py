"""Batches in JAX: the example trains, and what is narrowed is checked."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer

from dataloader_client.integrations.jax import iter_numpy
from real_job import REPO, environment, job_values, write_config


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs jax (extra `integrations`)")
def test_the_example_trains(data: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "job.yaml", job_values(data, layout="padded"))
    tokenizer = Tokenizer.from_file(str(data / "tokenizer" / "tokenizer.json"))
    done = subprocess.run(
        [
            sys.executable,
            REPO / "examples/jax/train.py",
            config,
            "--vocab-size",
            str(tokenizer.get_vocab_size()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(JAX_PLATFORMS="cpu"),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    losses = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    assert len(losses) == 4
    assert losses[-1] < losses[0]


def test_int64_becomes_int32_where_it_fits() -> None:
    small = SimpleNamespace(numpy={"labels": np.array([-100, 7]), "loss_weight": np.ones(2, np.float32)})
    ((batch, arrays),) = iter_numpy([small])
    assert batch is small
    assert {name: array.dtype.name for name, array in arrays.items()} == {
        "labels": "int32",
        "loss_weight": "float32",
    }
    assert arrays["labels"].tolist() == [-100, 7]
    large = SimpleNamespace(numpy={"labels": np.array([2**31])})
    with pytest.raises(OverflowError, match="labels has values beyond int32"):
        list(iter_numpy([large]))
    ((_, kept),) = iter_numpy([large], narrow=False)
    assert kept["labels"] is large.numpy["labels"]
