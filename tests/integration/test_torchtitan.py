"""torchtitan's loop, optimizers and checkpoints: the example trains, is killed, resumes on other ranks.

Needs torchtitan 0.3, whose requirements do not agree with those of `stores`: install it with --no-deps, and
dill, tyro, docstring_parser and spmd_types.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from dataloader_client.errors import StateMismatchError
from real_job import REPO, Served, serve, text_values, torchrun, write_config

pytest.importorskip("torchtitan", reason="needs torchtitan (see the top of this file)")

EXAMPLE = REPO / "examples/torchtitan/train.py"
SEQ_LEN = 256


@pytest.fixture(scope="module")
def served(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    values = text_values(data) | {"layout": "padded"}
    with serve(write_config(tmp_path_factory.mktemp("job") / "job.yaml", values)) as served:
        yield served


KILLED_IN_THE_MIDDLE = """
import os, signal, sys
sys.path.insert(0, {folder!r})
import train

def step(self, batches, trained=train.Trainer.train_step):
    if self.step == 4 and os.environ["RANK"] == "1":
        next(batches)
        os.kill(os.getpid(), signal.SIGKILL)
    return trained(self, batches)

train.Trainer.train_step = step
train.main()
"""


def run(
    served: Served, data: Path, out: Path, *, program: Path = EXAMPLE, ranks: int = 1, steps: int = 4
) -> subprocess.CompletedProcess[str]:
    options = {
        "--address": served.address,
        "--out": out,
        "--vocab-size": Tokenizer.from_file(str(data / "tokenizer" / "tokenizer.json")).get_vocab_size(),
        "--seq-len": SEQ_LEN,
        "--steps": steps,
    }
    return torchrun(program, ranks=ranks, options=options)


def train(served: Served, data: Path, out: Path, **options: Any) -> dict[str, Any]:
    """Run the example: the losses of this run's steps, and the loader's state."""
    done = run(served, data, out, **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_killed_on_two_ranks_in_the_middle_of_a_step_one_goes_on_with_the_same_batches(
    served: Served, data: Path, tmp_path: Path
) -> None:
    alone = train(served, data, tmp_path / "alone")
    assert len(alone["losses"]) == 4
    assert alone["losses"][3] < alone["losses"][0]
    program = tmp_path / "killed.py"
    program.write_text(KILLED_IN_THE_MIDDLE.format(folder=str(EXAMPLE.parent)))
    killed = run(served, data, tmp_path / "out", program=program, ranks=2)
    assert "Signal 9 (SIGKILL)" in killed.stderr, killed.stderr
    resumed = train(served, data, tmp_path / "out")
    assert resumed["losses"] == pytest.approx(alone["losses"][3:], rel=1e-4)
    assert json.loads(resumed["state"]["json"])["service"] == json.loads(alone["state"]["json"])["service"]


PEERS = """
import json, sys
import torch.distributed as dist
from dataloader_client.integrations.torchtitan import ServiceDataLoader

dist.init_process_group("gloo")
made = ServiceDataLoader.Config(address=sys.argv[sys.argv.index("--address") + 1]).build(
    tokenizer=None, dp_world_size=2, dp_rank=dist.get_rank() // 2, seq_len=256, local_batch_size=2
)
inputs, _ = next(iter(made))
rows = [None] * dist.get_world_size()
dist.all_gather_object(rows, inputs["input"].tolist())
if dist.get_rank() == 0:
    print(json.dumps(rows))
made.close()
dist.destroy_process_group()
"""


def test_ranks_with_one_place_on_dp_are_given_the_same_rows(
    served: Served, data: Path, tmp_path: Path
) -> None:
    program = tmp_path / "peers.py"
    program.write_text(PEERS)
    rows = train(served, data, tmp_path, program=program, ranks=4)
    assert rows[0] == rows[1] != rows[2] == rows[3]


def loader(served: Served, **changes: Any) -> Any:
    from dataloader_client.integrations.torchtitan import ServiceDataLoader

    config = ServiceDataLoader.Config(address=served.address, dataset=changes.pop("dataset", ""))
    settings = {"dp_world_size": 1, "dp_rank": 0, "seq_len": SEQ_LEN, "local_batch_size": 2} | changes
    return config.build(tokenizer=None, **settings)


def test_is_what_torchtitan_takes(served: Served) -> None:
    from torch.distributed.checkpoint.stateful import Stateful
    from torchtitan.components.dataloader import BaseDataLoader

    made = loader(served, snapshot_every_n_steps=8)
    assert isinstance(made, BaseDataLoader)
    assert isinstance(made, Stateful)
    inputs, labels = next(iter(made))
    assert {name: tuple(tensor.shape) for name, tensor in inputs.items()} == {
        "input": (2, SEQ_LEN),
        "positions": (2, SEQ_LEN),
    }
    inside = inputs["positions"][:, 1:] > 0  # of a document, where the label is the next token
    same = labels[:, :-1] == inputs["input"][:, 1:]
    assert (same | (labels[:, :-1] == -100))[inside].all()
    assert same[inside].float().mean() > 0.5
    made.close()


def test_refuses_what_would_train_on_other_data_or_steps(served: Served) -> None:
    with pytest.raises(ValueError, match="dataset='c4'.*under `sources`"):
        loader(served, dataset="c4")
    for changes, message in (
        ({"local_batch_size": 4}, r"is \(2, 256\), and training.local_batch_size and seq_len are \(4, 256\)"),
        (
            {"snapshot_every_n_steps": 6},
            "has 4 microbatches on a rank .* set training.global_batch_size to 8",
        ),
    ):
        made = loader(served, **changes)
        with pytest.raises(ValueError, match=message):
            next(iter(made))
        made.close()
    made = loader(served)
    next(iter(made))
    with pytest.raises(StateMismatchError, match="has 4 microbatches on a rank"):
        made.state_dict()
    made.close()
