"""Trainer and Accelerate of Hugging Face: the example trains, resumes, has on two ranks the loss of one."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from dataloader_client import DataServiceLoader
from dataloader_client.errors import DataServiceError, MeshMismatchError
from dataloader_client.mesh import Mesh
from reading import fingerprint, take_step
from real_job import REPO, Served, serve, text_values, torchrun, write_config

pytest.importorskip("accelerate", reason="needs accelerate (extra `integrations`)")
transformers = pytest.importorskip("transformers", reason="needs transformers (extra `integrations`)")

EXAMPLE = REPO / "examples/huggingface/train.py"


@pytest.fixture(scope="module")
def served(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(write_config(tmp_path_factory.mktemp("job") / "job.yaml", text_values(data))) as served:
        yield served


def vocab_size(data: Path) -> int:
    return Tokenizer.from_file(str(data / "tokenizer" / "tokenizer.json")).get_vocab_size()


def train(served: Served, data: Path, out: Path, *, ranks: int = 1) -> dict[int, float]:
    """Run the example up to step 4; the losses by step, from 1."""
    options = {
        "--address": served.address,
        "--out": out,
        "--vocab-size": vocab_size(data),
        "--microbatches": 4 // ranks,
    }
    done = torchrun(EXAMPLE, "--cpu", ranks=ranks if ranks > 1 else None, options=options)
    assert done.returncode == 0, done.stderr
    losses = json.loads(done.stdout.splitlines()[-1])
    return {int(step): loss for step, loss in losses.items()}


@pytest.fixture(scope="module")
def alone(
    served: Served, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[int, float]]:
    out = tmp_path_factory.mktemp("alone")
    return out, train(served, data, out)


def test_the_example_trains_on_the_weighted_mean_of_each_document(
    served: Served, data: Path, alone: tuple[Path, dict[int, float]]
) -> None:
    _, losses = alone
    assert sorted(losses) == [1, 2, 3, 4]
    assert losses[4] < losses[1]
    # The first loss again, one document at a time: packed documents have not seen each other.
    transformers.set_seed(17)
    model = example_model(vocab_size(data)).eval()
    total = 0.0
    with DataServiceLoader(served.address) as loader, torch.no_grad():
        batches = take_step(loader)
        for batch in batches:
            bounds = batch.cu_seqlens.tolist()
            for a, b in zip(bounds, bounds[1:], strict=False):
                logits = model(input_ids=batch.input_ids[None, a:b], use_cache=False).logits[0]
                wanted = batch.labels[a:b] >= 0
                logp = logits.log_softmax(-1)[wanted].gather(1, batch.labels[a:b][wanted][:, None])[:, 0]
                total -= float((logp * batch.loss_weight[a:b][wanted]).sum())
    assert losses[1] == pytest.approx(total / batches[0].loss_weight_sum, rel=1e-4)


def example_model(size: int) -> Any:
    sys.path.insert(0, str(EXAMPLE.parent))
    try:
        import train as example
    finally:
        sys.path.remove(str(EXAMPLE.parent))
        sys.modules.pop("train", None)
    return example.tiny_llama(size)


def test_resumes_where_the_checkpoint_was(
    served: Served, data: Path, alone: tuple[Path, dict[int, float]], tmp_path: Path
) -> None:
    out, losses = alone
    shutil.copytree(out / "checkpoint-2", tmp_path / "checkpoint-2")
    assert train(served, data, tmp_path) == pytest.approx(losses, rel=1e-5)  # 1 and 2 are in the checkpoint
    states = [
        json.loads((folder / "checkpoint-4/trainer_state.json").read_text())["stateful_callbacks"]
        for folder in (out, tmp_path)
    ]
    assert states[0]["DataServiceLoader"] == states[1]["DataServiceLoader"]


def test_two_ranks_have_the_loss_of_one(
    served: Served, data: Path, alone: tuple[Path, dict[int, float]], tmp_path: Path
) -> None:
    assert train(served, data, tmp_path, ranks=2) == pytest.approx(alone[1], rel=2e-3)


def test_accelerate_keeps_the_loader_and_its_state(served: Served, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    with DataServiceLoader(served.address) as loader:
        assert accelerator.prepare(loader) is loader
        accelerator.register_for_checkpointing(loader)
        take_step(loader)
        accelerator.save_state(str(tmp_path / "state"))
        expected = fingerprint(take_step(loader))
        take_step(loader)
        accelerator.load_state(str(tmp_path / "state"))
        assert fingerprint(take_step(loader)) == expected


class Loader:
    """Steps of `counts` microbatches, without a service."""

    def __init__(self, counts: list[int], mesh: Mesh | None = None) -> None:
        self.mesh = mesh or Mesh()
        self._batches = [
            SimpleNamespace(step=step, is_last_microbatch=number + 1 == count)
            for step, count in enumerate(counts)
            for number in range(count)
        ]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)

    def state_dict(self) -> dict[str, Any]:
        return {}


def trainer(tmp_path: Path, loader: Loader, **others: Any) -> Any:
    from dataloader_client.integrations.transformers import ServiceTrainer

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=2, gradient_accumulation_steps=2, use_cpu=True, report_to="none"
    )
    return ServiceTrainer(torch.nn.Linear(1, 1), arguments, loader=loader, **others)


def test_refuses_what_would_train_on_other_data(tmp_path: Path) -> None:
    with pytest.raises(MeshMismatchError, match=r"1 data-parallel ranks and the loader mesh .*dp=2"):
        trainer(tmp_path, Loader([2], Mesh(dp=2)))
    with pytest.raises(MeshMismatchError, match="cut once more"):
        trainer(tmp_path, Loader([2], Mesh(cp=2)))
    with pytest.raises(ValueError, match="give no train_dataset"):
        trainer(tmp_path, Loader([2]), train_dataset=[1])
    with pytest.raises(ValueError, match="override ServiceTrainer.compute_loss"):
        trainer(tmp_path, Loader([2]), compute_loss_func=print)
    with pytest.raises(ValueError, match="step 0 has 3 microbatches and gradient_accumulation_steps is 2"):
        trainer(tmp_path, Loader([3])).train()


def test_stops_where_the_data_ends(tmp_path: Path) -> None:
    short = trainer(tmp_path, Loader([]))
    short.train()
    assert short.state.global_step == 0
    assert short.get_batch_samples(iter([]), 2, torch.device("cpu")) == ([], None)
    assert short.control.should_training_stop


def test_refuses_a_checkpoint_of_another_trainer(tmp_path: Path) -> None:
    resumed = trainer(tmp_path, Loader([2]))
    state = transformers.TrainerState(global_step=7)
    with pytest.raises(DataServiceError, match="checkpoint of step 7 has no DataServiceLoader"):
        resumed.callback_handler.on_train_begin(resumed.args, state, resumed.control)


def test_inputs_say_what_they_cannot_do() -> None:
    from dataloader_client.integrations.transformers import causal_lm_inputs

    with pytest.raises(ValueError, match="step 3 has image: pass inputs="):
        causal_lm_inputs(SimpleNamespace(step=3, presence={"image": True, "video": False}))

    class Padded(dict[str, Any]):
        step, presence, numpy = 3, {"image": False}, {"document_ids": np.array([[1, 2]])}

    with pytest.raises(ValueError, match="step 3 has several documents in a padded row"):
        causal_lm_inputs(Padded(attention_mask=1))
