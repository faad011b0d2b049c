"""Hugging Face `Trainer` on a `DataServiceLoader`: `ServiceTrainer`.

    trainer = ServiceTrainer(model, TrainingArguments(..., max_steps=1000), loader=loader)
    trainer.train(resume_from_checkpoint=path_or_none)

Needs transformers and accelerate. A loop on Accelerate alone needs nothing of this: see docs/trainers.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from dataloader_client.batch import IGNORED_LABEL, Batch
from dataloader_client.device import Loader, RankLoader
from dataloader_client.errors import DataServiceError, MeshMismatchError

STATE_NAME = "DataServiceLoader"
"""Where the loader's state stands among `stateful_callbacks` of a checkpoint's trainer_state.json."""

_OURS = ("labels", "loss_weight", "loss_weight_sum")


def causal_lm_inputs(batch: Batch) -> dict[str, Any]:
    """Arguments of a causal language model of transformers, for a batch without media.

    A packed batch becomes one row (1, T), without an attention mask: models then know by `position_ids`,
    which begin at 0 in each document, that documents do not see each other. Where a row of a padded batch
    holds several documents its mask cannot say so, and ValueError is raised.
    """
    media = [kind for kind, present in batch.presence.items() if present]
    if media:
        raise ValueError(
            f"step {batch.step} has {', '.join(media)}: pass inputs= to ServiceTrainer, a function from a "
            "batch to the model's arguments (for pixels: dataloader_client.device.normalize_patches)"
        )
    if "attention_mask" not in batch:
        return {name: batch[name][None] for name in ("input_ids", "position_ids")}
    if batch.numpy["document_ids"].max() > 1:
        raise ValueError(
            f"step {batch.step} has several documents in a padded row, which a model of transformers would "
            "let see each other: configure `layout: packed`, or `strategy: {pack: none}`"
        )
    return {name: batch[name] for name in ("input_ids", "attention_mask", "position_ids")}


class ServiceTrainer(Trainer):  # type: ignore[misc]  # has no types for us
    """`Trainer` whose training data comes from `loader`: what is no argument here is `Trainer`'s.

    loader   a `DataServiceLoader` of this rank, or a `DeviceLoader` around one. It is neither sharded nor
             dispatched: its ranks are those of the service
    inputs   from a batch to the model's arguments; `causal_lm_inputs` by default. The model is called
             without labels and returns `logits`, (1, T, V) or (B, L, V), or a tuple that begins with them
    eval_loader   one with `split="eval"`, on the same mesh, instead of an `eval_dataset`: `evaluate` then
             reports the mean loss over all that it holds, weighted by `loss_weight`, the same on any ranks

    `gradient_accumulation_steps` is the number of microbatches of a step. The loss is the sum of
    `loss_weight` times cross entropy, divided by the `loss_weight_sum` of the step over all
    ranks; what a model adds to its own loss, as for routers of experts, is not in it. Checkpoints have the
    loader's state in trainer_state.json, and `train(resume_from_checkpoint=...)` goes on from it, so
    `ignore_data_skip` is set: there is nothing to skip. `max_steps` is needed; where the data ends before, so
    does training.

    Raises ValueError and MeshMismatchError for settings that would train on other data, or by another loss.
    """

    def __init__(
        self,
        *args: Any,
        loader: RankLoader,
        inputs: Callable[[Batch], dict[str, Any]] = causal_lm_inputs,
        eval_loader: RankLoader | None = None,
        **others: Any,
    ) -> None:
        if eval_loader is not None:
            if others.get("eval_dataset") is not None:
                raise ValueError("eval_dataset and eval_loader: give one of them")
            others["eval_dataset"] = _Evaluated(eval_loader, self._arguments)
        super().__init__(*args, **others)
        self.service_loader, self._inputs_of, self._eval_loader = loader, inputs, eval_loader
        self._eval_sums: torch.Tensor | None = None  # of loss times weight, and of weight
        self.loss_is_scaled_for_ga = True  # by `compute_loss`
        self._check_settings()
        self.args.ignore_data_skip = True
        self.add_callback(_DataState(loader))

    def _check_settings(self) -> None:
        if self.train_dataset is not None:
            raise ValueError("train_dataset and loader: the loader is the data, give no train_dataset")
        if self.compute_loss_func is not None:
            raise ValueError(
                "compute_loss_func is given labels that it would shift, and no loss_weight: override "
                "ServiceTrainer.compute_loss"
            )
        if self.args.n_gpu > 1:
            raise ValueError(
                f"{self.args.n_gpu} GPUs in one process would share a rank's batches: start one process a GPU"
            )
        if self._eval_loader is not None and self.compute_metrics is not None:
            raise ValueError(
                "compute_metrics is given predictions, which are not gathered for an eval_loader, whose "
                "batches have no common shape: leave it out, or give an eval_dataset"
            )
        if self._eval_loader is not None and self._eval_loader.mesh != self.service_loader.mesh:
            raise MeshMismatchError(
                f"loader has {self.service_loader.mesh} and eval_loader {self._eval_loader.mesh}: make both "
                "with the same mesh"
            )
        mesh, ranks = self.service_loader.mesh, self.accelerator.num_processes // self.get_tp_size()
        if self.get_cp_size() > 1 or self.get_sp_size() > 1 or mesh.cp > 1 or mesh.pp > 1:
            raise MeshMismatchError(
                f"Trainer with cp={self.get_cp_size()}, sp={self.get_sp_size()} and a loader of {mesh}: "
                "Trainer would cut once more what the service cut; ServiceTrainer takes dp and tp alone"
            )
        if mesh.dp != ranks:
            raise MeshMismatchError(
                f"Trainer has {ranks} data-parallel ranks and the loader {mesh}: make the loader after "
                "TrainingArguments, which initialise torch.distributed, or pass it mesh= and rank="
            )

    def get_train_dataloader(self) -> RankLoader:
        """The loader as it is."""
        return self.service_loader

    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch], num_batches: int, _device: torch.device
    ) -> tuple[list[dict[str, Any]], None]:
        """The microbatches of one step, as `compute_loss` wants them; none at the end of the data, which
        stops training. The count of items is the service's, so none is gathered.
        """
        step = []
        for batch in epoch_iterator:
            step.append(batch)
            if batch.is_last_microbatch:
                break
        if not step:
            self.control.should_training_stop = True
        elif len(step) != num_batches:
            raise ValueError(
                f"step {step[0].step} has {len(step)} microbatches and gradient_accumulation_steps is "
                f"{num_batches}: set it to {len(step)}; where the number differs from step to step, as with "
                "`global_batch: {samples: ...}`, Trainer cannot be used"
            )
        return [self._arguments(batch) for batch in step], None

    def _arguments(self, batch: Batch) -> dict[str, Any]:
        arguments = self._inputs_of(batch)
        if taken := [name for name in _OURS if name in arguments]:
            raise ValueError(f"inputs= returns {', '.join(taken)}: these are the loss's, leave them out")
        weights = {"labels": batch["labels"], "loss_weight": batch["loss_weight"]}
        return {**arguments, **weights, "loss_weight_sum": batch.loss_weight_sum}

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """This microbatch's part of the step's mean loss, times the ranks whose gradients are averaged.

        Data of `evaluate` and `predict`, which is not the service's, is left to `Trainer`.
        """
        if "loss_weight_sum" not in inputs:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        loss, outputs = self._summed_loss(model, inputs)
        loss = loss * (self.service_loader.mesh.dp / inputs["loss_weight_sum"])
        return (loss, outputs) if return_outputs else loss

    def _summed_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> tuple[torch.Tensor, Any]:
        """Of this microbatch: cross entropy times `loss_weight`; and what the model returned."""
        outputs = model(**{name: value for name, value in inputs.items() if name not in _OURS})
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        losses = functional.cross_entropy(
            logits.flatten(0, -2).float(),
            inputs["labels"].flatten(),
            ignore_index=IGNORED_LABEL,
            label_smoothing=self.args.label_smoothing_factor,
            reduction="none",
        )
        return (losses * inputs["loss_weight"].flatten()).sum(), outputs

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """`eval_loader` as it is; other data is `Trainer`'s."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        return dataset if isinstance(dataset, _Evaluated) else super().get_eval_dataloader(eval_dataset)

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> Any:
        """Of an `eval_loader`: the loss is kept, to be weighted at the end, and no prediction is."""
        if "loss_weight_sum" not in inputs:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            loss, _ = self._summed_loss(model, inputs)
        sums = torch.stack([loss.double(), inputs["loss_weight"].double().sum()])
        self._eval_sums = sums if self._eval_sums is None else self._eval_sums + sums
        return loss, None, None

    def evaluation_loop(
        self, dataloader: Any, *args: Any, metric_key_prefix: str = "eval", **others: Any
    ) -> Any:
        """`Trainer`'s, whose mean over batches gives way to that over tokens where they are the service's."""
        self._eval_sums = None
        output = super().evaluation_loop(dataloader, *args, metric_key_prefix=metric_key_prefix, **others)
        if isinstance(dataloader, _Evaluated) and self._eval_sums is not None:
            loss, weight = self.accelerator.reduce(self._eval_sums, "sum").tolist()
            output.metrics[f"{metric_key_prefix}_loss"] = loss / weight
        return output


class _Evaluated:
    """What an `eval_loader` holds, as arguments; begun anew each time, as the loader is."""

    def __init__(self, loader: RankLoader, arguments: Callable[[Batch], dict[str, Any]]) -> None:
        self._loader, self._arguments = loader, arguments

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self._arguments, self._loader)


class _DataState(TrainerCallback):  # type: ignore[misc]  # has no types for us
    """The loader's state, written and read with `TrainerState`: at once with the rest, or not at all."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def on_train_begin(
        self, _args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_others: Any
    ) -> None:
        """Go on from the checkpoint's state, if `train` has loaded one."""
        saved = state.stateful_callbacks.get(STATE_NAME)
        if saved is not None:
            self._loader.load_state_dict(saved["attributes"]["state"])
        elif state.global_step:
            raise DataServiceError(
                f"the checkpoint of step {state.global_step} has no {STATE_NAME} among stateful_callbacks of "
                "its trainer_state.json: it was not written by a ServiceTrainer. To go on from its weights, "
                "load these into the model and give no resume_from_checkpoint"
            )

    def on_step_end(
        self, _args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_others: Any
    ) -> None:
        """Keep the state of this boundary where a checkpoint takes it from."""
        # In the form that `Trainer` has for callbacks, whose entries it may read; it knows no such callback.
        state.stateful_callbacks[STATE_NAME] = {
            "args": {},
            "attributes": {"state": self._loader.state_dict()},
        }
