"""Which rank encodes the media of each piece, where that may be another than has its tokens. Pure.

`place.py` says where sequences go; this is the second placement (`strategy.encoder_placement: dispatch`).
Ranks exchange embeddings once a microbatch and wait for each other there, so work is levelled microbatch by
microbatch, over all ranks along dp and cp, or within `strategy.group_size` dp ranks. A piece's media stay
together and with its tokens, unless its ranks have more than their share; then they go to a rank of the same
host before another (`dataloader_balancers.near_home`). It follows from the record, the mesh and the
configured costs alone, so that it is worked out anew wherever it is wanted and stands in no log.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dataloader_balancers import floor, loads, near_home
from dataloader_svc.planner.pieces import Pieces

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Dispatch:
    """How encoder work may be spread.

    group_size      dp ranks that exchange embeddings with each other; None: all
    ranks_per_node  neighbouring dp ranks on one host; None: all are
    merge           patches of an embedding are its square
    frames          mel frames of an embedding
    """

    group_size: int | None
    ranks_per_node: int | None
    merge: int
    frames: int

    def level(self, dp: int) -> int:
        """How many dp ranks work is spread over, so that it work is level."""
        return dp if self.group_size is None else self.group_size

    def nodes(self, dp: int) -> Ints:
        """(dp,) the host of each rank, counted from 0; the last may be of fewer ranks."""
        return np.arange(dp) // (self.ranks_per_node or dp)

    def embeddings(self, pieces: Pieces) -> Ints:
        """(n,) rows that encoders make of each piece: as many as it has placeholder tokens."""
        rows: Ints = pieces.patches // self.merge**2 + pieces.frames // self.frames
        return rows


@dataclass(frozen=True, slots=True, eq=False)
class Dispatched:
    """rank: int64 (n,) by piece, dp rank * cp + cp rank; 0 of pieces without media. load: float64 (dp,), cost
    of the busiest cp rank of each. metrics: see `dispatch`.
    """

    rank: Ints
    load: Floats
    metrics: dict[str, float]


def dispatch(
    how: Dispatch,
    pieces: Pieces,
    costs: Floats,
    home: Ints,
    microbatch: Ints,
    slow: Floats,
    cp: int,
) -> Dispatched:
    """Who encodes what.

    costs, home, microbatch   (n,) by piece: of its media; the dp rank and the microbatch of its tokens
    slow                      (dp,) time that a unit of encoder work takes on each dp rank; 0: it does none

    Metrics, by the configured costs: `encoder_imbalance`, the slowest rank's time over that of equal shares,
    summed over the step as for other placements; `encoder_imbalance_own` where each dp rank encodes its own,
    its cp ranks sharing the work; `encoder_waits` and `encoder_waits_own`, the same of the slowest rank of
    each microbatch, since ranks meet in each; `encoder_floor`, the least that the first could be; and rows:
    `embeddings` of all media, `dispatched` of those to another dp rank, `dispatched_nodes` to another host.
    """
    dp = len(slow)
    fast = np.divide(1.0, slow, out=np.zeros_like(slow), where=slow > 0)
    group, nodes = how.level(dp), how.nodes(dp)
    rank = np.zeros(len(pieces), np.int64)
    media = np.flatnonzero(pieces.has_media)
    media = media[np.lexsort((media, home[media] // group, microbatch[media]))]
    key = microbatch[media] * dp + home[media] // group
    for some in np.split(media, np.flatnonzero(np.diff(key)) + 1) if len(media) else ():
        first = int(home[some[0]]) // group * group
        inside = slice(first, first + group)
        found = near_home(
            costs[some],
            home[some] - first,
            group * cp,
            home_size=cp,
            nodes=np.repeat(nodes[inside], cp),
            speeds=np.repeat(fast[inside], cp) if fast[inside].any() else None,
        )
        rank[some] = first * cp + found
    to = rank[media] // cp
    rows, left = how.embeddings(pieces), np.zeros(len(pieces), np.bool_)
    left[media] = to != home[media]
    far = np.zeros(len(pieces), np.bool_)
    far[media] = nodes[to] != nodes[home[media]]
    by_rank = loads(costs[media], rank[media], dp * cp).reshape(dp, cp)
    own = loads(costs[media], home[media], dp)
    times, equal = by_rank.max(axis=1) * slow, math.fsum(costs[media]) / (fast.sum() * cp)
    own_times = own * slow / cp
    least = floor(costs[media], dp * cp, speeds=np.repeat(fast, cp))
    metrics = {
        "encoder_imbalance": _over(float(times.max()), equal),
        "encoder_imbalance_own": _over(float(own_times.max()), equal),
        "encoder_waits": _over(_waits(costs, rank, microbatch, media, np.repeat(slow, cp)), equal),
        "encoder_waits_own": _over(_waits(costs, home, microbatch, media, slow / cp), equal),
        "encoder_floor": least.imbalance(equal),
        "embeddings": float(rows.sum()),
        "dispatched": float(rows[left].sum()),
        "dispatched_nodes": float(rows[far].sum()),
    }
    return Dispatched(rank, by_rank.max(axis=1), metrics)


def _over(time: float, equal: float) -> float:
    return time / equal if equal > 0 else 1.0


def _waits(costs: Floats, rank: Ints, microbatch: Ints, media: Ints, slow: Floats) -> float:
    """Sum over the microbatches of the time of the slowest rank of each."""
    if not len(media):
        return 0.0
    count, turns = len(slow), int(microbatch[media].max()) + 1
    spot = microbatch[media] * count + rank[media]
    times = loads(costs[media], spot, count * turns).reshape(turns, count) * slow
    return float(times.max(axis=1).sum())


def evenly(load: Floats, slow: Floats, level: int) -> Floats:
    """(dp,) time of each rank where `level` neighbours share their load (dp,) by their speeds."""
    fast = np.divide(1.0, slow, out=np.zeros_like(slow), where=slow > 0).reshape(-1, level).sum(axis=1)
    work = load.reshape(-1, level).sum(axis=1)
    return np.repeat(np.divide(work, fast, out=np.zeros_like(work), where=fast > 0), level)


def excess(how: Dispatch, costs: Floats, home: Ints, slow: Floats) -> tuple[float, float]:
    """Encoder work of sequences on dp ranks `home` that is above equal shares of hosts, and of ranks: what
    has to go to another, at least. float64 (n,), int64 (n,), (dp,).
    """
    dp = len(slow)
    fast = np.divide(1.0, slow, out=np.zeros_like(slow), where=slow > 0)
    total, load, nodes = math.fsum(costs), loads(costs, home, dp), how.nodes(dp)
    share = fast * (total / fast.sum())
    above = np.bincount(nodes, load) - np.bincount(nodes, share)
    return float(above.clip(0).sum()), float((load - share).clip(0).sum())


_ABOUT = 1.01
"""Placements whose step takes so much longer than the shortest are about as good, if less is dispatched."""


def nearest(
    how: Dispatch,
    ranks: Sequence[Ints],
    times: Sequence[Sequence[float]],
    chosen: int,
    costs: Floats,
    slow: Floats,
) -> int:
    """Of the placements `ranks`, (n,) each, that take about as long as `chosen` by every model, the index of
    the one for which least encoder work has to leave its host, then its rank.

    times   by model, of each placement; costs float64 (>= n,) of sequences
    """
    good = [i for i in range(len(ranks)) if all(row[i] <= row[chosen] * _ABOUT for row in times)]

    def moved(index: int) -> tuple[float, float, bool]:
        rank = ranks[index]
        return *excess(how, costs[: len(rank)], rank, slow), index != chosen

    return min(good, key=moved)
