"""torchtitan on the service: `ServiceDataLoader`, a `BaseDataLoader` for `dataloader=` of its config.

    dataloader=ServiceDataLoader.Config(address="localhost:7077")

Needs torchtitan 0.3. The service's configuration: `layout: padded`, `sequence_length` as `training.seq_len`,
`global_batch: {sequences: N, per_microbatch: M}` as `training.global_batch_size` and `.local_batch_size`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torchtitan.components.dataloader import BaseDataLoader

from dataloader_client.batch import IGNORED_LABEL, Batch
from dataloader_client.errors import StateMismatchError
from dataloader_client.integrations.distributed_checkpoint import LoaderState
from dataloader_client.loader import DataServiceLoader
from dataloader_client.mesh import Coords, Mesh

Microbatch = tuple[dict[str, torch.Tensor], torch.Tensor]
"""({"input": token ids, "positions": ...}, labels), int64 (local_batch_size, seq_len): labels are shifted."""


class ServiceDataLoader(BaseDataLoader):  # type: ignore[misc]  # has no types for us
    """Microbatches of this rank as torchtitan's decoders take them, and their place in its checkpoints.

    Documents of a row are told apart by `positions`, which begin at 0 in each: that needs attention by flex
    or varlen. torchtitan divides the loss by the targets of all ranks and cuts over cp itself, so ranks of
    cp, tp and pp are given the same rows. A checkpoint fits other ranks. To be made on all ranks at once.

    Raises ValueError for settings by which it would train on other data or by another loss, and the errors of
    `DataServiceLoader`.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]  # has no types for us
        """`address` is HOST:PORT; token and TLS come from the environment, see docs/security.md."""

        address: str

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        seq_len: int,
        local_batch_size: int,
        snapshot_every_n_steps: int | None = None,
        **_tokenizer: Any,
    ) -> None:
        if config.dataset or config.dataset_path:
            raise ValueError(
                f"dataloader.dataset={config.dataset!r}, dataset_path={config.dataset_path!r}: data is named "
                "by the service's configuration, under `sources`; leave them out"
            )
        self._rows, self._seq_len, self._snapshot = local_batch_size, seq_len, snapshot_every_n_steps
        mesh, coords = _place(dp_rank, dp_world_size)
        self._loader = DataServiceLoader(config.address, mesh=mesh, coords=coords)
        self._state = LoaderState(self._loader)

    def __iter__(self) -> Iterator[Microbatch]:
        for batch in self._loader:
            self._check(batch)
            yield {"input": batch["input_ids"], "positions": batch["position_ids"]}, batch["labels"]

    def _check(self, batch: Batch) -> None:
        where = f"step {batch.step}, microbatch {batch.microbatch}"
        media = [kind for kind, present in batch.presence.items() if present]
        if media:
            raise ValueError(f"{where} has {', '.join(media)}: ServiceDataLoader is for text alone")
        shape, wanted = tuple(batch.numpy["labels"].shape), (self._rows, self._seq_len)
        if shape != wanted:
            raise ValueError(
                f"{where} is {shape}, and training.local_batch_size and seq_len are {wanted}: configure "
                f"`layout: padded`, `sequence_length: {self._seq_len}` and `per_microbatch: {self._rows}`"
            )
        if self._snapshot is not None and self._snapshot % batch.num_microbatches:
            raise ValueError(self._other_steps(batch.num_microbatches))
        weights = batch.numpy["loss_weight"]
        if ((weights != 1) & (batch.numpy["labels"] != IGNORED_LABEL)).any():
            raise ValueError(
                f"{where} has weights of loss other than 0 and 1, which torchtitan's loss does not take: "
                "leave `loss_weight` out of the sources"
            )

    def _other_steps(self, microbatches: int) -> str:
        rows = microbatches * self._rows * self._loader.mesh.dp
        return (
            f"a step of the service has {microbatches} microbatches on a rank and torchtitan's has another "
            f"number: set training.global_batch_size to {rows}, or `global_batch` of the service as it"
        )

    def state_dict(self) -> dict[str, Any]:
        """The loader's, once for all ranks. StateMismatchError in the middle of a step of the service."""
        state = self._loader.state_dict()
        if state["microbatch"]:
            raise StateMismatchError(self._other_steps(state["num_microbatches"]))
        return self._state.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from it. Nothing where it is empty, as a checkpoint of weights alone has it."""
        if state_dict:
            self._state.load_state_dict(state_dict)

    def close(self) -> None:
        """Leave the service; torchtitan does not call it, and the end of the process does as well."""
        self._loader.close()


def _place(dp_rank: int, dp: int) -> tuple[Mesh, Coords]:
    """What torchtitan tells is the place on dp; ranks with the same one read the same, as peers of tp do."""
    if not dist.is_initialized():
        return Mesh(dp=dp), Coords(dp=dp_rank)
    places: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(places, dp_rank)
    rank = dist.get_rank()
    return Mesh(dp=dp, tp=len(places) // dp), Coords(dp=dp_rank, tp=places[:rank].count(dp_rank))
