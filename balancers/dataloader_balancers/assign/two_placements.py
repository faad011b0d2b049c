"""Encoder work on other ranks than its tokens: two placements, and what has to be sent from one to the other.

One placement for two phases can't be at the floor of both where one dear item fills a rank in one phase
(`place` comes as near as can be). With two, each phase has its own, and the encoder's output of an item is
sent to the rank that has its tokens, as in DistTrain (arXiv 2408.04275) and OrchMLLM (arXiv 2503.23830).
Links inside a node are an order of magnitude faster than those between nodes, so what counts is bytes
between nodes: nodes are balanced first, in both phases at once, which with many items each they nearly can
be; then ranks in a node, each phase for itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers.assign.items import checked
from dataloader_balancers.assign.lpt import lpt
from dataloader_balancers.assign.place import local_search, place
from dataloader_balancers.assign.ranks import Floats, Ints, Ranks

_SEARCH_UP_TO = 20_000  # items; with more, the greedy rule is near enough


@dataclass(frozen=True, slots=True, eq=False)
class Dispatch:
    """Which encoder item goes from which rank to which, by source, destination, item. What stays on its rank
    is not in it.

    item         int64 (k,), index into the encoder items
    source       int32 (k,), rank that encodes it
    destination  int32 (k,), rank that has its tokens
    num_bytes    float64 (k,)
    """

    item: NDArray[np.int64]
    source: NDArray[np.int32]
    destination: NDArray[np.int32]
    num_bytes: NDArray[np.float64]

    def between_nodes(self, ranks_per_node: int) -> float:
        """Bytes that leave a node."""
        crosses = self.source // ranks_per_node != self.destination // ranks_per_node
        return float(np.cumsum(np.append(0.0, self.num_bytes[crosses]))[-1])

    def matrix(self, num_ranks: int) -> NDArray[np.float64]:
        """float64 (source, destination): bytes, as an all-to-all wants its splits."""
        flat = self.source.astype(np.int64) * num_ranks + self.destination
        return (
            np.bincount(flat, self.num_bytes, num_ranks**2).astype(np.float64).reshape(num_ranks, num_ranks)
        )


@dataclass(frozen=True, slots=True, eq=False)
class TwoPlacements:
    """llm int32 (n,): rank of each item's tokens. encoder int32 (m,): rank of each encoder item's work."""

    llm: NDArray[np.int32]
    encoder: NDArray[np.int32]
    dispatch: Dispatch


def two_placements(
    llm_costs: ArrayLike,
    encoder_costs: ArrayLike,
    num_ranks: int,
    *,
    ranks_per_node: int | None = None,
    owner: ArrayLike | None = None,
    num_bytes: ArrayLike | None = None,
    llm_rank: ArrayLike | None = None,
    per_rank: int | None = None,
    tolerance: float = 0.01,
) -> TwoPlacements:
    """Both phases balanced, each by itself, with few bytes between nodes.

    llm_costs       float (n,)
    encoder_costs   float (m,), of pictures or clips
    ranks_per_node  neighbours on one host; None: all ranks are one node
    owner           int (m,), the item whose tokens an encoder item belongs to; None: item i to item i, m = n
    num_bytes       float (m,), size of the encoder's output; None: in proportion to its cost
    llm_rank        int (n,), where tokens are already; None: they are placed too
    per_rank        most items of a rank, in the language model
    tolerance       a node may be so much dearer to the encoder than an equal share before work leaves it

    Heuristic. Work without encoder cost is left where its tokens are. ValueError names what is wrong.
    """
    llm, encoder = checked(llm_costs, num_ranks, per_rank), checked(encoder_costs, num_ranks, None)
    size = num_ranks if ranks_per_node is None else ranks_per_node
    if size < 1 or num_ranks % size:
        raise ValueError(f"nodes of {size} ranks do not divide {num_ranks} ranks")
    if not tolerance >= 0:
        raise ValueError(f"tolerance is {tolerance}; from 0")
    belongs = _owner(owner, len(llm), len(encoder))
    weight = encoder if num_bytes is None else _bytes(num_bytes, len(encoder))
    if llm_rank is None:
        pictures = np.bincount(belongs, encoder, len(llm)).astype(np.float64)
        home = _language_model(llm, pictures, num_ranks, size, per_rank, tolerance)
    else:
        home = np.asarray(llm_rank, np.int64)
        if home.shape != llm.shape or np.any((home < 0) | (home >= num_ranks)):
            raise ValueError(f"llm_rank must be {len(llm)} ranks from 0 to {num_ranks - 1}")
    wanted = home[belongs]
    rank = _encoder(encoder, weight, wanted, num_ranks, size, tolerance)
    moved = np.flatnonzero(rank != wanted)
    moved = moved[np.lexsort((moved, wanted[moved], rank[moved]))]
    source, destination = rank[moved].astype(np.int32), wanted[moved].astype(np.int32)
    dispatch = Dispatch(moved, source, destination, weight[moved])
    return TwoPlacements(home.astype(np.int32), rank.astype(np.int32), dispatch)


def _bytes(num_bytes: ArrayLike, count: int) -> Floats:
    """float64 (count,), finite and from 0."""
    values = np.asarray(num_bytes, np.float64)
    if values.shape != (count,):
        raise ValueError(f"num_bytes has shape {values.shape} for {count} encoder items")
    wrong = np.flatnonzero(~((values >= 0) & np.isfinite(values)))
    if len(wrong):
        raise ValueError(f"encoder item {wrong[0]} has {values[wrong[0]]} bytes; finite numbers from 0")
    return values


def _owner(owner: ArrayLike | None, items: int, pictures: int) -> Ints:
    if owner is None:
        if items != pictures:
            raise ValueError(f"{items} LLM costs for {pictures} encoder costs; say the owner of each")
        return np.arange(items)
    belongs = np.asarray(owner, np.int64)
    if belongs.shape != (pictures,):
        raise ValueError(f"owner has shape {belongs.shape} for {pictures} encoder items")
    wrong = np.flatnonzero((belongs < 0) | (belongs >= items))
    if len(wrong):
        raise ValueError(f"encoder item {wrong[0]} belongs to item {belongs[wrong[0]]}; 0 to {items - 1}")
    return belongs


def _language_model(
    llm: Floats, pictures: Floats, num_ranks: int, size: int, per_rank: int | None, tolerance: float
) -> Ints:
    """Rank of each item's tokens: nodes balanced in both phases, if no rank gets much dearer by that."""
    flat = _balance(llm, num_ranks, per_rank)
    if size == num_ranks:
        return flat
    nodes = num_ranks // size
    most = None if per_rank is None else per_rank * size
    node = place(np.stack([llm, pictures]), Ranks(nodes, per_rank=most)).astype(np.int64)
    rank = np.empty(len(llm), np.int64)
    for number, items in enumerate(_members(node, nodes)):
        rank[items] = number * size + _balance(llm[items], size, per_rank)
    dearest = [np.bincount(found, llm, num_ranks).max() for found in (rank, flat)]
    return rank if dearest[0] <= dearest[1] * (1 + tolerance) else flat


def _encoder(
    costs: Floats, weight: Floats, wanted: Ints, num_ranks: int, size: int, tolerance: float
) -> Ints:
    """Rank of each encoder item."""
    node = _leave_full_nodes(costs, weight, wanted // size, num_ranks // size, tolerance)
    rank = wanted.copy()
    for number, items in enumerate(_members(node, num_ranks // size)):
        working = items[costs[items] > 0]
        share = _balance(costs[working], size, None)
        here = wanted[working] // size == number
        stays = np.zeros((size, size))  # (share, rank of the node): bytes that need not be sent
        np.add.at(stays, (share[here], wanted[working][here] % size), weight[working][here])
        rank[working] = number * size + _names(stays)[share]
    return rank


def _leave_full_nodes(costs: Floats, weight: Floats, home: Ints, nodes: int, tolerance: float) -> Ints:
    """Node of each encoder item: its home, but that nodes above an equal share give away what costs most for
    its bytes.
    """
    node = home.copy()
    load = np.bincount(home, costs, nodes).astype(np.float64)
    share = math.fsum(load) / nodes
    cheap_to_send = np.argsort(-costs / np.maximum(weight, 1e-300), kind="stable")
    members = _members(home[cheap_to_send], nodes)
    for full in np.argsort(-load, kind="stable").tolist():
        for item in cheap_to_send[members[full]].tolist():
            if load[full] <= share * (1 + tolerance):
                break
            to = int(np.argmin(load))
            if costs[item] > 0 and load[to] + costs[item] < load[full]:
                node[item] = to
                load[full] -= costs[item]
                load[to] += costs[item]
    return node


def _names(stays: Floats) -> Ints:
    """(share,): the rank that does it; greedy by the bytes that then stay."""
    names = np.full(len(stays), -1)
    taken = np.zeros(len(stays), bool)
    for cell in np.argsort(-stays, axis=None, kind="stable").tolist():
        share, rank = divmod(cell, len(stays))
        if names[share] < 0 and not taken[rank]:
            names[share], taken[rank] = rank, True
    return names


def _balance(costs: Floats, num_ranks: int, per_rank: int | None) -> Ints:
    balancer = local_search if len(costs) <= _SEARCH_UP_TO else lpt
    return balancer(costs, num_ranks, per_rank).astype(np.int64)


def _members(group: Ints, count: int) -> list[Ints]:
    """Indices of each group, ascending."""
    order = np.argsort(group, kind="stable")
    return np.split(order, np.searchsorted(group[order], np.arange(1, count)))
