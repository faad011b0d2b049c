"""The example on mixtures that follow losses: it trains on two ranks, and its weights move."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from dataloader_svc.config.load import load_config
from real_job import REPO, environment, serve, text_values, write_config

FOLDER = REPO / "examples" / "adaptive"


def test_its_file_is_a_job_and_names_what_it_explains() -> None:
    adaptive = load_config(FOLDER / "mixture.yaml").config.mixture.adaptive
    assert adaptive is not None
    assert (adaptive.rule, adaptive.every, adaptive.bounds.max_ratio) == ("learning_speed", 20, 1.6)


def test_two_ranks_train_and_the_weights_move(data: Path, tmp_path: Path) -> None:
    references = {"notes": 0.0, "pages": 100.0}  # notes could be learned much better, pages no better
    adaptive = {"rule": "excess_loss", "every": 4, "lead": 8, "options": {"references": references}}
    values = text_values(data)
    values["mixture"] = {**values["mixture"], "adaptive": adaptive}
    config = write_config(tmp_path / "job.yaml", values)
    vocabulary = Tokenizer.from_file(str(data / "tokenizer" / "tokenizer.json")).get_vocab_size()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with serve(config) as served:
        done = subprocess.run(
            [
                *(*command, FOLDER / "train.py", "--address", served.address),
                *("--vocab-size", str(vocabulary), "--steps", "20"),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            env=environment(),
            check=False,
        )
    assert done.returncode == 0, done.stderr
    *steps, last = map(json.loads, done.stdout.splitlines())
    assert [step["step"] for step in steps] == list(range(20))
    assert steps[-1]["losses"]["notes"] < steps[0]["losses"]["notes"]
    at_step, weights = last["weights"][-1]
    assert at_step >= 12
    assert sum(weights.values()) == pytest.approx(1)
    assert weights["notes"] > 0.549, "one decision or more, of 0.05 each"
