"""Packers side by side: how full and how equal their sequences are, what that makes of ranks, who waits.

Of a file of lengths each step is packed by itself, in as few sequences as the packer needs. A job plans its
own steps by each of them, and in relaxed mode, from probes that are read once (`simulate_plans.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from dataloader_balancers import PACKERS, LlmCost, concatenate, floor, imbalance, loads, pack_all, segment_sum
from dataloader_balancers.assign import Ranks, place
from dataloader_balancers.strategy.nodes import CONCATENATE
from dataloader_svc.cli.simulate_strategies import Layout
from dataloader_svc.cli.simulate_work import Floats, Work
from dataloader_svc.config.load import LoadedConfig
from dataloader_svc.config.schema import Wait
from dataloader_svc.planner import place as service
from dataloader_svc.planner.plan import Plan

PACKER_MEANINGS = {
    "best_fit": "full sequences",
    "first_fit": "the same, to compare with",
    "balanced": "full sequences of equal cost",
    "variable": "equal cost, where lengths may differ",
    CONCATENATE: "no gap: documents are cut",
    "relaxed": "variable, fill 0.8, and outliers wait for their like",
    "job": "as configured",
    "declared": "--strategy",
}


@dataclass(frozen=True, slots=True)
class PackRow:
    """A packer's figures, means over steps.

    sequences        of a step
    fill             share of their room that holds tokens
    spread           dearest sequence over the mean, by the language model; `spread_floor`: the least of any
                     packing of these documents into as many
    llm, encoder     max / mean over dp ranks of the phase's work, with sequences placed for both phases
    delay            steps that a token had waited; mixture_error: share that what was placed is off (of jobs)
    seconds          to pack, or plan, a step
    """

    sequences: float
    fill: float
    spread: float
    spread_floor: float
    llm: float
    encoder: float
    delay: float
    mixture_error: float
    seconds: float

    @classmethod
    def of_means(cls, figures: Sequence[tuple[float, ...]], seconds: float) -> Self:
        """Of the figures of each step, in the order of the fields."""
        names = cls.__slots__[:-1]
        return cls(**dict(zip(names, np.mean(figures, axis=0).tolist(), strict=True)), seconds=seconds)

    def as_json(self) -> dict[str, float]:
        """By name."""
        return {name: getattr(self, name) for name in self.__slots__}


def of_lengths(
    steps: Sequence[Work], layout: Layout, length: int, cost: LlmCost, clock: Callable[[], float]
) -> dict[str, PackRow]:
    """Each packer on the samples of each step, in sequences of `length` tokens. Concatenated pieces cost what
    they are, not what their documents would be.
    """
    rows = {}
    for name in (*PACKERS, CONCATENATE):
        began = clock()
        packed = [_packed(name, work, layout, length, cost) for work in steps]
        seconds = (clock() - began) / len(steps)
        figures = [_figures(*each, layout.dp, length) for each in packed]
        rows[name] = PackRow.of_means([(*each, 0.0, 0.0) for each in figures], seconds)
    return rows


def _packed(
    name: str, work: Work, layout: Layout, length: int, cost: LlmCost
) -> tuple[Floats, Floats, Floats, int]:
    """Cost of the sequences in both phases, and of each piece; and the tokens of all."""
    tokens, llm, encoder = np.minimum(work.tokens, length), work.llm, work.encoder
    if name == CONCATENATE:
        made = concatenate(tokens, length)
        llm = cost.of_documents(made.length) / layout.cp
        encoder = encoder[made.document] * made.length / tokens[made.document]
        sequence = made.sequence
    else:
        sequence = pack_all(name, tokens, length, costs=llm)
    count = int(sequence.max()) + 1
    return loads(llm, sequence, count), loads(encoder, sequence, count), llm, int(tokens.sum())


def _figures(
    llm: Floats, encoder: Floats, pieces: Floats, tokens: int, dp: int, length: int
) -> tuple[float, ...]:
    """sequences, fill, spread, its floor, llm, encoder of a step."""
    count = len(llm)
    rank = place(np.stack([encoder, llm]), Ranks(dp, per_rank=-(-count // dp)))
    return (
        float(count),
        tokens / (count * length),
        imbalance(llm),
        floor(pieces, count).imbalance(float(llm.sum()) / count),
        imbalance(loads(llm, rank, dp)),
        imbalance(loads(encoder, rank, dp)),
    )


def variants(loaded: LoadedConfig) -> Iterator[tuple[str, LoadedConfig]]:
    """The job, and as it would be with each packer, and relaxed; without what can't be: a step of samples has
    no outliers that wait.
    """
    strategy = loaded.config.strategy
    yield "job", loaded
    plain: dict[str, Any] = {"mode": "strict", "wait": None, "fill": 1.0, "steps": [], "function": None}
    for name in (*PACKERS, CONCATENATE):
        yield name, with_strategy(loaded, {**plain, "pack": name})
    if loaded.config.global_batch.samples is None:
        relaxed = {
            **plain,
            "mode": "relaxed",
            "wait": strategy.wait or Wait(),
            "pack": "variable",
            "fill": 0.8,
        }
        yield "relaxed", with_strategy(loaded, relaxed)


def with_strategy(loaded: LoadedConfig, fields: dict[str, Any]) -> LoadedConfig:
    """The same job with other fields of `strategy`."""
    strategy = loaded.config.strategy.model_copy(update=fields)
    return replace(loaded, config=loaded.config.model_copy(update={"strategy": strategy}))


def of_plans(plans: Sequence[Plan], loaded: LoadedConfig, layout: Layout, seconds: float) -> PackRow:
    """Figures of a job's plans, placed on the mesh as the service places them."""
    strategy = service.Strategy.of(loaded.config, loaded.base_dir)
    mesh = service.MeshSize(layout.dp, layout.cp, 1, layout.pp)
    figures = []
    for plan in plans:
        llm = strategy.llm.of_documents(plan.pieces.length)
        sums = segment_sum(llm, plan.sequence_offsets)
        metrics = {**plan.metrics, **service.place(plan, mesh, strategy).metrics}
        figures.append(
            (
                plan.num_sequences,
                metrics["packing_efficiency"],
                imbalance(sums),
                floor(llm, plan.num_sequences).imbalance(float(sums.sum()) / plan.num_sequences),
                *(metrics[name] for name in ("llm_imbalance", "encoder_imbalance")),
                *(metrics[name] for name in ("delay_steps", "mixture_error")),
            )
        )
    return PackRow.of_means(figures, seconds)
