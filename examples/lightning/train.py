"""A bigram model in Lightning's Trainer on batches of the service; resumes from its last checkpoint.

    python examples/lightning/train.py --address localhost:7077 --vocab-size 129280 --out build/lightning

Also under torchrun, where each rank reads its own part. Needs lightning.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn import functional
from torchmetrics import MeanMetric

from dataloader_client import Batch, DataServiceLoader
from dataloader_client.integrations.lightning import ServiceData, step_loss


class Bigram(pl.LightningModule):
    def __init__(self, vocab_size: int, width: int = 16) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Embedding(vocab_size, width), nn.Linear(width, vocab_size))
        self.losses: list[float] = []  # of the steps of this run, this rank's part
        self.held_out = MeanMetric()  # weighted, over all ranks

    def training_step(self, batch: Batch, _number: int) -> torch.Tensor:
        losses = functional.cross_entropy(self.model(batch.input_ids), batch.labels, reduction="none")
        loss = step_loss(losses, batch, self.trainer.world_size)
        part = float(loss.detach()) / batch.num_microbatches
        if batch.microbatch == 0:
            self.losses.append(0.0)
        self.losses[-1] += part
        return loss

    def validation_step(self, batch: Batch, _number: int) -> None:
        losses = functional.cross_entropy(self.model(batch.input_ids), batch.labels, reduction="none")
        self.held_out.update(losses, batch.loss_weight)
        self.log("held_out", self.held_out)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True, help="HOST:PORT that `dataloader-svc serve` printed")
    parser.add_argument("--out", required=True, type=Path, help="folder of checkpoints")
    parser.add_argument("--vocab-size", type=int, required=True)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=1, help="of a step, on a rank")
    parser.add_argument("--ranks", type=int, default=1, help="as many as torchrun starts")
    parser.add_argument(
        "--evaluate", action="store_true", help="every second step, on the job's `evaluation`"
    )
    args = parser.parse_args()
    pl.seed_everything(17)
    last = args.out / "last.ckpt"
    place = {"dp_rank": int(os.environ.get("RANK", 0)), "dp_size": args.ranks}  # Lightning joins them in fit
    with contextlib.ExitStack() as stack:
        data = ServiceData(stack.enter_context(DataServiceLoader(args.address, **place)))
        held_out = None
        if args.evaluate:
            held_out = stack.enter_context(DataServiceLoader(args.address, split="eval", **place))
        saved = ModelCheckpoint(args.out, every_n_train_steps=1, save_last=True)
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=args.ranks,
            strategy="ddp" if args.ranks > 1 else "auto",
            max_steps=args.steps,
            accumulate_grad_batches=args.microbatches,
            callbacks=[data, saved],
            val_check_interval=2 * args.microbatches,
            check_val_every_n_epoch=None,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        module = Bigram(args.vocab_size)
        trainer.fit(module, data, held_out, ckpt_path=last if last.exists() else None)
        losses = trainer.strategy.reduce(torch.tensor(module.losses), reduce_op="mean").tolist()
        if trainer.is_global_zero:
            found = {name: float(value) for name, value in trainer.callback_metrics.items()}
            print(json.dumps({"losses": losses, "state": data.state_dict()["loader"], **found}))


if __name__ == "__main__":
    main()
