"""Where the sequences of a step go on a mesh: dp rank and microbatch. Pure: (plan, mesh, costs) -> placement.

It may permute sequences, never change them. Every rank gets as many as every other, and where the step's
number does not divide (`global_batch: {samples: ...}`), empty ones fill up. Ranks that shard their
weights meet in every layer, so a step takes as long as the slowest rank's encoder *and* the slowest rank's
language model: of the balancer's placement by the sum of both, one that balances both at once, and the order
of arrival, the one with the shortest such time is taken. With `strategy.group_size` each of them keeps
sequences in the group of ranks where they arrived. On each rank microbatches stand in order of cost, so that
microbatch k costs about the same on all ranks and nobody waits inside a step: dear ones first, or, where the
mesh has a pipeline, in the middle.

Costs may have been fitted to measured times (`calibration.py`). Then there are such placements by the fit
too, and only one is taken that gains over arrival order by the configured costs *and* by the fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dataloader_balancers import (
    BALANCERS,
    CostModel,
    floor,
    gap,
    imbalance,
    loads,
    segment_sum,
)
from dataloader_balancers.assign import turns
from dataloader_balancers.calibrate import no_harm
from dataloader_balancers.strategy import Balance
from dataloader_balancers.strategy.placing import ARRIVAL, candidates
from dataloader_svc.config.methods import known_balancer
from dataloader_svc.config.schema import Config
from dataloader_svc.errors import MeshError
from dataloader_svc.planner.costs import MediaCost, llm_cost, media_cost
from dataloader_svc.planner.plan import Plan


@dataclass(frozen=True, slots=True)
class MeshSize:
    """Sizes of the trainer's axes."""

    dp: int = 1
    cp: int = 1
    tp: int = 1
    pp: int = 1

    def __str__(self) -> str:
        return ",".join(f"{axis}={getattr(self, axis)}" for axis in ("dp", "cp", "tp", "pp"))


@dataclass(frozen=True, slots=True)
class Strategy:
    """What of the configuration decides where sequences go."""

    balance: str
    per_microbatch: int
    llm: CostModel
    encoder: MediaCost
    group_size: int | None = None

    @classmethod
    def of(cls, config: Config, base_dir: Path = Path()) -> Self:
        """`base_dir`: where relative paths start from. ConfigError: no such balancer, or no such cost."""
        name = known_balancer(config.strategy.balance, base_dir)
        llm, encoder = llm_cost(config, base_dir), media_cost(config, base_dir)
        group_size = config.strategy.group_size
        return cls(name, config.global_batch.per_microbatch, llm, encoder, group_size)


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """dp_rank, microbatch: int64 (n,), n >= num_sequences. What is behind the plan's sequences is empty ones,
    fewer than `dp * per_microbatch` of them. metrics: see `place`. work: float64 (dp, parts), what each dp
    rank has to do by the configured costs: the parts of the language model, then the encoders. method: of
    whose placement it is: the balancer's, `both` phases at once, or `arrival`.
    """

    dp_rank: NDArray[np.int64]
    microbatch: NDArray[np.int64]
    metrics: Mapping[str, float]
    work: NDArray[np.float64]
    method: str


@dataclass(frozen=True, slots=True, eq=False)
class _Phases:
    """Costs of a step's sequences, float64 (n,) each, by one model."""

    llm: NDArray[np.float64]
    encoder: NDArray[np.float64]

    def step_time(self, rank: NDArray[np.int64], dp: int) -> float:
        """Predicted time of the step, in the unit of the costs: ranks meet after each phase."""
        return float(loads(self.llm, rank, dp).max() + loads(self.encoder, rank, dp).max())


def place(plan: Plan, mesh: MeshSize, strategy: Strategy, factors: Sequence[float] = ()) -> Placement:
    """Equal counts on all dp ranks: as few microbatches as hold the plan's sequences.

    factors   what a fit multiplies each part of the work with; none: the configured costs alone

    Metrics, each max / mean over dp ranks: `llm_imbalance`, `encoder_imbalance`; the same with sequences in
    order of arrival, `..._arrival`; the least that any placement of these sequences could have, `..._floor`;
    and `llm_gap`, dearest rank over the floor, minus 1. By the configured costs, with or without a fit.
    """
    per_rank = num_microbatches(plan.num_sequences, mesh, strategy.per_microbatch) * strategy.per_microbatch
    parts = _work(plan, strategy, mesh.dp * per_rank)
    given = _Phases(parts[:, :-1].sum(axis=1), parts[:, -1])
    models = [given]
    if len(factors) == parts.shape[1]:  # else they are of costs that were configured before
        scaled = parts * np.asarray(factors, np.float64)
        models.append(_Phases(scaled[:, :-1].sum(axis=1), scaled[:, -1]))
    arrival = BALANCERS["arrival"](given.llm, mesh.dp, per_rank)
    placements = [(ARRIVAL, np.asarray(arrival, np.int64))]
    for model in models:
        placements += _candidates(model, mesh.dp, strategy, per_rank).items()
    times = [[model.step_time(rank, mesh.dp) for _, rank in placements] for model in models]
    method, dp_rank = placements[no_harm(times)]
    # By rank, on each rank by falling cost; the i-th of a rank has standing i // per_microbatch.
    cost = models[-1].llm + models[-1].encoder
    order = np.lexsort((-cost, dp_rank))
    microbatch = np.empty(len(cost), np.int64)
    turn = turns(per_rank // strategy.per_microbatch, "middle" if mesh.pp > 1 else "falling")
    microbatch[order] = turn[np.arange(len(cost)) % per_rank // strategy.per_microbatch]
    metrics = {}
    for name, phase in (("llm", given.llm), ("encoder", given.encoder)):
        metrics[f"{name}_imbalance"] = imbalance(loads(phase, dp_rank, mesh.dp))
        metrics[f"{name}_imbalance_arrival"] = imbalance(loads(phase, arrival, mesh.dp))
        metrics[f"{name}_floor"] = floor(phase, mesh.dp).imbalance(float(phase.sum()) / mesh.dp)
    metrics["llm_gap"] = gap(loads(given.llm, dp_rank, mesh.dp), floor(given.llm, mesh.dp))
    work = np.stack([loads(part, dp_rank, mesh.dp) for part in parts.T], axis=1)
    return Placement(dp_rank, microbatch, metrics, work, method)


def _work(plan: Plan, strategy: Strategy, count: int) -> NDArray[np.float64]:
    """float64 (count, parts) of the plan's sequences, and of empty ones behind them."""
    pieces, offsets = plan.pieces, plan.sequence_offsets
    columns = [*strategy.llm.parts(pieces.length).T, strategy.encoder.of_pieces(pieces)]
    work = np.zeros((count, len(columns)))
    work[: plan.num_sequences] = np.stack([segment_sum(column, offsets) for column in columns], axis=1)
    return work


def _candidates(model: _Phases, dp: int, strategy: Strategy, per_rank: int) -> dict[str, NDArray[np.int64]]:
    """Placements worth a look by a model, by their method, beside that of arrival."""
    if strategy.balance == ARRIVAL:
        return {}
    balance = Balance(strategy.balance)
    return candidates(balance, model.llm, model.encoder, dp, strategy.group_size, per_rank)


def num_microbatches(sequences: int, mesh: MeshSize, per_microbatch: int) -> int:
    """Of each rank: as few as hold that many sequences, and as many on every rank."""
    return -(-sequences // (mesh.dp * per_microbatch))


def check_mesh(config: Config, mesh: MeshSize) -> None:
    """MeshError, with the numbers and the nearest mesh that fits, where the batch does not divide.

    A batch in samples is of no set number of sequences: every dp fits. Groups of ranks must divide dp.
    """
    group_size = config.strategy.group_size
    if group_size is not None and mesh.dp % group_size:
        fits = [size for size in range(1, mesh.dp + 1) if mesh.dp % size == 0]
        close = sorted(sorted(fits, key=lambda size: (abs(size - group_size), size))[:2])
        raise MeshError(
            f"dp={mesh.dp} does not divide into groups of strategy.group_size={group_size} ranks: use a "
            f"group_size of {' or '.join(map(str, close))}, or a dp that is a multiple of {group_size}"
        )
    sequences, per_microbatch = config.num_sequences, config.global_batch.per_microbatch
    if sequences is not None and sequences % (mesh.dp * per_microbatch):
        microbatches = sequences // per_microbatch
        fits = [dp for dp in range(1, microbatches + 1) if microbatches % dp == 0]
        close = sorted(sorted(fits, key=lambda dp: (abs(dp - mesh.dp), dp))[:2])
        a_rank = f" of {per_microbatch} sequences a microbatch" if per_microbatch > 1 else ""
        raise MeshError(
            f"dp={mesh.dp} does not divide the {sequences} sequences of a step{a_rank}: use dp="
            f"{' or dp='.join(map(str, close))}, or a global_batch that is a multiple of "
            f"{mesh.dp * per_microbatch} sequences"
        )
    length = config.sequence_length
    if mesh.cp > 1 and length % (2 * mesh.cp):
        fits = [cp for cp in range(1, length // 2 + 1) if length % (2 * cp) == 0] or [1]
        close = sorted(sorted(fits, key=lambda cp: (abs(cp - mesh.cp), cp))[:2])
        raise MeshError(
            f"cp={mesh.cp} needs a sequence_length that is a multiple of 2 x cp = {2 * mesh.cp}; it is "
            f"{length}: use cp={' or cp='.join(map(str, close))}"
        )
