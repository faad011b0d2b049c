"""Where the sequences of a step go on a mesh: dp rank and microbatch. Pure: (plan, mesh, costs) -> placement.

It may permute sequences, never change them. Every rank gets as many as every other, and where the step's
number does not divide (`global_batch: {samples: ...}`), empty ones fill up: so they do where ranks may have
unlike numbers (`strategy.counts`), or are not alike themselves (`ranks.py`). Ranks that shard their weights
meet in every layer, so a step takes as long as the slowest rank's encoder *and* the slowest rank's language
model: of the balancer's placement by the sum of both, one that balances both at once, and the order of
arrival, the one with the shortest such time is taken. With `strategy.group_size` each of them keeps sequences
in the group of ranks where they arrived. A job may allow that a step is placed without equal numbers, or
without groups, where that pays (`strategy.remedies`). On each rank microbatches stand in order of cost, so
that microbatch k costs about the same on all ranks and nobody waits inside a step: dear ones first, or, where
the mesh has a pipeline, in the middle.

With `strategy.encoder_placement: dispatch` a rank need not encode what it trains on: encoder work is level
wherever sequences are (`dispatch.py`), so these are placed by the language model's time alone, and of
placements that take about as long the one is taken for which least has to be encoded elsewhere.

Costs may have been fitted to measured times (`calibration.py`). Then there are such placements by the fit
too, and only one is taken that gains over arrival order by the configured costs *and* by the fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dataloader_balancers import (
    CostModel,
    floor,
    gap,
    loads,
    segment_sum,
)
from dataloader_balancers.assign import Ranks, turns
from dataloader_balancers.assign import place as place_items
from dataloader_balancers.calibrate import no_harm
from dataloader_balancers.strategy import Balance
from dataloader_balancers.strategy.nodes import BOTH
from dataloader_balancers.strategy.placing import ARRIVAL, candidates
from dataloader_svc.config.methods import known_balancer
from dataloader_svc.config.schema import Config
from dataloader_svc.config.schema.strategy import RemedyName
from dataloader_svc.errors import MeshError
from dataloader_svc.planner.costs import MediaCost, llm_cost, media_cost
from dataloader_svc.planner.dispatch import Dispatch, dispatch, evenly, nearest
from dataloader_svc.planner.plan import Plan
from dataloader_svc.planner.ranks import Unlike, counts_allowed, in_rounds


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
    """What of the configuration decides where sequences go.

    remedies   what a step may be placed without, where that spares `remedy_gain` of its time
    dispatch   how encoder work is spread; None: where its tokens are
    """

    balance: str
    per_microbatch: int
    llm: CostModel
    encoder: MediaCost
    group_size: int | None = None
    equal_counts: bool = True
    ranks: Unlike | None = None
    remedies: tuple[RemedyName, ...] = ()
    remedy_gain: float = 0.0
    dispatch: Dispatch | None = None

    @classmethod
    def of(cls, config: Config, base_dir: Path = Path()) -> Self:
        """`base_dir`: where relative paths start from. ConfigError: no such balancer, or no such cost."""
        name = known_balancer(config.strategy.balance, base_dir)
        llm, encoder = llm_cost(config, base_dir), media_cost(config, base_dir)
        group_size = config.strategy.group_size
        dispatched = config.strategy.encoder_placement == "dispatch"
        sizes = (config.images.merge, config.mel.frames_per_token)
        return cls(
            name,
            config.global_batch.per_microbatch,
            llm,
            encoder,
            group_size,
            equal_counts=config.strategy.counts == "equal",
            ranks=Unlike.of(config.strategy),
            remedies=config.strategy.allowed_remedies,
            remedy_gain=config.strategy.remedy_gain,
            dispatch=Dispatch(group_size, config.strategy.ranks_per_node, *sizes) if dispatched else None,
        )

    @property
    def even(self) -> bool:
        """Whether all dp ranks have as many sequences, empty ones among them."""
        return self.equal_counts and self.ranks is None

    def with_remedy(self, name: RemedyName) -> Strategy:
        """What holds in a step where `name` is applied."""
        return replace(self, equal_counts=False) if name == "unequal" else replace(self, group_size=None)


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """dp_rank, microbatch: int64 (n,), n >= num_sequences. What is behind the plan's sequences is empty
    ones; with equal counts fewer than `dp * per_microbatch`. metrics: see `place`. work: float64 (dp, parts),
    time of each dp rank by the configured costs and speeds: the parts of the language model, then the
    encoders. method: of whose placement it is: the balancer's, `both` phases at once, or `arrival`. remedy:
    what of `strategy.remedies` was applied. encoder_rank: int64 by piece, which rank encodes its media,
    dp rank * cp + cp rank; None: those that have its tokens.
    """

    dp_rank: NDArray[np.int64]
    microbatch: NDArray[np.int64]
    metrics: Mapping[str, float]
    work: NDArray[np.float64]
    method: str
    remedy: RemedyName | None = None
    encoder_rank: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Placed:
    """The rank of each sequence, int64 (n,), and what it comes from. Empty sequences behind may lack."""

    method: str
    rank: NDArray[np.int64]
    remedy: RemedyName | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Phases:
    """Costs of a step's sequences, float64 (n,) each, by one model; empty ones are behind.

    level   neighbouring ranks that share their encoder work evenly; 1: each has its own
    """

    llm: NDArray[np.float64]
    encoder: NDArray[np.float64]
    level: int = 1

    def step_time(self, rank: NDArray[np.int64], slow: NDArray[np.float64]) -> float:
        """Predicted time of the step, in the unit of the costs: ranks meet after each phase."""
        return float(sum(self.times(rank, slow).max(axis=1)))

    def times(self, rank: NDArray[np.int64], slow: NDArray[np.float64]) -> NDArray[np.float64]:
        """(2, dp): of each rank, of which `slow` (2, dp) says what a unit of work takes."""
        dp, phases = slow.shape[1], (self.llm[: len(rank)], self.encoder[: len(rank)])
        times = np.stack([loads(phase, rank, dp) for phase in phases]) * slow
        if self.level > 1:
            times[1] = evenly(loads(phases[1], rank, dp), slow[1], self.level)
        return times

    def own(self) -> _Phases:
        """With encoder work where its tokens are."""
        return replace(self, level=1)

    def least_time(self, slow: NDArray[np.float64]) -> float:
        """Of the step where all ranks are equally busy in both phases."""
        speeds = np.divide(1.0, slow, out=np.zeros_like(slow), where=slow > 0).sum(axis=1)
        return float(self.llm.sum() / speeds[0] + self.encoder.sum() / speeds[1])


def place(plan: Plan, mesh: MeshSize, strategy: Strategy, factors: Sequence[float] = ()) -> Placement:
    """As many microbatches on all dp ranks, and as few as hold what each has of the plan's sequences.

    factors   what a fit multiplies each part of the work with; none: the configured costs alone

    Metrics: `llm_imbalance`, `encoder_imbalance`, the slowest dp rank's time over that of equal shares (of
    like ranks max / mean); the same with sequences in order of arrival, `..._arrival`; the least that any
    placement of these sequences could have, `..._floor`; and `llm_gap`, dearest rank over the floor, minus 1.
    Of each remedy that the job allows, `remedy_...`: the share of the step's predicted time that it spares,
    0 where it is not applied. By the configured costs, with or without a fit. Where encoder work is
    dispatched, those of the encoders are what `dispatch` says instead.
    """
    sequences, per_microbatch = plan.num_sequences, strategy.per_microbatch
    if strategy.even:  # empty ones are placed like others
        sequences = num_microbatches(sequences, mesh, per_microbatch) * per_microbatch * mesh.dp
    parts = _work(plan, strategy, sequences)
    level = 1 if strategy.dispatch is None else strategy.dispatch.level(mesh.dp)
    given = _Phases(parts[:, :-1].sum(axis=1), parts[:, -1], level)
    models = [given]
    if len(factors) == parts.shape[1]:  # else they are of costs that were configured before
        scaled = parts * np.asarray(factors, np.float64)
        models.append(_Phases(scaled[:, :-1].sum(axis=1), scaled[:, -1], level))
    most = _most(strategy, sequences, mesh.dp)
    slow = np.ones((2, mesh.dp)) if strategy.ranks is None else strategy.ranks.slow
    arrival = in_rounds(sequences, most)
    placements = [_Placed(ARRIVAL, arrival)]
    for model in models:
        placements += _candidates(model, sequences, mesh.dp, strategy)
    times = [[model.step_time(each.rank, slow) for each in placements] for model in models]
    chosen = no_harm(times)
    if strategy.dispatch is not None:
        ranks = [each.rank for each in placements]
        chosen = nearest(strategy.dispatch, ranks, times, chosen, given.encoder, slow[1])
    placed = without = placements[chosen]
    if strategy.remedies:
        placed = _with_remedy(models, slow, strategy, without, plan.num_sequences)
    if placed.remedy is not None:
        most = _most(strategy.with_remedy(placed.remedy), len(placed.rank), mesh.dp)
    metrics = _metrics(given, placed.rank, arrival, slow, None if strategy.even else most)
    metrics |= _spared(
        strategy, placed.remedy, *(given.step_time(each.rank, slow) for each in (without, placed))
    )
    work = np.stack([loads(part[: len(placed.rank)], placed.rank, mesh.dp) for part in parts.T], axis=1)
    work *= np.stack([*[slow[0]] * (parts.shape[1] - 1), slow[1]], axis=1)
    dp_rank, microbatch = _microbatches(models[-1], placed.rank, mesh, per_microbatch)
    encoder_rank = None
    if strategy.dispatch is not None:
        count, size = plan.num_sequences, np.diff(plan.sequence_offsets)
        home, turn = (np.repeat(column[:count], size) for column in (dp_rank, microbatch))
        costs = strategy.encoder.of_pieces(plan.pieces)
        dispatched = dispatch(strategy.dispatch, plan.pieces, costs, home, turn, slow[1], mesh.cp)
        encoder_rank = dispatched.rank
        metrics |= dispatched.metrics
        work[:, -1] = dispatched.load * slow[1]
    return Placement(dp_rank, microbatch, metrics, work, placed.method, placed.remedy, encoder_rank)


def _microbatches(
    model: _Phases, dp_rank: NDArray[np.int64], mesh: MeshSize, per_microbatch: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`dp_rank` with empty sequences behind, so that each rank has as many, and the microbatch of each."""
    counts = np.bincount(dp_rank, minlength=mesh.dp)
    number = -(-int(counts.max(initial=1)) // per_microbatch)
    per_rank = number * per_microbatch
    filled = np.concatenate([dp_rank, np.repeat(np.arange(mesh.dp), per_rank - counts)])
    cost = np.zeros(len(filled))
    busy = model.llm + model.encoder if model.level == 1 else model.llm
    cost[: len(dp_rank)] = busy[: len(dp_rank)]
    # By rank, on each rank by falling cost; the i-th of a rank has standing i // per_microbatch. Empty ones,
    # which stand behind, are last among those that cost nothing.
    order = np.lexsort((-cost, filled))
    microbatch = np.empty(len(filled), np.int64)
    turn = turns(number, "middle" if mesh.pp > 1 else "falling")
    microbatch[order] = turn[np.arange(len(filled)) % per_rank // per_microbatch]
    return filled, microbatch


def _metrics(
    given: _Phases,
    dp_rank: NDArray[np.int64],
    arrival: NDArray[np.int64],
    slow: NDArray[np.float64],
    most: NDArray[np.int64] | None,
) -> dict[str, float]:
    """See `place`. `most`: None where all have as many."""
    metrics = {}
    placed, arrived = (given.own().times(rank, slow) for rank in (dp_rank, arrival))
    for row, (name, phase) in enumerate((("llm", given.llm), ("encoder", given.encoder))):
        speeds = np.divide(1.0, slow[row], out=np.zeros_like(slow[row]), where=slow[row] > 0)
        caps = most if name == "llm" or given.level == 1 else None  # media are no part of sequences there
        least = floor(phase, len(speeds), speeds=speeds, per_rank=caps)
        mean = float(phase.sum()) / float(speeds.sum())
        metrics[f"{name}_imbalance"] = float(placed[row].max()) / mean if mean > 0 else 1.0
        metrics[f"{name}_imbalance_arrival"] = float(arrived[row].max()) / mean if mean > 0 else 1.0
        metrics[f"{name}_floor"] = least.imbalance(mean)
        if name == "llm":
            metrics["llm_gap"] = gap(placed[row], least)
    return metrics


def _work(plan: Plan, strategy: Strategy, count: int) -> NDArray[np.float64]:
    """float64 (count, parts) of the plan's sequences, and of empty ones behind them."""
    pieces, offsets = plan.pieces, plan.sequence_offsets
    columns = [*strategy.llm.parts(pieces.length).T, strategy.encoder.of_pieces(pieces)]
    work = np.zeros((count, len(columns)))
    work[: plan.num_sequences] = np.stack([segment_sum(column, offsets) for column in columns], axis=1)
    return work


def _most(strategy: Strategy, count: int, dp: int) -> NDArray[np.int64]:
    """int64 (dp,): of `count` sequences, the most of each dp rank."""
    return counts_allowed(
        count, dp, strategy.per_microbatch, equal=strategy.equal_counts, ranks=strategy.ranks
    )


def _candidates(
    model: _Phases, count: int, dp: int, strategy: Strategy, remedy: RemedyName | None = None
) -> list[_Placed]:
    """Placements of the first `count` sequences that are worth a look by a model, beside that of arrival."""
    if strategy.balance == ARRIVAL:
        return []
    llm, encoder, most = model.llm[:count], model.encoder[:count], _most(strategy, count, dp)
    if strategy.dispatch is None:
        return _found(strategy, llm, encoder, most, remedy)
    found = _found(strategy, llm, np.zeros(count), most, remedy)  # encoders are level wherever sequences go,
    if strategy.ranks is None:  # and little is dispatched where their own are nearly so
        found += _found(strategy, llm, encoder, most, remedy)
    return found


def _found(
    strategy: Strategy,
    llm: NDArray[np.float64],
    encoder: NDArray[np.float64],
    most: NDArray[np.int64],
    remedy: RemedyName | None,
) -> list[_Placed]:
    """Placements by these costs of sequences, (n,), of which each dp rank may get `most` (dp,)."""
    dp = len(most)
    if strategy.ranks is not None:
        ranks = Ranks(dp, strategy.ranks.speeds, most)
        rank = place_items(np.stack([llm, encoder]), ranks).astype(np.int64)
        assert (rank >= 0).all(), "check_mesh saw to room for every sequence"
        return [_Placed(BOTH, rank, remedy)]
    per_rank = int(most.max()) if strategy.equal_counts else None
    balance = Balance(strategy.balance, "equal" if strategy.equal_counts else "any")
    found = candidates(balance, llm, encoder, dp, strategy.group_size, per_rank)
    return [_Placed(method, rank, remedy) for method, rank in found.items()]


def _with_remedy(
    models: Sequence[_Phases], slow: NDArray[np.float64], strategy: Strategy, without: _Placed, count: int
) -> _Placed:
    """That of the remedy which spares most of the step's time under every model, and `remedy_gain` of it at
    least; else `without`. `count`: sequences that are not empty.
    """
    dp, least_gain = slow.shape[1], strategy.remedy_gain
    wanted = [model.step_time(without.rank, slow) * (1 - least_gain) for model in models]
    if any(model.least_time(slow) >= time for model, time in zip(models, wanted, strict=True)):
        return without  # level enough: nothing could spare as much
    found = [without]
    for name in strategy.remedies:
        other = strategy.with_remedy(name)
        placed = len(without.rank) if other.even else count
        for model in models:
            found += _candidates(model, placed, dp, other, name)
    times = [
        [time, *(model.step_time(each.rank, slow) for each in found[1:])]
        for model, time in zip(models, wanted, strict=True)
    ]
    return found[no_harm(times)]


def _spared(strategy: Strategy, applied: RemedyName | None, before: float, after: float) -> dict[str, float]:
    """Metrics of the remedies that may be applied, by the times of the step without and with one."""
    spared = 1 - after / before if applied is not None else 0.0
    return {f"remedy_{name}": spared if name == applied else 0.0 for name in strategy.remedies}


def num_microbatches(sequences: int, mesh: MeshSize, per_microbatch: int) -> int:
    """Of each rank: as few as hold that many sequences, and as many on every rank."""
    return -(-sequences // (mesh.dp * per_microbatch))


def set_microbatches(config: Config, mesh: MeshSize) -> int:
    """Microbatches of each rank in every step; 0 where they differ from step to step."""
    strategy, sequences = config.strategy, config.num_sequences
    if sequences is None or strategy.counts == "any" or "unequal" in strategy.allowed_remedies:
        return 0
    size, ranks = config.global_batch.per_microbatch, Unlike.of(strategy)
    if ranks is None:
        return num_microbatches(sequences, mesh, size)
    return -(-int(counts_allowed(sequences, mesh.dp, size, equal=True, ranks=ranks).max()) // size)


def check_mesh(config: Config, mesh: MeshSize) -> None:
    """MeshError, with the numbers and the nearest mesh that fits, where the batch does not divide.

    A batch in samples is of no set number of sequences: every dp fits, as it does where ranks may have unlike
    numbers. Groups of ranks must divide dp; ranks that are not alike must be as many as they are said to be.
    """
    ranks = Unlike.of(config.strategy)
    if ranks is not None:
        ranks.check(mesh.dp, config.num_sequences)
    group_size = config.strategy.group_size
    if group_size is not None and mesh.dp % group_size:
        fits = [size for size in range(1, mesh.dp + 1) if mesh.dp % size == 0]
        close = sorted(sorted(fits, key=lambda size: (abs(size - group_size), size))[:2])
        raise MeshError(
            f"dp={mesh.dp} does not divide into groups of strategy.group_size={group_size} ranks: use a "
            f"group_size of {' or '.join(map(str, close))}, or a dp that is a multiple of {group_size}"
        )
    sequences, per_microbatch = config.num_sequences, config.global_batch.per_microbatch
    even = config.strategy.counts == "equal" and ranks is None
    if even and sequences is not None and sequences % (mesh.dp * per_microbatch):
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
