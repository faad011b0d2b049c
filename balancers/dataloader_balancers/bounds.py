"""How good a placement could be at best, and how far from it one is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True)
class Floor:
    """Lower bound on the dearest rank of any placement, and what makes it so.

    value    in the unit of the costs
    binding  "mean": equal shares; "item": one item costs more than an equal share, and can't be split
    """

    value: float
    binding: Literal["mean", "item"]

    def imbalance(self, mean: float) -> float:
        """The bound as max / mean; 1 where nothing costs anything."""
        return self.value / mean if mean > 0 else 1.0


def floor(costs: ArrayLike, num_ranks: int) -> Floor:
    """max(mean load, dearest item) of `costs` (n,) over `num_ranks` (Graham 1969)."""
    values = np.asarray(costs, np.float64)
    if num_ranks < 1:
        raise ValueError(f"num_ranks is {num_ranks}; at least 1")
    if len(values) == 0:
        return Floor(0.0, "mean")
    mean, dearest = float(values.sum()) / num_ranks, float(values.max())
    return Floor(dearest, "item") if dearest > mean else Floor(mean, "mean")


def loads(costs: ArrayLike, rank: ArrayLike, num_ranks: int) -> NDArray[np.float64]:
    """float64 (num_ranks,): sum of costs on each rank."""
    return np.bincount(np.asarray(rank), np.asarray(costs, np.float64), num_ranks).astype(np.float64)


def imbalance(load: ArrayLike) -> float:
    """Max / mean over ranks: how much longer the slowest takes than equal work; 1 where there is none."""
    values = np.asarray(load, np.float64)
    mean = float(values.mean()) if len(values) else 0.0
    return float(values.max()) / mean if mean > 0 else 1.0


def gap(load: ArrayLike, bound: Floor) -> float:
    """Dearest rank over the bound, minus 1: 0 is as good as can be."""
    values = np.asarray(load, np.float64)
    return float(values.max()) / bound.value - 1.0 if bound.value > 0 else 0.0
