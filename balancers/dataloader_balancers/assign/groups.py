"""Placement within groups of ranks: items stay in the group they came to, or groups are balanced first."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers.assign.items import Balancer, checked
from dataloader_balancers.assign.lpt import lpt

Between = Literal["arrival", "balanced"]


def by_groups(
    balancer: Balancer,
    costs: ArrayLike,
    num_ranks: int,
    group_size: int,
    per_rank: int | None = None,
    *,
    between: Between | ArrayLike = "arrival",
) -> NDArray[np.int32]:
    """int32 (n,): ranks of the items, by `balancer` within groups of `group_size` neighbours each.

    between  "arrival": item i stays in the group of rank i mod R, where it arrived; a group is then all that
             ever exchanges work (a node, a pod), and its luck with the draw stays. "balanced": groups are
             balanced by longest processing time first; that makes a balancer that grows faster than n log n
             (`karmarkar_karp`, `local_search`) fit for many ranks. Or int (n,): the group of each item.

    The floor of a group is that of its own items: the smaller the groups, the further the dearest rank of all
    may be from the floor of all. ValueError where groups do not divide the ranks.
    """
    values = checked(costs, num_ranks, per_rank)
    if group_size < 1 or num_ranks % group_size:
        fits = [size for size in range(1, num_ranks + 1) if num_ranks % size == 0]
        near = sorted(sorted(fits, key=lambda size: (abs(size - group_size), size))[:2])
        raise ValueError(
            f"groups of {group_size} do not divide {num_ranks} ranks: use {' or '.join(map(str, near))}"
        )
    groups = num_ranks // group_size
    most = None if per_rank is None else per_rank * group_size
    group = _between(values, num_ranks, groups, most, between)
    over = np.flatnonzero(np.bincount(group, minlength=groups) > (len(values) if most is None else most))
    if len(over):
        held = np.count_nonzero(group == over[0])
        raise ValueError(f"group {over[0]} has {held} items; its {group_size} ranks take {per_rank} each")
    rank = np.empty(len(values), np.int32)
    order = np.argsort(group, kind="stable")
    bounds = np.searchsorted(group[order], np.arange(groups + 1))
    for number in range(groups):
        items = order[bounds[number] : bounds[number + 1]]
        rank[items] = number * group_size + balancer(values[items], group_size, per_rank)
    return rank


def _between(
    values: NDArray[np.float64], num_ranks: int, groups: int, most: int | None, between: Between | ArrayLike
) -> NDArray[np.int64]:
    """(n,): the group of each item."""
    if isinstance(between, str):
        if between == "arrival":
            return np.arange(len(values)) % num_ranks // (num_ranks // groups)
        if between == "balanced":
            return lpt(values, groups, most).astype(np.int64)
        raise ValueError(f"between is {between!r}; known: arrival, balanced, or the group of each item")
    group = np.asarray(between, np.int64)
    if group.shape != values.shape:
        raise ValueError(f"{group.shape} groups for {len(values)} items")
    wrong = np.flatnonzero((group < 0) | (group >= groups))
    if len(wrong):
        raise ValueError(f"item {wrong[0]} is in group {group[wrong[0]]}; groups are 0 to {groups - 1}")
    return group
