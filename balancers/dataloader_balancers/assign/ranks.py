"""Ranks that are not alike, and what they can hold: the problem that `place` solves, as arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers.assign.items import DEAREST

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Sums of weights that are no whole numbers may be wrong in the last places; caps stay that far away.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Cap:
    """A hard cap: the `weights` float (n,) of a rank's items (tokens, patches, bytes) add up to at most
    `limit`, one number for all ranks or float (ranks,).
    """

    name: str
    weights: ArrayLike
    limit: ArrayLike


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """Ranks 0 to `count` - 1.

    speed     1 for all, or float (count,), or float (phases, count): work done in a unit of time. A rank of
              speed 0 gets nothing that costs anything in that phase, and nothing at all where it is 0 in each
    per_rank  most items of a rank, one number or int (count,); None: any number
    """

    count: int
    speed: ArrayLike = 1.0
    per_rank: ArrayLike | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A checked problem. Index p is a phase, i an item, r a rank, c a cap (the first is that on counts).

    costs    (p, i)  work            slow    (p, r)  time for a unit of work; 0 where a rank can do none
    weights  (c, i)  of caps         limits  (c, r)
    means    (p,)    time of each rank if all shares were equal
    floors   (p,)    time that no placement can go below: max(mean, dearest item on the fastest rank)
    """

    costs: Floats
    slow: Floats
    weights: Floats
    limits: Floats
    means: Floats
    floors: Floats

    @property
    def num_items(self) -> int:
        """How many there are to place."""
        return len(self.costs[0])

    @property
    def num_ranks(self) -> int:
        """How many there are to place them on."""
        return len(self.slow[0])

    @property
    def scale(self) -> Floats:
        """(p,): the means, 1 for a phase without work: loads of different phases divided by it compare."""
        return np.where(self.means > 0, self.means, 1.0)

    def ordered(self) -> NDArray[np.int64]:
        """Items by falling cost in the phase where each weighs most; ties by phases, caps, index."""
        keys = (*-self.weights[:0:-1], *-self.costs[::-1], -(self.costs / self.scale[:, None]).max(axis=0))
        return np.lexsort(keys)

    def take(self, items: NDArray[np.int64]) -> Task:
        """The same problem with its items in another order, or some of them."""
        return Task(
            self.costs.take(items, axis=1),
            self.slow,
            self.weights.take(items, axis=1),
            self.limits,
            self.means,
            self.floors,
        )

    def loads(self, rank: NDArray[np.int64]) -> Floats:
        """(p, r): time of each rank; -1 in `rank` (i,) counts nowhere."""
        return self._sums(self.costs, rank) * self.slow

    def used(self, rank: NDArray[np.int64]) -> Floats:
        """(c, r): what each rank holds of each cap."""
        return self._sums(self.weights, rank)

    def _sums(self, values: Floats, rank: NDArray[np.int64]) -> Floats:
        placed = rank >= 0
        sums = [np.bincount(rank[placed], row[placed], self.num_ranks) for row in values]
        return np.stack(sums).astype(np.float64)  # of nothing, bincount makes whole numbers


def task(costs: ArrayLike, ranks: Ranks, caps: Sequence[Cap] = ()) -> Task:
    """Checks everything; ValueError names the item or rank, what was found, and what is allowed."""
    work = np.atleast_2d(np.asarray(costs, np.float64))
    if work.ndim != 2 or work.shape[0] < 1:
        raise ValueError(f"costs have shape {np.shape(costs)}; (items,) or (phases, items) is needed")
    phases, items = work.shape
    if ranks.count < 1:
        raise ValueError(f"there are {ranks.count} ranks; at least 1 is needed")
    for phase, row in enumerate(work):
        _check(row, "item", "costs", f" in phase {phase}" if phases > 1 else "")
    speed = _speeds(ranks, phases)
    able = speed > 0
    for phase in np.flatnonzero(~able.any(axis=1) & (work > 0).any(axis=1)).tolist():
        raise ValueError(f"all {ranks.count} ranks have speed 0 in phase {phase}, which has work to do")
    if items and not able.any():
        raise ValueError(f"all {ranks.count} ranks have speed 0; one at least must be faster")
    given = np.asarray(items if ranks.per_rank is None else ranks.per_rank)
    if given.shape not in ((), (ranks.count,)):
        raise ValueError(f"per_rank has shape {given.shape}; one number, or one a rank ({ranks.count},)")
    counts = np.broadcast_to(given, ranks.count)
    if np.any(counts < 0) or np.any(counts != np.floor(counts)):
        raise ValueError(f"per_rank is {ranks.per_rank}; whole numbers from 0 are needed")
    weights, limits = [np.ones(items)], [np.where(able.any(axis=0), counts, 0).astype(np.float64)]
    for cap in caps:
        held, limit = _cap(cap, items, ranks.count)
        weights.append(held)
        limits.append(limit)
    for phase in np.flatnonzero(~able.all(axis=1)).tolist():
        weights.append((work[phase] > 0).astype(np.float64))
        limits.append(np.where(able[phase], np.inf, 0.0))
    slow = np.divide(1.0, speed, out=np.zeros_like(speed), where=able)
    if items and np.any(work.max(axis=1) > DEAREST / np.maximum(slow.max(axis=1), 1.0)):
        raise ValueError(f"speeds as low as {speed[able].min():g} make an item last longer than {DEAREST}")
    total = np.array([math.fsum(row) for row in work])
    means = np.divide(total, [math.fsum(row) for row in speed], out=np.zeros(phases), where=total > 0)
    dearest = np.divide(
        work.max(axis=1, initial=0.0), speed.max(axis=1), out=np.zeros(phases), where=total > 0
    )
    return Task(work, slow, np.stack(weights), np.stack(limits), means, np.maximum(means, dearest))


def _speeds(ranks: Ranks, phases: int) -> Floats:
    speed = np.asarray(ranks.speed, np.float64)
    if speed.ndim > 2 or speed.shape not in ((), (ranks.count,), (phases, ranks.count)):
        raise ValueError(
            f"speed has shape {speed.shape}; one number, ({ranks.count},) or ({phases}, {ranks.count})"
        )
    full = np.broadcast_to(speed, (phases, ranks.count)).astype(np.float64)
    wrong = np.argwhere(~((full >= 0) & np.isfinite(full)))
    if len(wrong):
        phase, rank = wrong[0].tolist()
        raise ValueError(f"rank {rank} has speed {full[phase, rank]}; finite numbers from 0 are allowed")
    top = full.max(axis=1, initial=0.0, keepdims=True)
    # A rank a million times slower than the fastest gets nothing anyway, and would only let times overflow.
    return np.where(full < 1e-6 * top, 0.0, full)


def _cap(cap: Cap, items: int, count: int) -> tuple[Floats, Floats]:
    """(weights, limits) of a cap that leaves every item a rank."""
    weights = np.asarray(cap.weights, np.float64)
    if weights.shape != (items,):
        raise ValueError(f"{cap.name}: weights have shape {weights.shape} for {items} items")
    _check(weights, "item", "has", f" {cap.name}")
    limit = np.asarray(cap.limit, np.float64)
    if limit.shape not in ((), (count,)):
        raise ValueError(
            f"{cap.name}: limits have shape {limit.shape}; one, or one for each of {count} ranks"
        )
    limits = np.broadcast_to(limit, count).astype(np.float64)
    wrong = np.flatnonzero(~(limits >= 0))
    if len(wrong):
        raise ValueError(
            f"{cap.name}: rank {wrong[0]} has limit {limits[wrong[0]]}; allowed are numbers from 0"
        )
    over = np.flatnonzero(weights > limits.max())
    if len(over):
        more = f" (and {len(over) - 1} more items)" if len(over) > 1 else ""
        raise ValueError(
            f"item {over[0]} has {weights[over[0]]:g} {cap.name}; allowed are 0 to {limits.max():g}{more}"
        )
    if np.any(weights != np.floor(weights)):
        limits = limits * (1 - _ROUNDING)
    return weights, limits


def _check(values: Floats, what: str, verb: str, where: str) -> None:
    wrong = np.flatnonzero(~((values >= 0) & (values <= DEAREST)))
    if len(wrong):
        first = int(wrong[0])
        raise ValueError(f"{what} {first} {verb} {values[first]}{where}; allowed are 0 to {DEAREST}")
