"""What to do where a step can't be balanced: which remedy spares most, by the floors with and without it.

- `cut`: the dearest items are cut over several ranks (context parallel, `hybrid.py`).
- `widen`: balance all microbatches that are accumulated into the step at once, not each by itself.
- `wait`: dear items wait until some steps' are together, so that they are spread over one step's ranks in
  place of one of them in every step (WLB-LLM's outlier queue, arXiv 2503.17924, section 4.2). The age is
  bounded.
- `unequal`: ranks may have unequal numbers of items; the trainer then weights its loss by token.

All but `wait` keep the step's set of samples. Predictions are of floors: what a good placement nearly
reaches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers.bounds import Floor, floor

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Name = Literal["cut", "widen", "wait", "unequal"]

# Shares of an equal load that items are cut to: at half, two fit a rank where many are dear.
_CUT_TO = (1.0, 0.5, 0.25)


@dataclass(frozen=True, slots=True, eq=False)
class Remedy:
    """One that helps, and what it is predicted to bring.

    time        of the step with it, in the unit of the costs; the mean over steps where items wait
    gain        share of the step's time that it spares, 0 to 1
    keeps_set   the step is of the same samples with it
    items       int64, those that are cut or wait; else empty
    ranks       int64, over how many ranks each of `items` is cut; else empty
    steps       steps whose dear items are put together; 1 where none wait
    mean_age    steps that an average unit of cost waits
    """

    name: Name
    time: float
    gain: float
    keeps_set: bool
    items: Ints
    ranks: Ints
    steps: int = 1
    mean_age: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """A step to be balanced, checked.

    costs       float (n,), finite and not negative
    num_ranks   on which they are placed
    per_rank    most items of a rank in a microbatch; None: any number
    microbatch  int (n,), where each is balanced by itself; None: all at once
    """

    costs: Floats
    num_ranks: int
    per_rank: int | None
    microbatch: Ints

    @classmethod
    def of(
        cls,
        costs: ArrayLike,
        num_ranks: int,
        per_rank: int | None = None,
        microbatch: ArrayLike | None = None,
    ) -> Step:
        """ValueError for values that can't be."""
        values = np.asarray(costs, np.float64)
        groups = np.zeros(len(values), np.int64) if microbatch is None else np.asarray(microbatch, np.int64)
        if groups.shape != values.shape:
            raise ValueError(f"{groups.shape} microbatches for costs of shape {values.shape}; one for each")
        if len(groups) and groups.min() < 0:
            raise ValueError(f"item {int(groups.argmin())} is in microbatch {groups.min()}; 0 and more")
        return cls(values, num_ranks, per_rank, np.unique(groups, return_inverse=True)[1].reshape(-1))

    @property
    def num_microbatches(self) -> int:
        """At least 1."""
        return int(self.microbatch.max(initial=0)) + 1

    @property
    def mean(self) -> float:
        """Equal share of a rank and microbatch."""
        return math.fsum(self.costs) / self.num_ranks / self.num_microbatches

    def floors(self) -> tuple[Floor, ...]:
        """Of each microbatch."""
        return tuple(
            floor(self.costs[self.microbatch == number], self.num_ranks, per_rank=self.per_rank)
            for number in range(self.num_microbatches)
        )

    def time(self) -> float:
        """The sum of the floors: microbatches follow each other."""
        return math.fsum(bound.value for bound in self.floors())


def remedies(
    costs: ArrayLike,
    num_ranks: int,
    *,
    per_rank: int | None = None,
    microbatch: ArrayLike | None = None,
    strict: bool = True,
    max_cut: int = 8,
    cut_overhead: float = 0.0,
    max_age: int = 4,
) -> tuple[Remedy, ...]:
    """Those that spare time, the one that spares most first; empty where all that counts is the placement.

    costs         float (n,), of the step's items
    per_rank      items of a rank (of a microbatch, where there are several); None: numbers are free anyway
    microbatch    int (n,), which of the accumulated microbatches each is in, if each is balanced by itself
    strict        only remedies that keep the step's set of samples
    max_cut       most ranks of an item; 1 where it can't be cut
    cut_overhead  what cutting adds to the cost of what is cut, as a share: what is sent, and not hidden
    max_age       most steps that an item may wait
    """
    if max_cut < 1 or max_age < 0 or not (math.isfinite(cut_overhead) and cut_overhead >= 0):
        raise ValueError(
            f"max_cut is {max_cut}, at least 1; max_age {max_age} and cut_overhead {cut_overhead}, at least 0"
        )
    step = Step.of(costs, num_ranks, per_rank, microbatch)
    now = step.time()
    found = [_widen(step), _unequal(step), *_cut(step, max_cut, cut_overhead)]
    if not strict:
        found += _wait(step, max_age)
    better = [_with_gain(each, now) for each in found if each.time < now * (1 - 1e-9)]
    # Of one name the best; of equal gains the one named first above.
    by_name: dict[str, Remedy] = {}
    for each in sorted(better, key=lambda remedy: remedy.time):
        by_name.setdefault(each.name, each)
    return tuple(by_name.values())


_NONE = np.empty(0, np.int64)


def _with_gain(remedy: Remedy, now: float) -> Remedy:
    return Remedy(
        remedy.name,
        remedy.time,
        1.0 - remedy.time / now,
        remedy.keeps_set,
        remedy.items,
        remedy.ranks,
        remedy.steps,
        remedy.mean_age,
    )


def _widen(step: Step) -> Remedy:
    per_rank = None if step.per_rank is None else step.per_rank * step.num_microbatches
    time = floor(step.costs, step.num_ranks, per_rank=per_rank).value
    return Remedy("widen", time, 0.0, keeps_set=True, items=_NONE, ranks=_NONE)


def _unequal(step: Step) -> Remedy:
    time = Step(step.costs, step.num_ranks, None, step.microbatch).time()
    return Remedy("unequal", time, 0.0, keeps_set=True, items=_NONE, ranks=_NONE)


def _cut(step: Step, max_cut: int, overhead: float) -> list[Remedy]:
    """Items dearer than a share of the equal load, each over as many ranks as bring it there."""
    result = []
    for share in _CUT_TO if step.mean > 0 else ():
        most = min(max_cut, step.num_ranks)
        ranks = np.clip(np.ceil(step.costs / (share * step.mean) - 1e-9), 1, most).astype(np.int64)
        if ranks.max() == 1:
            continue
        piece = np.where(ranks > 1, step.costs * (1 + overhead), step.costs) / ranks
        time = 0.0
        for number in range(step.num_microbatches):
            mine = step.microbatch == number
            pieces = np.repeat(piece[mine], ranks[mine])
            # Of an item that is cut, each rank has a part of its place.
            places = None if step.per_rank is None else np.repeat(1.0 / ranks[mine], ranks[mine])
            most_places = None if step.per_rank is None else step.per_rank + 1e-9
            time += floor(pieces, step.num_ranks, weights=places, capacity=most_places).value
        items = np.flatnonzero(ranks > 1)
        result.append(Remedy("cut", time, 0.0, keeps_set=True, items=items, ranks=ranks[items]))
    return result


def _wait(step: Step, max_age: int) -> list[Remedy]:
    """Items dearer than an equal share wait for those of the next steps, which are taken to be like this."""
    items = np.flatnonzero(step.costs > step.mean)
    if not len(items) or len(items) == len(step.costs):
        return []
    rest = np.delete(np.arange(len(step.costs)), items)
    without = Step(step.costs[rest], step.num_ranks, step.per_rank, step.microbatch[rest]).time()
    result = []
    for steps in range(2, max_age + 2):
        together = np.concatenate([step.costs[rest], np.tile(step.costs[items], steps)])
        # Dealt over the microbatches, so that each has as many.
        where = np.arange(steps * len(items)) % step.num_microbatches
        groups = np.concatenate([step.microbatch[rest], where])
        per_rank = step.per_rank
        if per_rank is not None:  # the other steps have as many fewer items
            most = int(np.bincount(groups).max())
            per_rank = max(per_rank, -(-most // step.num_ranks))
        with_all = Step(together, step.num_ranks, per_rank, groups).time()
        share = math.fsum(step.costs[items]) / math.fsum(step.costs)
        result.append(
            Remedy(
                "wait",
                ((steps - 1) * without + with_all) / steps,
                0.0,
                keeps_set=False,
                items=items,
                ranks=_NONE,
                steps=steps,
                mean_age=share * (steps - 1) / 2,
            )
        )
    return result
