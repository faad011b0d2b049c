"""The loop of torchtitan's trainer on batches of the service, with its optimizers and its checkpoints.

    torchrun --standalone --nproc-per-node 2 examples/torchtitan/train.py --address HOST:PORT --out DIR

torchtitan's own Trainer takes the same `ServiceDataLoader.Config` as `dataloader=` of its config; it needs a
GPU, and this loop does not. Needs torchtitan 0.3. Resumes from its last checkpoint, on any number of ranks.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig

from dataloader_client.integrations.torchtitan import ServiceDataLoader


class Bigram(nn.Module):
    def __init__(self, vocab_size: int, width: int = 16) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocab_size, width)
        self.output = nn.Linear(width, vocab_size)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        first = (positions == 0)[..., None]  # of its document
        return self.output(self.tok_embeddings(tokens) + first)


class Trainer:
    """What of torchtitan's `Trainer` has to do with data, and a model."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.step = 0
        mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),), mesh_dim_names=("fsdp",))
        self.ranks, self.microbatches = mesh.size(), args.global_batch_size // (args.batch_size * mesh.size())
        torch.manual_seed(17)
        self.model = Bigram(args.vocab_size)
        fully_shard(self.model, mesh=mesh)
        adam = ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 1e-2})
        optimizers = OptimizersContainer.Config(param_groups=[adam], implementation="foreach")
        self.optimizers = optimizers.build(model_parts=[self.model])
        self.lr_schedulers = LRSchedulersContainer.Config(warmup_steps=0).build(
            optimizers=self.optimizers, training_steps=args.steps
        )
        self.dataloader = ServiceDataLoader.Config(address=args.address).build(
            dp_world_size=mesh.size(),
            dp_rank=mesh.get_local_rank(),
            tokenizer=None,  # the service's
            seq_len=args.seq_len,
            local_batch_size=args.batch_size,
            snapshot_every_n_steps=self.microbatches,
        )
        self.checkpointer = CheckpointManager.Config(
            enable=True, interval=1, last_save_model_only=False
        ).build(
            dataloader=self.dataloader,
            model_parts=[self.model],
            optimizers=self.optimizers,
            lr_schedulers=self.lr_schedulers,
            states={"train_state": self},
            sd_adapter=None,
            base_folder=str(args.out),
        )

    def train(self, steps: int) -> list[float]:
        """Losses of this run's steps."""
        self.checkpointer.load()
        batches, losses = iter(self.dataloader), []
        while self.step < steps:
            self.step += 1
            losses.append(self.train_step(batches))
            self.checkpointer.save(self.step, last_step=self.step == steps)
        self.checkpointer.close()
        return losses

    def train_step(self, batches: Any) -> float:
        self.optimizers.zero_grad()
        step = [next(batches) for _ in range(self.microbatches)]
        targets = torch.stack([(labels >= 0).sum() for _, labels in step]).sum()
        dist.all_reduce(targets)
        total = torch.zeros(())
        for inputs, labels in step:
            logits = self.model(inputs["input"], inputs["positions"])
            loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / targets
            (loss * self.ranks).backward()  # gradients are averaged over ranks
            total += loss.detach()
        self.optimizers.step()
        self.lr_schedulers.step()
        dist.all_reduce(total)
        return total.item()

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True, help="HOST:PORT that `dataloader-svc serve` printed")
    parser.add_argument("--out", required=True, type=Path, help="folder of checkpoints")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--vocab-size", type=int, default=129_280)
    parser.add_argument("--seq-len", type=int, default=2048, help="training.seq_len")
    parser.add_argument("--batch-size", type=int, default=2, help="training.local_batch_size")
    parser.add_argument("--global-batch-size", type=int, default=8, help="training.global_batch_size")
    args = parser.parse_args()
    trainer = Trainer(args)
    losses = trainer.train(args.steps)
    if dist.get_rank() == 0:
        print(json.dumps({"losses": losses, "state": trainer.dataloader.state_dict()}))
    trainer.dataloader.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
