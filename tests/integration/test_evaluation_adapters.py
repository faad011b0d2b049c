"""Held-out loss in the trainers of other libraries: that of all tokens at once, on any number of ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from torch.nn import functional

from dataloader_client import DataServiceLoader
from dataloader_client.errors import MeshMismatchError
from dataloader_client.mesh import Mesh
from real_job import REPO, Served, serve, text_values, torchrun, write_config


@pytest.fixture(scope="module")
def served(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    values = text_values(data)
    values["sources"]["notes"]["extent"] = 256
    values["evaluation"] = {"held_out": {"notes": 0.3}}
    with serve(write_config(tmp_path_factory.mktemp("job") / "job.yaml", values)) as served:
        yield served


def example(
    served: Served, data: Path, name: str, out: Path, *, ranks: int, flags: Sequence[object]
) -> list[str]:
    """What the example prints that trains two steps and evaluates."""
    out.mkdir()
    options = {
        "--address": served.address,
        "--out": out,
        "--vocab-size": Tokenizer.from_file(str(data / "tokenizer" / "tokenizer.json")).get_vocab_size(),
        "--microbatches": 4 // ranks,
        "--steps": 2,
    }
    program = REPO / "examples" / name / "train.py"
    done = torchrun(program, "--evaluate", *flags, ranks=ranks if ranks > 1 else None, options=options)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_hugging_face(served: Served, data: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers (extra `integrations`)")
    pytest.importorskip("accelerate", reason="needs accelerate (extra `integrations`)")
    found = []
    for ranks in (1, 2):
        lines = example(served, data, "huggingface", tmp_path / str(ranks), ranks=ranks, flags=["--cpu"])
        losses = json.loads(lines[-2])
        assert list(losses) == ["2"]
        found.append(losses["2"])
    assert found[1] == pytest.approx(found[0], rel=2e-3)  # gradients were added in another order
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "1" / "checkpoint-2").eval()
    total = weight = 0.0
    with DataServiceLoader(served.address, split="eval") as loader, torch.no_grad():
        for batch in loader:  # one document at a time
            bounds = batch.cu_seqlens.tolist()
            for a, b in zip(bounds, bounds[1:], strict=False):
                logits = model(input_ids=batch.input_ids[None, a:b], use_cache=False).logits[0]
                losses = functional.cross_entropy(logits, batch.labels[a:b], reduction="none")
                total += float((losses * batch.loss_weight[a:b]).sum())
                weight += float(batch.loss_weight[a:b].sum())
    assert found[0] == pytest.approx(total / weight, rel=1e-4)


def test_lightning(served: Served, data: Path, tmp_path: Path) -> None:
    pytest.importorskip("lightning.pytorch", reason="needs lightning (extra `integrations`)")
    found = []
    for ranks in (1, 2):
        lines = example(
            served, data, "lightning", tmp_path / str(ranks), ranks=ranks, flags=["--ranks", ranks]
        )
        found.append(json.loads(lines[-1]))
    assert found[1]["held_out"] == pytest.approx(found[0]["held_out"], rel=2e-3)
    weights = torch.load(tmp_path / "1" / "last.ckpt", weights_only=False)["state_dict"]
    total = weight = 0.0
    with DataServiceLoader(served.address, split="eval") as loader:
        for batch in loader:
            embedded = functional.embedding(batch.input_ids, weights["model.0.weight"])
            logits = functional.linear(embedded, weights["model.1.weight"], weights["model.1.bias"])
            losses = functional.cross_entropy(logits, batch.labels, reduction="none")
            total += float((losses * batch.loss_weight).sum())
            weight += float(batch.loss_weight.sum())
    assert found[0]["held_out"] == pytest.approx(total / weight, rel=1e-4)


def loader(mesh: Mesh | None = None) -> Any:
    return SimpleNamespace(mesh=mesh or Mesh())


def test_hugging_face_refuses_what_would_be_another_loss(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers (extra `integrations`)")
    pytest.importorskip("accelerate", reason="needs accelerate (extra `integrations`)")
    from dataloader_client.integrations.transformers import ServiceTrainer

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=2, use_cpu=True, report_to="none"
    )

    def trainer(**others: Any) -> None:
        ServiceTrainer(torch.nn.Linear(1, 1), arguments, loader=loader(), **others)

    with pytest.raises(MeshMismatchError, match=r"make both with the same mesh"):
        trainer(eval_loader=loader(Mesh(dp=2)))
    with pytest.raises(ValueError, match="eval_dataset and eval_loader: give one"):
        trainer(eval_loader=loader(), eval_dataset=[1])
    with pytest.raises(ValueError, match="compute_metrics is given predictions"):
        trainer(eval_loader=loader(), compute_metrics=print)


def test_lightning_refuses_ranks_that_are_not_the_trainers() -> None:
    pytest.importorskip("lightning.pytorch", reason="needs lightning (extra `integrations`)")
    from dataloader_client.integrations.lightning import ServiceData

    fitted: Any = SimpleNamespace(world_size=1, val_dataloaders=[object(), loader(Mesh(dp=2))])
    with pytest.raises(MeshMismatchError, match="Trainer has 1 ranks and the loader mesh"):
        ServiceData(loader()).on_validation_start(fitted, fitted)
