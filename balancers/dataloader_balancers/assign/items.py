"""What all balancers share: their signature, the check of arguments, and work in falling order of cost."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

_DEAREST = 1e300  # so that no sum overflows


class Balancer(Protocol):
    """The signature of every value of BALANCERS; the package's docstring says what it promises."""

    def __call__(
        self, costs: ArrayLike, num_ranks: int, per_rank: int | None = None
    ) -> NDArray[np.int32]: ...


def descending(values: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.argsort(-values, kind="stable")


def unsorted(ranks: NDArray[np.integer], order: NDArray[np.int64]) -> NDArray[np.int32]:
    """Ranks of the items as they came, from those of the items in `order`."""
    result = np.empty(len(order), np.int32)
    result[order] = ranks
    return result


def item_charge(values: NDArray[np.float64]) -> float:
    """What an item weighs beyond its cost, so that fewer items break a tie, and free ones are spread too."""
    return float(values.max(initial=0.0)) * 1e-9 or 1.0


def checked(costs: ArrayLike, num_ranks: int, per_rank: int | None) -> NDArray[np.float64]:
    values = np.asarray(costs, np.float64)
    if values.ndim != 1:
        raise ValueError(f"costs have shape {values.shape}; one dimension is needed")
    if num_ranks < 1:
        raise ValueError(f"num_ranks is {num_ranks}; at least 1")
    wrong = np.flatnonzero(~((values >= 0) & (values <= _DEAREST)))
    if len(wrong):
        first = int(wrong[0])
        raise ValueError(f"item {first} costs {values[first]}; allowed are 0 to {_DEAREST}")
    if per_rank is not None and per_rank * num_ranks < len(values):
        raise ValueError(f"{len(values)} items do not fit {num_ranks} ranks of at most {per_rank}")
    return values
