"""Lightning's Trainer: the example trains, is killed and resumes, has on two ranks the losses of one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from dataloader_client.errors import DataServiceError, MeshMismatchError
from dataloader_client.mesh import Mesh
from real_job import REPO, Served, environment, serve, text_values, write_config

pl = pytest.importorskip("lightning.pytorch", reason="needs lightning (extra `integrations`)")

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning", "ignore::UserWarning:lightning")

EXAMPLE = REPO / "examples/lightning/train.py"


@pytest.fixture(scope="module")
def served(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(write_config(tmp_path_factory.mktemp("job") / "job.yaml", text_values(data))) as served:
        yield served


def run(
    served: Served, data: Path, out: Path, *program: str, ranks: int = 1, steps: int = 4
) -> subprocess.CompletedProcess[str]:
    """Run `program` with the example's arguments, up to step `steps`."""
    options = {
        "--address": served.address,
        "--out": out,
        "--vocab-size": Tokenizer.from_file(str(data / "tokenizer" / "tokenizer.json")).get_vocab_size(),
        "--microbatches": 4 // ranks,
        "--ranks": ranks,
        "--steps": steps,
    }
    return subprocess.run(
        [sys.executable, *program, *[str(word) for option in options.items() for word in option]],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=EXAMPLE.parent,
        env=environment(GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1"),
        check=False,
    )


def train(served: Served, data: Path, out: Path, *, ranks: int = 1, steps: int = 4) -> dict[str, Any]:
    """Run the example: the losses of this run's steps, and the loader's state."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    done = run(served, data, out, *launch, str(EXAMPLE), ranks=ranks, steps=steps)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def alone(served: Served, data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return train(served, data, tmp_path_factory.mktemp("alone"))


KILL_IN_THE_MIDDLE = """
import os, signal
import train

def training_step(self, batch, number, trained=train.Bigram.training_step):
    if (self.trainer.global_step, batch.microbatch) == (3, 1):
        os.kill(os.getpid(), signal.SIGKILL)
    return trained(self, batch, number)

train.Bigram.training_step = training_step
train.main()
"""


def test_killed_in_the_middle_of_a_step_it_goes_on_with_the_same_batches(
    served: Served, data: Path, alone: dict[str, Any], tmp_path: Path
) -> None:
    assert len(alone["losses"]) == 4
    assert alone["losses"][3] < alone["losses"][0]
    killed = run(served, data, tmp_path, "-c", KILL_IN_THE_MIDDLE)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = train(served, data, tmp_path)
    assert resumed["losses"] == pytest.approx(alone["losses"][3:], rel=1e-6)
    assert resumed["state"] == alone["state"]


def test_two_ranks_have_the_losses_of_one_and_one_goes_on_for_two(
    served: Served, data: Path, alone: dict[str, Any], tmp_path: Path
) -> None:
    both = train(served, data, tmp_path, ranks=2, steps=3)
    assert both["losses"] == pytest.approx(alone["losses"][:3], rel=1e-4)
    resumed = train(served, data, tmp_path)
    assert resumed["losses"] == pytest.approx(alone["losses"][3:], rel=1e-4)
    assert resumed["state"]["service"] == alone["state"]["service"]


class Loader:
    """Steps of `counts` microbatches, without a service; its state is the number of batches handed out."""

    def __init__(self, counts: list[int], mesh: Mesh | None = None) -> None:
        self.mesh = mesh or Mesh()
        self.handed_out = 0
        self._batches = [
            SimpleNamespace(
                step=step, microbatch=number, num_microbatches=count, is_last_microbatch=number + 1 == count
            )
            for step, count in enumerate(counts)
            for number in range(count)
        ]

    def __iter__(self) -> Iterator[Any]:
        while self.handed_out < len(self._batches):
            self.handed_out += 1
            yield self._batches[self.handed_out - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"handed_out": self.handed_out}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.handed_out = state["handed_out"]


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def training_step(self, _batch: Any, _number: int) -> torch.Tensor:
        return self.weight * 1.0

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(
    loader: Loader, *, others: Sequence[Any] = (), ckpt_path: Path | None = None, **settings: Any
) -> tuple[Any, Any]:
    from dataloader_client.integrations.lightning import ServiceData

    data = ServiceData(loader)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = pl.Trainer(
        accelerator="cpu",
        logger=False,
        callbacks=[data, *others],
        accumulate_grad_batches=2,
        **quiet,
        **settings,
    )
    trainer.fit(Module(), data, ckpt_path=ckpt_path)
    return trainer, data


def test_the_state_is_that_of_what_was_trained() -> None:
    loader = Loader([2, 2, 2])
    _, data = fit(loader, max_steps=2)
    assert loader.handed_out == 5  # one ahead
    assert data.state_dict()["loader"] == {"handed_out": 4}


def test_stops_where_the_data_ends() -> None:
    trainer, data = fit(Loader([2, 2]), max_steps=9)
    assert trainer.global_step == 2
    assert data.state_dict()["loader"] == {"handed_out": 4}
    assert fit(Loader([]), max_steps=9)[0].global_step == 0


def test_refuses_what_would_train_on_other_data() -> None:
    with pytest.raises(MeshMismatchError, match=r"Trainer has 1 ranks and the loader mesh .*dp=2"):
        fit(Loader([2], Mesh(dp=2)), max_steps=1)
    with pytest.raises(ValueError, match="step 0 has 3 microbatches and accumulate_grad_batches is 2"):
        fit(Loader([3]), max_steps=1)
    with pytest.raises(ValueError, match="limit_train_batches=3 ends an epoch in the middle of a step"):
        fit(Loader([2, 2]), max_steps=3, limit_train_batches=3)


def test_a_checkpoint_from_the_middle_of_a_step_trains_it_anew(tmp_path: Path) -> None:
    class Saves(pl.Callback):
        def on_train_batch_end(self, trainer: Any, _module: Any, _out: Any, batch: Any, _number: int) -> None:
            if (batch.step, batch.microbatch) == (1, 0):
                trainer.save_checkpoint(tmp_path / "middle.ckpt")

    fit(Loader([2, 2, 2]), max_steps=2, others=[Saves()])
    loader, seen = Loader([2, 2, 2]), Seen()
    trainer, data = fit(loader, max_steps=3, others=[seen], ckpt_path=tmp_path / "middle.ckpt")
    assert seen.batches == [(1, 0, 1), (1, 1, 1), (2, 0, 2), (2, 1, 2)]
    assert trainer.global_step == 3
    assert data.state_dict()["loader"] == {"handed_out": 6}


class Seen(pl.Callback):
    """(step, microbatch, optimizer steps before it) of each batch."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, int]] = []

    def on_train_batch_start(self, trainer: Any, _module: Any, batch: Any, _number: int) -> None:
        self.batches.append((batch.step, batch.microbatch, trainer.global_step))


def test_refuses_a_checkpoint_that_says_nothing_of_the_data() -> None:
    trainer, data = fit(Loader([2]), max_steps=1)
    with pytest.raises(DataServiceError, match="checkpoint of step 7 has no ServiceData among callbacks"):
        data.on_load_checkpoint(trainer, trainer.lightning_module, {"global_step": 7, "callbacks": {}})
