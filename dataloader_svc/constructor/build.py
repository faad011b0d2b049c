"""A planned step and its samples -> the frames of all ranks. Pure; runs in a thread of the service."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataloader_client.wire import Frame
from dataloader_svc.constructor.collate import Form, collate
from dataloader_svc.constructor.core import Rank
from dataloader_svc.constructor.slice import Cut, fields_of_stage, slices
from dataloader_svc.constructor.step import Bad, StepPlan, gather


@dataclass(frozen=True, slots=True, eq=False)
class BuiltStep:
    """Batches of a step by (dp rank, cp rank): a dict of arrays a microbatch. tp and pp ranks share them.

    meta   what FrameHeader.meta_json holds beside what differs between ranks
    counts by dp rank: {"max_seqlen": [...], "num_tokens": [...]}, an entry a microbatch
    """

    batches: dict[tuple[int, int], list[dict[str, NDArray[Any]]]]
    counts: dict[int, dict[str, list[int]]]
    meta: dict[str, Any]
    bad: tuple[Bad, ...]

    @property
    def num_bytes(self) -> int:
        """Of all arrays; those that several cp ranks share count once."""
        arrays = {id(a): a.nbytes for parts in self.batches.values() for part in parts for a in part.values()}
        return sum(arrays.values())

    def frame(self, rank: Rank, pp: int) -> Frame:
        """What this rank is sent: tensors "i/field", as `constructor_service.proto` says."""
        stage = {"first": rank.pp == 0, "last": rank.pp == pp - 1}
        arrays = {
            f"{number}/{name}": array
            for number, part in enumerate(self.batches[rank.dp, rank.cp])
            for name, array in fields_of_stage(part, **stage).items()
        }
        return Frame(arrays, {**self.meta, **self.counts[rank.dp]})


def build_step(
    plan: StepPlan,
    fetched: Sequence[tuple[NDArray[np.int64], Frame]],
    dp_ranks: Iterable[int],
    form: Form,
    cut: Cut,
) -> BuiltStep:
    """All batches of the step for these dp ranks. Errors are those of `gather`.

    presence, loss_weight_sum and num_pairs are of the whole step, whatever ranks are built.
    """
    samples = gather(plan, fetched, form.pixel_width, form.mel_bins)
    batches: dict[tuple[int, int], list[dict[str, NDArray[Any]]]] = {}
    counts = {}
    for dp in sorted(dp_ranks):
        microbatches = collate(plan, samples, dp, form)
        parts = [slices(microbatch, form, cut) for microbatch in microbatches]
        for cp in range(form.cp):
            batches[dp, cp] = [part[cp] for part in parts]
        counts[dp] = {
            "max_seqlen": [microbatch.max_seqlen for microbatch in microbatches],
            "num_tokens": [microbatch.num_tokens for microbatch in microbatches],
        }
    meta = {
        "step": plan.step,
        "microbatches": plan.num_microbatches,
        "sources": list(plan.sources),
        "presence": samples.presence,
        "loss_weight_sum": float(samples.targets_sum),
        "num_pairs": samples.num_pairs,
        "end": False,
    }
    return BuiltStep(batches, counts, meta, samples.bad)
