"""How good a placement could be at best, and how far from it one is. Every plan reports its gap."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True)
class Floor:
    """Lower bound on the dearest rank of any placement, and what makes it so.

    value    in the unit of the costs
    binding  "mean": equal shares, the placement decides; "item": one item costs more than an equal share, and
             only cutting it, a wider choice of items, or waiting helps
    item     index of the dearest item; -1 where there is none
    """

    value: float
    binding: Literal["mean", "item"]
    item: int = -1

    def imbalance(self, mean: float) -> float:
        """The bound as max / mean; 1 where nothing costs anything."""
        return self.value / mean if mean > 0 else 1.0


def floor(costs: ArrayLike, num_ranks: int) -> Floor:
    """max(mean load, dearest item) of `costs` float (n,) over `num_ranks` (Graham 1969)."""
    values = np.asarray(costs, np.float64)
    if num_ranks < 1:
        raise ValueError(f"num_ranks is {num_ranks}; at least 1")
    if len(values) == 0:
        return Floor(0.0, "mean")
    mean = math.fsum(values) / num_ranks
    item = int(np.argmax(values))
    dearest = float(values[item])
    return Floor(dearest, "item", item) if dearest > mean else Floor(mean, "mean", item)


def loads(costs: ArrayLike, rank: ArrayLike, num_ranks: int) -> NDArray[np.float64]:
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
    return float(np.max(np.asarray(load, np.float64))) / bound.value - 1.0 if bound.value > 0 else 0.0
