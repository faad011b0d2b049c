"""`balance` on costs: which rank gets which sequence. The service's planner places by the same function."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers.assign import BALANCERS, Cap, Ranks, by_groups, place
from dataloader_balancers.assign.microbatches import turns
from dataloader_balancers.bounds import loads
from dataloader_balancers.calibrate import no_harm
from dataloader_balancers.strategy.data import Floats, Ints
from dataloader_balancers.strategy.functions import checked_ranks
from dataloader_balancers.strategy.nodes import BOTH, Balance, StrategyError, method_name

ARRIVAL = "arrival"


def choose(
    balance: Balance,
    llm: Floats,
    encoder: Floats,
    num_ranks: int,
    group_size: int | None = None,
    per_rank: int | None = None,
    weights: Mapping[str, NDArray[np.int64]] | None = None,
) -> tuple[Ints, str]:
    """Ranks of the sequences, int64 (s,), and by which method they were chosen.

    llm, encoder  float64 (s,), cost of each sequence in both phases
    group_size    sequence i stays in the group of rank i mod R, where it arrives; None: all ranks are one
    per_rank      most sequences of a rank
    weights       int (s,) by name, for the caps; a sequence that no rank has room for is at -1

    Ranks meet after each phase, so that a step takes as long as the dearest rank's encoders *and* the dearest
    rank's language model: with alternatives, the placement with the shortest such time is taken, and the
    order of arrival where none gains over it (`calibrate.no_harm`). StrategyError where a method's result is
    none.
    """
    if group_size is not None and num_ranks % group_size:
        fits = [size for size in range(1, num_ranks + 1) if num_ranks % size == 0]
        near = sorted(sorted(fits, key=lambda size: (abs(size - group_size), size))[:2])
        raise StrategyError(
            f"distribute: groups of {group_size} do not divide {num_ranks} ranks: use "
            f"{' or '.join(map(str, near))}"
        )
    if balance.caps:
        name, group = method_name(balance.method), group_size or num_ranks
        caps = [Cap(key, (weights or {})[key], limit) for key, limit in balance.caps]
        try:
            return _both(llm, encoder, num_ranks, group, per_rank, caps), name
        except ValueError as error:
            raise StrategyError(f"balance: {error}") from error
    found = candidates(balance, llm, encoder, num_ranks, group_size, per_rank)
    if balance.alternatives:
        found = {ARRIVAL: in_order(len(llm), num_ranks), **found}
    methods = list(found)
    best = methods[no_harm([[step_time(llm, encoder, found[each], num_ranks) for each in methods]])]
    return found[best], best


def candidates(
    balance: Balance,
    llm: Floats,
    encoder: Floats,
    num_ranks: int,
    group_size: int | None = None,
    per_rank: int | None = None,
) -> dict[str, Ints]:
    """Placements to choose from, beside the order of arrival, by the method that each is of: the one asked
    for, and with alternatives, where encoders have work, that of both phases at once. As `choose`.
    """
    name, group = method_name(balance.method), group_size or num_ranks
    found = {name: _by_method(balance, llm, encoder, num_ranks, group, per_rank)}
    if balance.alternatives and name not in (ARRIVAL, BOTH) and encoder.any():
        found[BOTH] = _both(llm, encoder, num_ranks, group, per_rank)
    return found


def in_order(count: int, num_ranks: int) -> Ints:
    """int64 (count,): the rank where each arrives."""
    return np.arange(count, dtype=np.int64) % num_ranks


def step_time(llm: Floats, encoder: Floats, rank: Ints, num_ranks: int) -> float:
    """Predicted time of a step, in the unit of the costs: ranks meet after each phase."""
    return float(loads(llm, rank, num_ranks).max() + loads(encoder, rank, num_ranks).max())


def microbatches(cost: Floats, rank: Ints, num_ranks: int, per_microbatch: int, *, pipeline: bool) -> Ints:
    """int64 (s,): the turn of each sequence on its rank, `per_microbatch` to a turn.

    By falling cost, so that microbatch k costs about the same on all ranks and nobody waits inside a step;
    where there is a pipeline, dear ones in the middle, as it is filled and drained by the outermost.
    """
    order = np.lexsort((-cost, rank))
    counts = np.bincount(rank, minlength=num_ranks)
    standing = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    most = -(-int(counts.max(initial=0)) // per_microbatch)
    result = np.empty(len(order), np.int64)
    result[order] = turns(most, "middle" if pipeline else "falling")[standing // per_microbatch]
    return result


def _by_method(
    balance: Balance, llm: Floats, encoder: Floats, num_ranks: int, group: int, per_rank: int | None
) -> Ints:
    if balance.method == BOTH:
        return _both(llm, encoder, num_ranks, group, per_rank)
    method = BALANCERS[balance.method] if isinstance(balance.method, str) else balance.method

    name = method_name(balance.method)

    def checked(costs: ArrayLike, num_ranks: int, per_rank: int | None = None) -> NDArray[np.int32]:
        result = method(costs, num_ranks, per_rank)
        return checked_ranks(name, result, np.size(costs), num_ranks, per_rank).astype(np.int32)

    return by_groups(checked, llm + encoder, num_ranks, group, per_rank).astype(np.int64)


def _both(
    llm: Floats,
    encoder: Floats,
    num_ranks: int,
    group_size: int,
    per_rank: int | None,
    caps: list[Cap] | None = None,
) -> Ints:
    """Ranks that balance both phases at once, the language model first; within groups of ranks."""
    rank = np.full(len(llm), -1, np.int64)
    group = np.arange(len(llm)) % num_ranks // group_size
    phases = np.stack([llm, encoder])
    for number in range(num_ranks // group_size):
        items = np.flatnonzero(group == number)
        mine = [Cap(cap.name, np.asarray(cap.weights)[items], cap.limit) for cap in caps or ()]
        found = place(phases[:, items], Ranks(group_size, per_rank=per_rank), mine)
        rank[items] = np.where(found >= 0, number * group_size + found, -1)
    return rank
