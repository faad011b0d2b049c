"""How good a placement could be at best, and how far from it one is. Every plan reports its gap.

The floor is the largest of these lower bounds on the dearest rank; which of them it is says what would help
(`remedies.py` reckons with it):

- `mean`: all work in equal shares; the placement decides.
- `item`: the dearest item on the fastest rank (Graham 1969, SIAM J. Appl. Math. 17).
- `crowd`: more dear items than ranks. Of the j R + 1 dearest some rank has j + 1, at least the cheapest of
  them (Dell'Amico and Martello 1995, ORSA J. Computing 7, bound L2); of ranks of unequal speed, j items keep
  at most the j fastest busy (Horvath, Lam and Sethi 1977, J. ACM 24).
- `caps`: the other ranks can't hold all the rest, so that a rank must take cheap items beside the dearest,
  or more than it has time for. Equal counts are such a cap: the rank of the dearest item has as many as all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Binding = Literal["mean", "item", "crowd", "caps"]


@dataclass(frozen=True, slots=True)
class Floor:
    """Lower bound on the dearest rank of any placement, and what makes it so.

    value    in the unit of the costs; with speeds, in that of cost over speed
    binding  see the module. Of equal bounds the first in its list: a placement that reaches the mean is all
             one can ask for
    item     index of the dearest item; -1 where there is none
    """

    value: float
    binding: Binding
    item: int = -1

    def imbalance(self, mean: float) -> float:
        """The bound as max / mean; 1 where nothing costs anything."""
        return self.value / mean if mean > 0 else 1.0


@dataclass(frozen=True, slots=True)
class StepFloor:
    """Of a step of two phases, after each of which all ranks meet: whether one placement serves both or
    each has its own.
    """

    llm: Floor
    encoder: Floor

    @property
    def value(self) -> float:
        """The least time of the step."""
        return self.llm.value + self.encoder.value

    def gap(self, llm_load: ArrayLike, encoder_load: ArrayLike) -> float:
        """Time of the step with these loads float (ranks,) over the bound, minus 1."""
        if self.value <= 0:
            return 0.0
        return (_most(llm_load) + _most(encoder_load)) / self.value - 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A placement beside the best that there could be.

    load       float64 (ranks,), cost on each; with speeds, its time
    imbalance  max / mean of it
    gap        its max over the floor, minus 1
    """

    load: Floats
    imbalance: float
    gap: float
    floor: Floor


def floor(
    costs: ArrayLike,
    num_ranks: int,
    *,
    speeds: ArrayLike | None = None,
    per_rank: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    capacity: ArrayLike | None = None,
) -> Floor:
    """The floor of `costs` float (n,), finite and not negative, on `num_ranks` ranks.

    speeds    float (ranks,), not negative: a rank takes cost / speed. One of speed 0 gets nothing
    per_rank  most items of a rank: int, or int (ranks,)
    weights   of the items, float (n,), and `capacity`, float or float (ranks,), their most on a rank: tokens

    ValueError names what can't be: an item that no rank holds, more than all ranks hold, work without speed.
    """
    values = _values("item", costs)
    pace = _speeds(speeds, num_ranks)
    if len(values) == 0:
        return Floor(0.0, "mean")
    if (weights is None) != (capacity is None):
        raise ValueError("weights and capacity belong together; give both or none")
    item = int(np.argmax(values))
    fastest = float(pace.max())
    if fastest == 0.0:
        raise ValueError(f"{len(values)} items for ranks that all have speed 0")
    bounds: list[tuple[Binding, float]] = [
        ("mean", math.fsum(values) / math.fsum(pace)),
        ("item", float(values[item]) / fastest),
        ("crowd", _crowd(values, pace)),
    ]
    if per_rank is not None:
        bounds.append(("caps", _caps("items", values, np.ones(len(values)), per_rank, pace)))
    if weights is not None and capacity is not None:
        bounds.append(("caps", _caps("weight", values, _values("weight of item", weights), capacity, pace)))
    binding, value = bounds[0]
    for name, bound in bounds[1:]:
        if bound > value * (1 + 1e-12):  # a rounding is no reason
            binding, value = name, bound
    return Floor(value, binding, item)


def step_floor(
    llm_costs: ArrayLike, encoder_costs: ArrayLike, num_ranks: int, *, per_rank: ArrayLike | None = None
) -> StepFloor:
    """Of both phases: float (n,) and float (m,); `per_rank` as in `floor`, of either."""
    return StepFloor(
        floor(llm_costs, num_ranks, per_rank=per_rank), floor(encoder_costs, num_ranks, per_rank=per_rank)
    )


def judge(
    costs: ArrayLike,
    rank: ArrayLike,
    num_ranks: int,
    *,
    speeds: ArrayLike | None = None,
    per_rank: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    capacity: ArrayLike | None = None,
) -> Judged:
    """The placement `rank` int (n,) of `costs`, under the same caps and speeds as `floor`."""
    bound = floor(costs, num_ranks, speeds=speeds, per_rank=per_rank, weights=weights, capacity=capacity)
    load = loads(costs, rank, num_ranks)
    if speeds is not None:
        pace = _speeds(speeds, num_ranks)
        stuck = np.flatnonzero((pace == 0) & (load > 0))
        if len(stuck):
            raise ValueError(f"rank {stuck[0]} has speed 0, and work that costs {load[stuck[0]]}")
        load = load / np.where(pace > 0, pace, 1.0)
    return Judged(load, imbalance(load), gap(load, bound), bound)


def _crowd(values: Floats, pace: Floats) -> float:
    """See the module; 0 where there is nothing to add to the other bounds."""
    pace = np.sort(pace[pace > 0])[::-1]
    num_ranks = len(pace)
    falling = np.sort(values)[::-1]
    upto = np.append(0.0, np.cumsum(falling))  # cost of the dearest 0, 1, ... n
    if pace[0] != pace[-1]:
        several = min(len(values), num_ranks - 1)
        return float((upto[1 : several + 1] / np.cumsum(pace)[:several]).max(initial=0.0))
    rounds = np.arange(1, (len(values) - 1) // num_ranks + 1)
    crowded = upto[rounds * num_ranks + 1] - upto[rounds * num_ranks - rounds]
    return float(crowded.max(initial=0.0) / pace[0])


def _caps(what: str, values: Floats, weights: Floats, cap: ArrayLike, pace: Floats) -> float:
    """What must lie on a rank because the others are full, and beside the dearest item."""
    if weights.shape != values.shape:
        raise ValueError(f"{len(weights)} weights for {len(values)} items")
    caps = np.where(pace > 0, np.broadcast_to(np.asarray(cap, np.float64), pace.shape), 0.0)
    total, room = math.fsum(weights), math.fsum(caps)
    wide = int(np.argmax(weights))
    if weights[wide] > caps.max():
        raise ValueError(f"item {wide} has {what} {weights[wide]:g}; no rank holds more than {caps.max():g}")
    if total > room:
        raise ValueError(f"{total:g} {what} do not fit {len(pace)} ranks, which hold {room:g}")
    forced = np.maximum(0.0, total - (room - caps))  # on each rank, as the others hold no more
    # The least that so much weight can cost: the cheapest for their weight first, the last one in part.
    some = np.flatnonzero(weights > 0)
    if len(some) and weights.min() == weights[wide]:  # counts: the cheapest are the cheapest for their weight
        held = np.arange(len(some) + 1) * weights[wide]
        paid = np.append(0.0, np.cumsum(np.sort(values)))
    else:
        some = some[np.argsort(values[some] / weights[some], kind="stable")]
        held = np.append(0.0, np.cumsum(weights[some]))
        paid = np.append(0.0, np.cumsum(values[some]))
    dearest = int(np.argmax(values))
    beside = np.interp(np.maximum(0.0, forced - weights[dearest]), held, paid)
    moves = pace > 0
    with_dearest = (values[dearest] + beside[moves]) / pace[moves]
    alone = np.interp(forced[moves], held, paid) / pace[moves]
    can_hold = caps[moves] >= weights[dearest]
    return max(float(with_dearest[can_hold].min()), float(alone.max()))


def loads(costs: ArrayLike, rank: ArrayLike, num_ranks: int) -> Floats:
    """float64 (num_ranks,): sum of `costs` float (n,) on each rank; `rank` int (n,), 0 to num_ranks - 1."""
    ranks = np.asarray(rank, np.int64)
    return np.bincount(ranks, np.asarray(costs, np.float64), num_ranks).astype(np.float64)


def imbalance(load: ArrayLike) -> float:
    """Max / mean of `load` (ranks,): how much longer the slowest takes than equal work; 1 without any."""
    values = np.asarray(load, np.float64)
    mean = math.fsum(values) / len(values) if len(values) else 0.0
    return float(values.max()) / mean if mean > 0 else 1.0


def gap(load: ArrayLike, bound: Floor) -> float:
    """Dearest rank over the bound, minus 1: 0 is as good as can be (up to rounding, never below)."""
    return _most(load) / bound.value - 1.0 if bound.value > 0 else 0.0


def _most(load: ArrayLike) -> float:
    return float(np.max(np.asarray(load, np.float64)))


def _values(what: str, costs: ArrayLike) -> Floats:
    values = np.asarray(costs, np.float64)
    if values.ndim != 1:
        raise ValueError(f"costs have shape {values.shape}; one dimension is needed")
    wrong = np.flatnonzero(~((values >= 0) & np.isfinite(values)))
    if len(wrong):
        raise ValueError(f"{what} {wrong[0]} is {values[wrong[0]]}; finite and not negative")
    return values


def _speeds(speeds: ArrayLike | None, num_ranks: int) -> Floats:
    if num_ranks < 1:
        raise ValueError(f"num_ranks is {num_ranks}; at least 1")
    if speeds is None:
        return np.ones(num_ranks)
    pace = _values("speed of rank", speeds)
    if len(pace) != num_ranks:
        raise ValueError(f"{len(pace)} speeds for {num_ranks} ranks")
    return pace
