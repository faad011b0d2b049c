"""A planned step and its samples -> the frames of all ranks. Pure; runs in a thread of the service."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataloader_client.batch import FIELDS
from dataloader_client.wire import ALIGN, Frame
from dataloader_svc.constructor.collate import Empty, Form, collate
from dataloader_svc.constructor.core import Rank
from dataloader_svc.constructor.dispatch import Table, encoded, owners_of
from dataloader_svc.constructor.segments import PAGE, Arena, Segments
from dataloader_svc.constructor.sizes import bytes_by_rank, bytes_needed, document_bounds
from dataloader_svc.constructor.slice import Cut, fields_of_stage, slices
from dataloader_svc.constructor.step import Bad, Samples, StepPlan, gather


@dataclass(frozen=True, slots=True, eq=False)
class BuiltStep:
    """Batches of a step by (dp rank, cp rank): a dict of arrays a microbatch. tp and pp ranks share them.

    meta   what FrameHeader.meta_json holds beside what differs between ranks
    written   the same as `Frame.written`, with what else all ranks are told; "": only `meta` is known
    counts by dp rank: {"max_seqlen": [...], "num_tokens": [...]}, an entry a microbatch
    arenas by dp rank: where its arrays were made, if in shared memory
    """

    batches: dict[tuple[int, int], list[dict[str, NDArray[Any]]]]
    counts: dict[int, dict[str, list[int]]]
    meta: dict[str, Any]
    bad: tuple[Bad, ...]
    arenas: dict[int, Arena] = field(default_factory=dict)
    written: str = ""

    @property
    def num_bytes(self) -> int:
        """Of all arrays, those that several cp ranks share once, and of shared memory by whole pages."""
        arrays = {
            id(array): array.nbytes
            for (dp, _), parts in self.batches.items()
            for part in parts
            for array in part.values()
            if dp not in self.arenas or array.base is not self.arenas[dp].root
        }
        return sum(arrays.values()) + sum(arena.segment.resident for arena in self.arenas.values())

    def shared(self, dp: int) -> NDArray[np.uint8] | None:
        """The shared memory that all arrays of a dp rank lie in, if they do."""
        arena = self.arenas.get(dp)
        return arena.root if arena is not None and arena.whole else None

    def frame(self, rank: Rank, pp: int) -> Frame:
        """What this rank is sent: tensors "i/field", as `constructor_service.proto` says."""
        stage = {"first": rank.pp == 0, "last": rank.pp == pp - 1}
        arrays = {
            f"{number}/{name}": array
            for number, part in enumerate(self.batches[rank.dp, rank.cp])
            for name, array in fields_of_stage(part, **stage).items()
        }
        counts = self.counts[rank.dp]
        meta = counts if self.written else {**self.meta, **counts}
        return Frame(arrays, meta, written=self.written)


def step_bytes(plan: StepPlan, dp_ranks: frozenset[int], form: Form) -> tuple[int, int]:
    """(bytes while building, bytes kept) of a step at most, as `bytes_needed`, where it is built in shared
    memory: arrays begin at multiples of ALIGN, and a dp rank's end is that of a page.
    """
    work, kept = bytes_needed(plan, dp_ranks, form)
    return work, kept + len(dp_ranks) * _gaps(plan, form)


def _gaps(plan: StepPlan, form: Form) -> int:
    """Bytes between the arrays of a dp rank and behind them, at most."""
    return form.cp * plan.num_microbatches * len(FIELDS) * ALIGN + PAGE


def build_step(
    plan: StepPlan,
    fetched: Sequence[tuple[NDArray[np.int64], Frame]],
    dp_ranks: Iterable[int],
    form: Form,
    cut: Cut,
    segments: Segments | None = None,
) -> BuiltStep:
    """All batches of the step for these dp ranks, in shared memory where `segments` has some. Errors are
    those of `gather`.

    presence, loss_weight_sum and num_pairs are of the whole step, whatever ranks are built.
    """
    samples = gather(plan, fetched, form.pixel_width, form.mel_bins)
    batches: dict[tuple[int, int], list[dict[str, NDArray[Any]]]] = {}
    counts, arenas = {}, {}
    served = sorted(dp_ranks)
    kept = bytes_by_rank(plan, frozenset(served), form)[2]
    table = Table(plan, samples, form) if form.encoder_ranks else None
    for dp in served:
        bound = kept[dp] + _gaps(plan, form)
        arena = None if segments is None else segments.arena(dp, len(served), bound)
        # Uncut arrays of several cp ranks are only what theirs are made of.
        empty = np.empty if arena is None or form.cp > 1 else arena.empty
        microbatches = collate(plan, samples, dp, form, empty, table)
        there: Sequence[list[dict[str, NDArray[Any]]] | None] = [None] * len(microbatches)
        if table is not None:
            there = _encoded(plan, samples, table, dp, form, cut, np.empty if arena is None else arena.empty)
        parts = []
        for microbatch, media in zip(microbatches, there, strict=True):
            part = slices(microbatch, form, cut, media)
            parts.append(part if arena is None else _placed(part, arena))
        for cp in range(form.cp):
            batches[dp, cp] = [part[cp] for part in parts]
        if arena is not None:
            arenas[dp] = arena
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
    return BuiltStep(batches, counts, meta, samples.bad, arenas)


def _encoded(
    plan: StepPlan, samples: Samples, table: Table, dp: int, form: Form, cut: Cut, empty: Empty
) -> list[list[dict[str, NDArray[Any]]]]:
    """By microbatch and cp rank of a dp rank: what it encodes."""

    def owners(sequences: Iterable[int]) -> dict[int, NDArray[np.int64]]:
        return owners_of(document_bounds(plan, samples.second.tolist(), form, sequences), cut, form.cp)

    return encoded(plan, samples, table, dp, form, owners, empty)


def _placed(part: list[dict[str, NDArray[Any]]], arena: Arena) -> list[dict[str, NDArray[Any]]]:
    """A microbatch's slices with all arrays in the arena, those that cp ranks share once."""
    placed = {id(array): arena.place(array) for arrays in part for array in arrays.values()}
    return [{name: placed[id(array)] for name, array in arrays.items()} for arrays in part]
