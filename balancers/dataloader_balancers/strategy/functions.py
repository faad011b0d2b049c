"""Packers and balancers of the user's own: their results are checked at every call, as no plan may breach a
cap or lose an item by them, and they are tried when they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers.pack import Limit
from dataloader_balancers.strategy.nodes import StrategyError, method_name

_SAMPLE = np.array([7, 5, 5, 3, 2, 1, 8, 4], np.int64)
"""Lengths, and costs, that a new function is tried on."""


@dataclass(frozen=True, slots=True)
class FunctionPacker:
    """`function`, of the signature of `pack.Packer`, under its name `module:function`. It is always given
    arrays: priorities of 0 and costs of a token each where there are none.

    Its result is whole numbers (n,), -1 to `num_sequences` - 1, that keep the capacity and all limits: a
    StrategyError says where not. Equal arguments must give an equal result, for plans are made again on
    resume; it is asked twice for a few pieces at once, when it is given.
    """

    function: Callable[..., ArrayLike]
    name: str

    @classmethod
    def of(cls, function: Callable[..., ArrayLike]) -> FunctionPacker:
        """Under the name that it can be imported by."""
        return cls(function, method_name(function))

    def __post_init__(self) -> None:
        if not np.array_equal(self(_SAMPLE, 3, 8), self(_SAMPLE, 3, 8)):
            raise StrategyError(
                f"pack: {self.name} gives two results for equal arguments; plans are made again"
            )

    def __call__(
        self,
        lengths: ArrayLike,
        num_sequences: int,
        capacity: int,
        priority: ArrayLike | None = None,
        costs: ArrayLike | None = None,
        *,
        limits: Sequence[Limit] = (),
    ) -> NDArray[np.int32]:
        """As `pack.Packer`."""
        sizes = np.array(lengths, np.int64)  # copies: what it does to its arguments is its own affair
        urgency = np.zeros_like(sizes) if priority is None else np.array(priority, np.int64)
        price = np.array(sizes if costs is None else costs, np.float64)
        try:
            result = self.function(sizes, num_sequences, capacity, urgency, price, limits=limits)
        except Exception as error:
            raise StrategyError(f"pack: {self.name} failed: {type(error).__name__}: {error}") from error
        return checked_sequences(
            self.name, result, np.asarray(lengths, np.int64), num_sequences, capacity, limits
        ).astype(np.int32)


@dataclass(frozen=True, slots=True)
class FunctionBalancer:
    """`function`, of the signature of `assign.Balancer`, under its name `module:function`.

    Its result is whole numbers (n,), 0 to `num_ranks` - 1, at most `per_rank` of each: a StrategyError says
    where not. It is asked twice for a few costs when it is given: equal arguments must give an equal result.
    """

    function: Callable[..., ArrayLike]
    name: str

    @classmethod
    def of(cls, function: Callable[..., ArrayLike]) -> FunctionBalancer:
        """Under the name that it can be imported by."""
        return cls(function, method_name(function))

    def __post_init__(self) -> None:
        costs = _SAMPLE.astype(np.float64)
        if not np.array_equal(self(costs, 4, 2), self(costs, 4, 2)):
            raise StrategyError(
                f"balance: {self.name} gives two results for equal arguments; plans are made again"
            )

    def __call__(self, costs: ArrayLike, num_ranks: int, per_rank: int | None = None) -> NDArray[np.int32]:
        """As `assign.Balancer`."""
        values = np.asarray(costs, np.float64).copy()
        try:
            result = self.function(values, num_ranks, per_rank)
        except Exception as error:
            raise StrategyError(f"balance: {self.name} failed: {type(error).__name__}: {error}") from error
        return checked_ranks(self.name, result, len(values), num_ranks, per_rank).astype(np.int32)


def checked_sequences(
    name: str,
    result: ArrayLike,
    lengths: NDArray[np.int64],
    count: int,
    capacity: int,
    limits: Sequence[Limit],
) -> NDArray[np.int64]:
    """int64 (n,): the result of a packer. StrategyError where it is none, or breaches a cap."""
    found = np.asarray(result)
    if found.shape != lengths.shape or found.dtype.kind not in "iu":
        raise StrategyError(
            f"pack: {name} returned {found.dtype} {found.shape} for {len(lengths)} pieces; whole numbers "
            f"({len(lengths)},)"
        )
    wrong = np.flatnonzero((found < -1) | (found >= count))
    if len(wrong):
        raise StrategyError(
            f"pack: {name} put piece {wrong[0]} into sequence {found[wrong[0]]}; they are -1 to {count - 1}"
        )
    caps = [("tokens", lengths, capacity), *((limit.name, limit.weights, limit.cap) for limit in limits)]
    for unit, weights, cap in caps:
        held = np.bincount(found[found >= 0], np.asarray(weights)[found >= 0], count)
        if held.max(initial=0) > cap:
            raise StrategyError(
                f"pack: {name} put {held.max():.0f} {unit} into sequence {held.argmax()}; at most {cap}"
            )
    return found.astype(np.int64)


def checked_ranks(
    name: str, result: ArrayLike, count: int, num_ranks: int, per_rank: int | None
) -> NDArray[np.int64]:
    """int64 (n,): the result of a balancer. StrategyError where it is no placement."""
    rank = np.asarray(result)
    if rank.shape != (count,) or rank.dtype.kind not in "iu":
        raise StrategyError(
            f"balance: {name} returned {rank.dtype} {rank.shape} for {count} costs; whole numbers ({count},)"
        )
    wrong = np.flatnonzero((rank < 0) | (rank >= num_ranks))
    if len(wrong):
        raise StrategyError(
            f"balance: {name} put item {wrong[0]} on rank {rank[wrong[0]]}; ranks are 0 to {num_ranks - 1}"
        )
    held = np.bincount(rank, minlength=num_ranks)
    if per_rank is not None and held.max(initial=0) > per_rank:
        raise StrategyError(
            f"balance: {name} put {held.max()} items on rank {held.argmax()}; at most {per_rank} a rank"
        )
    return rank.astype(np.int64)
