"""What all packers share: their signature, further caps, and the check of arguments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

DEAREST = 1e300  # so that no sum overflows
LARGEST = 2**40  # tokens of a sequence, or the cap of a limit: sums of millions of pieces stay whole numbers
MOST_SEQUENCES = 2**22


@dataclass(frozen=True, slots=True)
class Limit:
    """A hard cap beside tokens: the `weights` int (n,) of a sequence's pieces add up to at most `cap`."""

    name: str
    weights: ArrayLike
    cap: int


class Packer(Protocol):
    """The signature of every value of PACKERS; the package's docstring says what it promises."""

    def __call__(
        self,
        lengths: ArrayLike,
        num_sequences: int,
        capacity: int,
        priority: ArrayLike | None = None,
        costs: ArrayLike | None = None,
        *,
        limits: Sequence[Limit] = (),
    ) -> NDArray[np.int32]: ...


@dataclass(frozen=True, slots=True)
class Task:
    """Checked arguments of a packer."""

    sizes: Ints
    num_sequences: int
    capacity: int
    urgency: Ints
    price: Floats
    weights: tuple[Ints, ...]  # (n,) for each limit
    caps: tuple[int, ...]

    @classmethod
    def checked(
        cls,
        lengths: ArrayLike,
        num_sequences: int,
        capacity: int,
        priority: ArrayLike | None,
        costs: ArrayLike | None,
        limits: Sequence[Limit],
    ) -> Task:
        """Raises ValueError with the index and value of what is wrong."""
        if num_sequences < 1 or capacity < 1:
            raise ValueError(f"need at least one sequence of one token; got {num_sequences} of {capacity}")
        if num_sequences > MOST_SEQUENCES or capacity > LARGEST:
            raise ValueError(
                f"got {num_sequences} sequences of {capacity} tokens; "
                f"at most {MOST_SEQUENCES} of {LARGEST} are planned"
            )
        sizes = whole(lengths, "lengths")
        within(sizes, 1, capacity, "tokens")
        count = len(sizes)
        urgency = np.zeros(count, np.int64) if priority is None else whole(priority, "priority", count)
        price = prices(costs, sizes)
        weights = tuple(whole(limit.weights, limit.name, count) for limit in limits)
        for limit, weight in zip(limits, weights, strict=True):
            if not 0 <= limit.cap <= LARGEST:
                raise ValueError(f"the cap on {limit.name} is {limit.cap}; allowed are 0 to {LARGEST}")
            within(weight, 0, limit.cap, limit.name)
        caps = tuple(limit.cap for limit in limits)
        return cls(sizes, num_sequences, capacity, urgency, price, weights, caps)

    def levels(self) -> Iterator[Ints]:
        """Piece indices of each priority, highest first; inside one by length, descending, then index."""
        order = descending(self.sizes)
        if len(order) == 0 or self.urgency.min() == self.urgency.max():
            yield order
            return
        order = order[np.argsort(-self.urgency[order], kind="stable")]
        borders = np.flatnonzero(np.diff(self.urgency[order])) + 1
        yield from np.split(order, borders)

    def loads(self, result: NDArray[np.int32]) -> Floats:
        """float64 (sequences,): cost of each. `bincount` adds in order: the same sum on any machine."""
        placed = result >= 0
        return np.bincount(result[placed], self.price[placed], self.num_sequences).astype(np.float64)

    def tokens(self, result: NDArray[np.int32]) -> int:
        """Tokens that are placed."""
        return int(self.sizes[result >= 0].sum())


def descending(sizes: Ints) -> Ints:
    """Indices by falling size, ties by index: one sort of whole numbers that hold both, where they fit."""
    count = len(sizes)
    bits = count.bit_length()
    if count == 0 or int(sizes.max()) >= 1 << (62 - bits):
        return np.argsort(-sizes, kind="stable")
    keys = (sizes.max() - sizes << bits) | np.arange(count)
    keys.sort()
    order: Ints = keys & ((1 << bits) - 1)
    return order


def prices(costs: ArrayLike | None, sizes: Ints) -> Floats:
    """float64 (n,): `costs` checked, or the lengths."""
    if costs is None:
        return sizes.astype(np.float64)
    price = np.asarray(costs, np.float64)
    if price.shape != sizes.shape:
        raise ValueError(f"costs have shape {price.shape}; one for each of {len(sizes)} pieces is needed")
    wrong = np.flatnonzero(~((price >= 0) & (price <= DEAREST)))
    if len(wrong):
        first = int(wrong[0])
        raise ValueError(f"piece {first} costs {price[first]}; costs are finite and not negative")
    return price


def whole(values: ArrayLike, name: str, count: int | None = None) -> Ints:
    """int64 (n,); floats would be cut silently, so they are refused. `count` is the n that is needed."""
    array = np.asarray(values)
    if array.ndim != 1 or (count is not None and len(array) != count):
        wanted = "one dimension" if count is None else f"one for each of {count} pieces"
        raise ValueError(f"{name} have shape {array.shape}; {wanted} is needed")
    if len(array) and array.dtype.kind not in "iu":
        raise ValueError(f"{name} are {array.dtype}; whole numbers are needed")
    return array.astype(np.int64)


def within(values: Ints, least: int, most: int, unit: str) -> None:
    """Raises ValueError with the first of `values` that is out of bounds."""
    wrong = np.flatnonzero((values < least) | (values > most))
    if len(wrong):
        first = int(wrong[0])
        more = f" (and {len(wrong) - 1} more such)" if len(wrong) > 1 else ""
        raise ValueError(f"piece {first} has {values[first]} {unit}; allowed are {least} to {most}{more}")
