"""Lightning's `Trainer` on a `DataServiceLoader`: `ServiceData`, `step_loss`.

    data = ServiceData(loader)
    trainer = Trainer(callbacks=[data], max_steps=1000, accumulate_grad_batches=4)
    trainer.fit(module, data, ckpt_path=path_or_none)

Needs lightning. The loader itself must not be given to `fit`: Lightning reads one batch ahead, and would save
a state that leaves out the batch it holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from dataloader_client.batch import Batch
from dataloader_client.device import RankLoader
from dataloader_client.errors import DataServiceError, MeshMismatchError
from dataloader_client.mesh import Mesh


def step_loss(losses: torch.Tensor, batch: Batch, ranks: int) -> torch.Tensor:
    """This microbatch's part of the step's mean loss, for `training_step` to return.

    losses   unreduced, of the shape of `batch.loss_weight`
    ranks    `trainer.world_size`

    Lightning divides by the microbatches and averages gradients over ranks; both are undone, so that what is
    left is the sum of `loss_weight` times loss over all ranks by `loss_weight_sum`.
    """
    total: torch.Tensor = (losses * batch.loss_weight).sum()
    scale: float = ranks * batch.num_microbatches / batch.loss_weight_sum
    return total * scale


class ServiceData(Callback):  # type: ignore[misc]  # has no types for us
    """The batches of a loader for `fit`, and their place in checkpoints: give it as data and as a callback.

    The state in a checkpoint is that after the last step that was trained, whatever Lightning has read ahead.
    Lightning also saves in the middle of a step, without its gradients: that step is then trained anew. A
    checkpoint fits other ranks and other numbers of microbatches. Training stops where the data ends.

    Raises MeshMismatchError and ValueError for settings that would train on other data or by another loss.
    """

    def __init__(self, loader: RankLoader) -> None:
        self.loader = loader
        self._read: dict[int, dict[str, Any]] = {}  # state after a step that is read and perhaps not trained
        self._trained: dict[str, Any] | None = None
        self._steps = 0  # trained in this epoch
        self._open = self._ended = False

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.loader:
            if batch.is_last_microbatch:
                self._read[batch.step] = self.loader.state_dict()
            yield batch
        self._ended = True

    def on_fit_start(self, trainer: Trainer, _module: LightningModule) -> None:
        """Refuse a mesh that is not the trainer's."""
        self._check_mesh(trainer, self.loader.mesh)

    def on_validation_start(self, trainer: Trainer, _module: LightningModule) -> None:
        """The same of loaders with `split="eval"` among the `val_dataloaders`."""
        given = trainer.val_dataloaders
        for loader in given if isinstance(given, list | tuple) else [given]:
            if (mesh := getattr(loader, "mesh", None)) is not None:
                self._check_mesh(trainer, mesh)

    def _check_mesh(self, trainer: Trainer, mesh: Mesh) -> None:
        if mesh.dp != trainer.world_size:
            raise MeshMismatchError(
                f"Trainer has {trainer.world_size} ranks and the loader {mesh}: ServiceData takes dp alone; "
                "pass the loader dp_rank= and dp_size= of the trainer"
            )

    def on_train_batch_start(
        self, trainer: Trainer, _module: LightningModule, batch: Batch, _batch_idx: int
    ) -> None:
        """Refuse a number of microbatches that Lightning would end a step before or after."""
        self._open = True
        if batch.num_microbatches != trainer.accumulate_grad_batches:
            raise ValueError(
                f"step {batch.step} has {batch.num_microbatches} microbatches and accumulate_grad_batches is "
                f"{trainer.accumulate_grad_batches}: set it to {batch.num_microbatches}; where the number "
                "differs from step to step, use manual optimization without ServiceData"
            )

    def on_train_batch_end(
        self, trainer: Trainer, _module: LightningModule, _outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Keep the state of this boundary. `Trainer` calls its checkpoints after all other callbacks."""
        if batch.is_last_microbatch:
            self._trained, self._open = self._read.pop(batch.step), False
            self._steps = (batch_idx + 1) // trainer.accumulate_grad_batches

    def on_train_epoch_end(self, trainer: Trainer, _module: LightningModule) -> None:
        """Where the data has ended there is no other epoch."""
        if self._open and not trainer.should_stop:
            raise ValueError(
                f"limit_train_batches={trainer.limit_train_batches} ends an epoch in the middle of a step: "
                f"set it to a multiple of accumulate_grad_batches={trainer.accumulate_grad_batches}"
            )
        self._steps = 0
        trainer.should_stop = trainer.should_stop or self._ended

    def state_dict(self) -> dict[str, Any]:
        """The loader's state after the last trained step, and how many steps of the epoch that makes."""
        state = self._trained if self._trained is not None else self.loader.state_dict()
        return {"loader": state, "steps": self._steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from the checkpoint's state."""
        self._trained, self._steps = state_dict["loader"], state_dict["steps"]
        self._read, self._open, self._ended = {}, False, False
        self.loader.load_state_dict(state_dict["loader"])

    def on_load_checkpoint(
        self, trainer: Trainer, _module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Refuse a checkpoint that says nothing of the data; have Lightning count from a step's first batch.

        Lightning steps where its count of batches is a multiple of `accumulate_grad_batches`, and the
        checkpoint's count may be from the middle of a step, or from other numbers of microbatches.
        """
        state = checkpoint.get("callbacks", {}).get(self.state_key)
        if state is None:
            raise DataServiceError(
                f"the checkpoint of step {checkpoint['global_step']} has no {self.state_key} among "
                "callbacks: it was not written with ServiceData. To go on from its weights, load these into "
                "the module and give no ckpt_path"
            )
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        batches = state["steps"] * trainer.accumulate_grad_batches
        for counts in progress["current"], progress["total"]:  # equal: none is begun and not ended
            counts.update(dict.fromkeys(("ready", "started", "processed", "completed"), batches))
