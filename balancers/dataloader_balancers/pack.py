"""Pieces of documents into sequences: whole, under hard caps, as full as can be.

A piece is a document, or the part of one that fits a sequence; cutting long ones is the caller's decision,
made before. Knows nothing of ranks: packing comes first, and `assign.py` places what it made.

Every packer has one signature and one contract (`dataloader_svc.testing.balancers.PackerContract`):

    pack(lengths, num_sequences, capacity, priority=None, costs=None, *, limits=()) -> int32 (n,)

    lengths        int (n,), tokens of each piece, 1 to `capacity`
    priority       int (n,), such as steps waited; pieces of a higher one are placed before all of a lower
    costs          float (n,), predicted time of each piece; its length if not given
    limits         further hard caps, such as patches in a sequence

The result is the sequence of each piece, or -1 where it waits. No sequence breaches `capacity` or a limit. A
piece waits only where no sequence could hold it beside the pieces of its own or a higher priority, so one
that has waited longest is always placed. Ties go to the lower index: equal arguments give an equal result on
any machine. An impossible piece is a ValueError with its index and value.

First-fit and best-fit decreasing open at most 11/9 of the fewest bins, plus 6/9 (Dósa 2007, ESCAPE, LNCS
4614), where bins are free to open. Here their number is given, and what counts is how little room is left:
nothing to speak of while there are pieces shorter than the gaps.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

# `balanced` keeps this share of the tokens that best fit places ...
_KEEP = 0.995
# ... by spreading all pieces, or if that leaves too much room only those of this share of a sequence.
_SPREAD_FROM = (0.0, 1 / 64, 1 / 16, 1 / 4)
# Sequences it asks, cheapest first, before it leaves a piece to best fit.
_TRIES = 8
# Share of sequences beyond best fit's that `pack_all` opens for a packer that needs them.
_MORE_FOR_ALL = 0.02


@dataclass(frozen=True, slots=True)
class Limit:
    """A hard cap beside tokens: the `weights` int (n,) of a sequence's pieces add up to at most `cap`."""

    name: str
    weights: ArrayLike
    cap: int


class Packer(Protocol):
    """The signature of every value of PACKERS; the module's docstring says what it promises."""

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


def pack(
    name: str,
    lengths: ArrayLike,
    num_sequences: int,
    capacity: int,
    *,
    priority: ArrayLike | None = None,
    costs: ArrayLike | None = None,
    limits: Sequence[Limit] = (),
) -> NDArray[np.int32]:
    """`PACKERS[name]`, or a ValueError that lists the names."""
    return _named(name)(lengths, num_sequences, capacity, priority, costs, limits=limits)


def pack_all(
    name: str,
    lengths: ArrayLike,
    capacity: int,
    *,
    priority: ArrayLike | None = None,
    costs: ArrayLike | None = None,
    limits: Sequence[Limit] = (),
) -> NDArray[np.int32]:
    """Every piece in a sequence, in as few as packer `name` needs: the sequence of each piece, int32 (n,).

    Their number is the largest in the result, plus 1; none is empty. It is what best fit needs, at most 11/9
    of the fewest possible plus 6/9 (with no priorities and limits). A packer that leaves pieces over in so
    many gets 1, 2, 4, ... more, up to 2 %; if it still leaves some over, the result is that of best fit.
    """
    packer = _named(name)
    task = _Task.checked(lengths, 1, capacity, priority, costs, limits)
    if not len(task.sizes):
        return np.empty(0, np.int32)
    # Best fit opens a sequence only for a piece that no open one admits, so any two together breach a cap:
    # there are at most twice as many as the totals ask for, and one.
    filled = [task.sizes.sum() / capacity]
    filled += [weights.sum() / max(cap, 1) for weights, cap in zip(task.weights, task.caps, strict=True)]
    enough = min(2 * math.ceil(sum(filled)) + 1, len(task.sizes))
    reference = _best_fit(replace(task, num_sequences=enough))
    fewest = len(np.unique(reference))
    more = 0
    while more <= max(1, fewest * _MORE_FOR_ALL):
        result = packer(lengths, fewest + more, capacity, priority, costs, limits=limits)
        if (result >= 0).all():
            reference = result
            break
        more = 2 * more or 1
    return np.unique(reference, return_inverse=True)[1].reshape(-1).astype(np.int32)


def _named(name: str) -> Packer:
    if name not in PACKERS:
        raise ValueError(f"unknown packer {name!r}; known: {', '.join(PACKERS)}")
    return PACKERS[name]


def first_fit(
    lengths: ArrayLike,
    num_sequences: int,
    capacity: int,
    priority: ArrayLike | None = None,
    costs: ArrayLike | None = None,
    *,
    limits: Sequence[Limit] = (),
) -> NDArray[np.int32]:
    """First-fit decreasing: the longest piece into the first sequence that has room. Heuristic; n times s."""
    task = _Task.checked(lengths, num_sequences, capacity, priority, costs, limits)
    free = np.array([[capacity], *([limit.cap] for limit in limits)]).repeat(num_sequences, axis=1)
    need = np.stack([task.sizes, *task.weights], axis=1)  # (pieces, caps)
    result = np.full(len(task.sizes), -1, np.int32)
    for level in task.levels():
        for piece in level.tolist():
            fits = free[0] >= need[piece, 0]
            for row in range(1, len(free)):
                fits &= free[row] >= need[piece, row]
            place = int(np.argmax(fits))
            if fits[place]:
                free[:, place] -= need[piece]
                result[piece] = place
    return result


def best_fit(
    lengths: ArrayLike,
    num_sequences: int,
    capacity: int,
    priority: ArrayLike | None = None,
    costs: ArrayLike | None = None,
    *,
    limits: Sequence[Limit] = (),
) -> NDArray[np.int32]:
    """Best-fit decreasing: the longest piece into the fullest sequence that has room. Heuristic; n log s.

    Of equally full sequences the first. 100,000 pieces take about a tenth of a second.
    """
    task = _Task.checked(lengths, num_sequences, capacity, priority, costs, limits)
    return _best_fit(task)


def balanced(
    lengths: ArrayLike,
    num_sequences: int,
    capacity: int,
    priority: ArrayLike | None = None,
    costs: ArrayLike | None = None,
    *,
    limits: Sequence[Limit] = (),
) -> NDArray[np.int32]:
    """Equal predicted cost in equally full sequences: the dearest piece to the cheapest sequence (Graham's
    rule) while it has room, the rest by best fit, as in WLB-LLM (arXiv 2503.17924, section 4).

    Places at least 99.5 % of the tokens that `best_fit` places, and its dearest sequence costs no more than
    that of `best_fit`: where the heuristic reaches neither, the result is that of `best_fit`. It can't go
    below the dearest piece (`bounds.floor`).
    """
    task = _Task.checked(lengths, num_sequences, capacity, priority, costs, limits)
    reference = _best_fit(task)
    enough = _KEEP * float(task.sizes[reference >= 0].sum())
    dearest = task.dearest(reference)
    for share in _SPREAD_FROM:
        result = _spread(task, share * capacity)
        if task.sizes[result >= 0].sum() >= enough and task.dearest(result) <= dearest:
            return result
    return reference


def _best_fit(task: _Task) -> NDArray[np.int32]:
    bins = _Bins(task)
    for level in task.levels():
        bins.fill(level)
    return bins.result


def _spread(task: _Task, smallest: float) -> NDArray[np.int32]:
    """Priority by priority: pieces of at least `smallest` tokens by cost, then the others into the gaps."""
    bins = _Bins(task)
    for level in task.levels():
        large = level[task.sizes[level] >= smallest]
        bins.level_out(large[np.argsort(-task.price[large], kind="stable")])
        bins.fill(level[bins.result[level] < 0])
    return bins.result


@dataclass(frozen=True, slots=True)
class _Task:
    """Checked arguments of a packer."""

    sizes: NDArray[np.int64]
    num_sequences: int
    capacity: int
    urgency: NDArray[np.int64]
    price: NDArray[np.float64]
    weights: tuple[NDArray[np.int64], ...]  # (n,) for each limit
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
    ) -> _Task:
        if num_sequences < 1 or capacity < 1:
            raise ValueError(f"need at least one sequence of one token; got {num_sequences} of {capacity}")
        sizes = _whole(lengths, "lengths")
        _within(sizes, 1, capacity, "tokens")
        count = len(sizes)
        urgency = np.zeros(count, np.int64) if priority is None else _whole(priority, "priority", count)
        price = sizes.astype(np.float64) if costs is None else np.asarray(costs, np.float64)
        if price.shape != sizes.shape:
            raise ValueError(f"costs have shape {price.shape}; one for each of {count} pieces is needed")
        wrong = np.flatnonzero(~(np.isfinite(price) & (price >= 0)))
        if len(wrong):
            first = int(wrong[0])
            raise ValueError(f"piece {first} costs {price[first]}; costs are finite and not negative")
        weights = tuple(_whole(limit.weights, limit.name, count) for limit in limits)
        for limit, weight in zip(limits, weights, strict=True):
            _within(weight, 0, limit.cap, limit.name)
        caps = tuple(limit.cap for limit in limits)
        return cls(sizes, num_sequences, capacity, urgency, price, weights, caps)

    def levels(self) -> Iterator[NDArray[np.int64]]:
        """Piece indices of each priority, highest first; inside one by length, descending, then index."""
        order = np.lexsort((-self.sizes, -self.urgency))
        borders = np.flatnonzero(np.diff(self.urgency[order])) + 1
        yield from np.split(order, borders)

    def dearest(self, result: NDArray[np.int32]) -> float:
        """Cost of the dearest sequence."""
        placed = result >= 0
        return float(np.bincount(result[placed], self.price[placed], self.num_sequences).max())


class _Bins:
    """Sequences while they are filled: `result` (n,), and how much each still takes."""

    def __init__(self, task: _Task) -> None:
        self.result = np.full(len(task.sizes), -1, np.int32)
        self._sizes = task.sizes
        self._price = task.price
        # Plain lists: this is read one number at a time, which numpy does five times slower.
        self._room = [task.capacity] * task.num_sequences
        self._load = [0.0] * task.num_sequences
        self._spare = [[cap] * task.num_sequences for cap in task.caps]
        self._weights = [weights.tolist() for weights in task.weights]

    def fill(self, pieces: NDArray[np.int64]) -> None:
        """Best fit, in the order of `pieces`."""
        count = len(self._room)
        # Room and sequence in one integer: a sorted list of plain integers is the fastest of its kind here.
        keys = sorted(room * count + place for place, room in enumerate(self._room))
        sizes, prices = self._sizes[pieces].tolist(), self._price[pieces].tolist()
        for piece, size, price in zip(pieces.tolist(), sizes, prices, strict=True):
            at = bisect_left(keys, size * count)
            if self._spare:
                places = range(at, len(keys))
                at = next((i for i in places if self._admits(piece, keys[i] % count)), len(keys))
            if at < len(keys):
                key = keys.pop(at)
                insort(keys, key - size * count)
                self._put(piece, key % count, size, price)

    def level_out(self, pieces: NDArray[np.int64]) -> None:
        """Each of `pieces` to the cheapest sequence, or one of the next few; else it is left unplaced."""
        heap = [(load, place) for place, load in enumerate(self._load)]
        heapq.heapify(heap)
        sizes, prices = self._sizes[pieces].tolist(), self._price[pieces].tolist()
        for piece, size, price in zip(pieces.tolist(), sizes, prices, strict=True):
            aside: list[tuple[float, int]] = []
            while heap and len(aside) < _TRIES:
                place = heap[0][1]
                if self._room[place] >= size and self._admits(piece, place):
                    self._put(piece, place, size, price)
                    heapq.heapreplace(heap, (self._load[place], place))
                    break
                aside.append(heapq.heappop(heap))
            for item in aside:
                heapq.heappush(heap, item)

    def _admits(self, piece: int, place: int) -> bool:
        return all(
            spare[place] >= weights[piece] for spare, weights in zip(self._spare, self._weights, strict=True)
        )

    def _put(self, piece: int, place: int, size: int, price: float) -> None:
        self.result[piece] = place
        self._room[place] -= size
        self._load[place] += price
        for spare, weights in zip(self._spare, self._weights, strict=True):
            spare[place] -= weights[piece]


def _whole(values: ArrayLike, name: str, count: int | None = None) -> NDArray[np.int64]:
    """int64 (n,); floats would be cut silently, so they are refused. `count` is the n that is needed."""
    array = np.asarray(values)
    if array.ndim != 1 or (count is not None and len(array) != count):
        wanted = "one dimension" if count is None else f"one for each of {count} pieces"
        raise ValueError(f"{name} have shape {array.shape}; {wanted} is needed")
    if len(array) and array.dtype.kind not in "iu":
        raise ValueError(f"{name} are {array.dtype}; whole numbers are needed")
    return array.astype(np.int64)


def _within(values: NDArray[np.int64], least: int, most: int, unit: str) -> None:
    wrong = np.flatnonzero((values < least) | (values > most))
    if len(wrong):
        first = int(wrong[0])
        more = f" (and {len(wrong) - 1} more such)" if len(wrong) > 1 else ""
        raise ValueError(f"piece {first} has {values[first]} {unit}; allowed are {least} to {most}{more}")


PACKERS: dict[str, Packer] = {"best_fit": best_fit, "first_fit": first_fit, "balanced": balanced}
