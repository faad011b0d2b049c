"""A handful of pieces: all ways to pack them, depth first, cut off where none can be better.

Heuristics are worst where a sequence holds two or three pieces. So few can be tried through, or nearly: the
search ends after a number of steps that no machine decides.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dataloader_balancers.pack.pieces import Task

FEW = 16
_MOST_STEPS = 20_000
# So near to a bound it ends.
_NEAR = 0.002
_LESS = 1 - 1e-9  # no better for a rounding


def searched(task: Task, result: NDArray[np.int32]) -> NDArray[np.int32]:
    """A packing with at least the tokens of `result`, and of those with most the cheapest dearest sequence.

    Of more than `FEW` pieces, or pieces of several priorities, `result` itself.
    """
    if not 1 < len(task.sizes) <= FEW or np.any(task.urgency != task.urgency[0]):
        return result
    # In an order that arrival has no part in.
    order = np.lexsort((*task.weights, -task.price, -task.sizes))
    for by_cost in (False, True):  # first as many tokens as can be, for which costs would only be in the way
        if _is_near(task, result, by_cost):
            continue
        search = _Search(task, order, task.tokens(result), float(task.loads(result).max()), by_cost)
        search.descend(0, 0, 0.0)
        if search.best is not None:
            result = np.empty(len(order), np.int32)
            result[order] = search.best
    return result


def _is_near(task: Task, result: NDArray[np.int32], by_cost: bool) -> bool:
    """Whether `result` is near to all tokens or all room; or, all being placed, to the mean or a piece."""
    if by_cost:
        load = task.loads(result)
        least = max(float(np.cumsum(load)[-1]) / len(load), float(task.price.max()))
        return bool((result >= 0).all()) and float(load.max()) <= (1 + _NEAR) * least
    most = min(int(task.sizes.sum()), task.num_sequences * task.capacity)
    return task.tokens(result) >= (1 - _NEAR) * most


class _Search:
    """The best packing so far, and the one being tried, piece by piece in `order`."""

    def __init__(
        self, task: Task, order: NDArray[np.int64], tokens: int, dearest: float, by_cost: bool
    ) -> None:
        self.best: list[int] | None = None
        self._tokens, self._dearest, self._by_cost = tokens, dearest, by_cost
        self._need = np.stack([task.sizes, *task.weights])[:, order].T.tolist()
        self._price = task.price[order].tolist()
        self._left = [*np.cumsum(task.sizes[order][::-1])[::-1].tolist(), 0]  # tokens from a piece on
        self._free = [[task.capacity, *task.caps] for _ in range(min(task.num_sequences, len(order)))]
        self._load = [0.0] * len(self._free)
        self._places = [-1] * len(order)
        self._steps = 0

    def descend(self, piece: int, tokens: int, dearest: float) -> None:
        """Every place of `piece` and those after it, where `tokens` are placed before."""
        self._steps += 1
        if self._steps > _MOST_STEPS or not self._is_promising(piece, tokens, dearest):
            return
        if piece == len(self._places):
            self.best, self._tokens, self._dearest = self._places.copy(), tokens, dearest
            return
        need, price, seen = self._need[piece], self._price[piece], set()
        for place in sorted(range(len(self._free)), key=self._load.__getitem__):
            free, load = self._free[place], self._load[place]
            like = (load, *free)  # of sequences that are alike one is enough
            if like in seen or any(a < b for a, b in zip(free, need, strict=True)):
                continue
            seen.add(like)
            self._places[piece] = place
            self._free[place] = [a - b for a, b in zip(free, need, strict=True)]
            self._load[place] = load + price
            self.descend(piece + 1, tokens + need[0], max(dearest, load + price))
            self._free[place], self._load[place] = free, load
        self._places[piece] = -1
        self.descend(piece + 1, tokens, dearest)

    def _is_promising(self, piece: int, tokens: int, dearest: float) -> bool:
        most = tokens + min(self._left[piece], sum(free[0] for free in self._free))
        if most > self._tokens:
            return True
        return self._by_cost and most == self._tokens and dearest < self._dearest * _LESS
