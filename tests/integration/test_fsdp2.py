"""FSDP2: the example trains with pictures on some ranks alone, is killed, resumes on other ranks."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.checkpoint as dcp
from tokenizers import Tokenizer
from torch.distributed.checkpoint.api import CheckpointException

from dataloader_client import DataServiceLoader
from dataloader_client.integrations.distributed_checkpoint import LoaderState
from dataloader_svc.testing.tokenizer import IMAGE, VIDEO
from reading import take_step
from real_job import REPO, Served, job_values, serve, torchrun, write_config

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")

EXAMPLE = REPO / "examples/fsdp2/train.py"
STEPS = 4


@pytest.fixture(scope="module")
def served(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    values = job_values(
        data,
        # Few pictures: of the first steps, one has none anywhere, and in another one rank has none.
        mixture={"schedule": [{"step": 0, "notes": 0.5, "pages": 0.49, "photos": 0.01}]},
        global_batch={"sequences": 8, "per_microbatch": 2},
        ensure_modality=True,
    )
    with serve(write_config(tmp_path_factory.mktemp("job") / "job.yaml", values)) as served:
        yield served


def run(
    served: Served, data: Path, out: Path, *, program: Path = EXAMPLE, ranks: int = 1, steps: int = STEPS
) -> subprocess.CompletedProcess[str]:
    """Run `program` with the example's arguments under torchrun, up to step `steps`."""
    tokenizer = Tokenizer.from_file(str(data / "tokenizer" / "tokenizer.json"))
    options = {
        "--address": served.address,
        "--out": out,
        "--steps": steps,
        "--vocab-size": tokenizer.get_vocab_size(),
        "--image-token": tokenizer.token_to_id(IMAGE),
        "--video-token": tokenizer.token_to_id(VIDEO),
    }
    return torchrun(program, ranks=ranks, options=options)


def train(served: Served, data: Path, out: Path, **options: Any) -> list[dict[str, Any]]:
    """Run the example: step, loss and digest of each step of this run."""
    done = run(served, data, out, **options)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_steps_have_all_that_is_hard(served: Served) -> None:
    """What the other tests train on: a step without pictures, and one with pictures on one rank alone."""
    seen = set()
    with contextlib.ExitStack() as stack:
        loaders = [
            stack.enter_context(DataServiceLoader(served.address, dp_rank=rank, dp_size=2))
            for rank in range(2)
        ]
        for _ in range(STEPS):
            steps = [take_step(loader) for loader in loaders]
            seen.add(
                frozenset(
                    rank
                    for rank, batches in enumerate(steps)
                    if any("image_index" in batch and len(batch.numpy["image_index"]) for batch in batches)
                )
            )
    assert frozenset() in seen
    assert {frozenset({0}), frozenset({1})} & seen


KILLED_IN_A_CHECKPOINT = """
import os, runpy, signal, sys
from torch.distributed.checkpoint import FileSystemWriter

def finish(self, metadata, results, finished=FileSystemWriter.finish):
    if self.path.name == "3":
        os.kill(os.getpid(), signal.SIGKILL)
    finished(self, metadata, results)

FileSystemWriter.finish = finish
sys.argv[0] = {example!r}
runpy.run_path({example!r}, run_name="__main__")
"""


def test_killed_in_a_checkpoint_one_rank_goes_on_with_the_batches_of_two(
    served: Served, data: Path, tmp_path: Path
) -> None:
    alone = train(served, data, tmp_path / "alone", ranks=2)
    assert [row["step"] for row in alone] == [0, 1, 2, 3]
    assert alone[3]["loss"] < alone[0]["loss"]
    program = tmp_path / "killed.py"
    program.write_text(KILLED_IN_A_CHECKPOINT.format(example=str(EXAMPLE)))
    killed = run(served, data, tmp_path / "out", program=program, ranks=2)
    assert killed.returncode != 0
    assert "Signal 9 (SIGKILL)" in killed.stderr
    assert not (tmp_path / "out/3/.metadata").exists()
    resumed = train(served, data, tmp_path / "out", ranks=1)
    assert [row["step"] for row in resumed] == [
        2,
        3,
    ]  # the checkpoint after 2 was not whole
    assert [row["digest"] for row in resumed] == [row["digest"] for row in alone[2:]]
    assert [row["loss"] for row in resumed] == pytest.approx([row["loss"] for row in alone[2:]], rel=1e-4)


class Loader:
    """Has a state of its own form, as one that was resumed from a job with other sources."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = dict(state)


def test_the_state_comes_back_whole_where_a_fresh_loader_has_another_form(tmp_path: Path) -> None:
    saved = {"sources": {"old": {"position": 7}, "both": {"position": 3}}, "waiting": [["old", 5]]}
    dcp.save({"data": LoaderState(Loader(saved))}, checkpoint_id=tmp_path, no_dist=True)
    fresh = Loader({"sources": {"both": {"position": 0}, "new": {"position": 0}}, "waiting": []})
    dcp.load({"data": LoaderState(fresh)}, checkpoint_id=tmp_path, no_dist=True)
    assert fresh.state == saved


def test_a_checkpoint_without_the_state_is_refused(tmp_path: Path) -> None:
    dcp.save({"step": 7}, checkpoint_id=tmp_path, no_dist=True)
    with pytest.raises(CheckpointException, match=r"Missing key in checkpoint state_dict: data\.json"):
        dcp.load({"data": LoaderState(Loader({}))}, checkpoint_id=tmp_path, no_dist=True)


def test_why_a_loader_is_not_given_to_it_directly(tmp_path: Path) -> None:
    dcp.save({"data": Loader({"sources": {"old": 7, "both": 3}})}, checkpoint_id=tmp_path, no_dist=True)
    fresh = Loader({"sources": {"both": 0}})
    dcp.load({"data": fresh}, checkpoint_id=tmp_path, no_dist=True)
    assert fresh.state == {"sources": {"both": 3}}  # if this fails, torch has changed, and LoaderState can go
