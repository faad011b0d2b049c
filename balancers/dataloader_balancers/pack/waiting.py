"""Outliers wait until enough of their like have come: a document that is dearer than a whole average sequence
makes its step late, unless the other sequences of that step are as dear.

The published form (WLB-LLM, arXiv 2503.17924, section 4.2) has queues with fixed thresholds, and empties one
when it holds a document for each sequence. Here there are no thresholds. Outliers stand in one line by cost,
and of all runs of neighbours in it that keep the step level, the one goes that has waited most. So like goes
with like, whatever the lengths are, and a run may be shorter than the sequences where the rest of the step is
dear enough. It never takes more than the step holds.

What waits is the whole state: lengths and ages, which a planner has anyway. Strict users, whose steps must
have the samples that they have, can't use this; cutting the document is the other remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers.pack.pieces import LARGEST, Floats, Ints, prices, whole, within
from dataloader_balancers.pack.variable import variable

TOLERANCE = 0.12
"""Above an equal share: what is dearer waits; so far above the step's mean may a run's dearest piece be. More
levels less and delays less; with 0.12 a long tail ends within 3 % of level at less than half a step.
"""

MAX_AGE = 32
"""Steps after which a piece waits no longer, whatever it costs."""

# Runs that are looked at; of longer lines only runs of one piece for each sequence.
_MOST_RUNS = 1 << 16


def outliers(
    lengths: ArrayLike,
    ages: ArrayLike,
    costs: ArrayLike,
    num_sequences: int,
    mean_length: int,
    *,
    tolerance: float = TOLERANCE,
    max_age: int = MAX_AGE,
) -> NDArray[np.bool_]:
    """Which pieces should wait, bool (n,), of those at hand for a step of `num_sequences` of `mean_length`.

    lengths  int (n,), tokens; costs float (n,); ages int (n,), steps that each has waited

    Give what waits and a step's worth of new pieces; draw as many tokens more as are held. The mean delay of
    a token is about half the outliers' share of a sequence, whatever the number of sequences. Ties go to the
    lower index.
    """
    sizes = whole(lengths, "lengths")
    within(sizes, 1, LARGEST, "tokens")
    waited = whole(ages, "ages", len(sizes))
    price = prices(costs, sizes)
    if num_sequences < 1 or mean_length < 1 or not tolerance >= 0 or max_age < 0:
        raise ValueError(
            f"need a sequence of one token, a tolerance and a max_age from 0; got {num_sequences} of "
            f"{mean_length}, {tolerance}, {max_age}"
        )
    held = np.zeros(len(sizes), np.bool_)
    free = np.flatnonzero(waited < max_age)
    line = free[np.lexsort((-sizes[free], -price[free]))]
    # What a token costs among each piece and the cheaper ones: what a step without outliers is made of.
    cost, tokens = (np.cumsum(values[line][::-1])[::-1] for values in (price, sizes))
    rate = cost / tokens
    ordinary = np.flatnonzero(price[line] <= (1 + tolerance) * rate * mean_length)
    first = int(ordinary[0]) if len(ordinary) else len(line)
    line = line[:first]
    held[line] = True
    if len(line) and len(ordinary):
        must = waited >= max_age
        room = num_sequences * mean_length - int(sizes[must].sum())
        # Cost of the step if it held none of the line.
        rest = float(rate[first]) * max(room, 0) + float(np.cumsum(np.append(0.0, price[must]))[-1])
        run = _longest_waiting_run(
            price[line], sizes[line], waited[line], num_sequences, rest, float(rate[first]), room, tolerance
        )
        held[line[run]] = False
    return held


def _longest_waiting_run(
    cost: Floats,
    tokens: Ints,
    age: Ints,
    num_sequences: int,
    rest: float,
    rate: float,
    room: int,
    tolerance: float,
) -> slice:
    """Of all runs of at most `num_sequences` neighbours: that of most tokens times steps, of those that leave
    the step level: the run's dearest at most `tolerance` above the mean. `cost` falls.
    """
    count = len(cost)
    sizes = np.arange(1, min(num_sequences, count) + 1)
    if count * len(sizes) > _MOST_RUNS:
        sizes = sizes[-1:]
    begin, size = (grid.reshape(-1) for grid in np.meshgrid(np.arange(count), sizes, indexing="ij"))
    begin, end = begin[begin + size <= count], (begin + size)[begin + size <= count]
    of_cost, of_tokens, of_waiting = (
        np.append(0, np.cumsum(values)) for values in (cost, tokens, (age + 1) * tokens)
    )
    taken = of_tokens[end] - of_tokens[begin]
    total = of_cost[end] - of_cost[begin] + rest - rate * taken
    level = (cost[begin] * num_sequences <= (1 + tolerance) * total) & (taken <= room)
    if not level.any():
        return slice(0, 0)
    worth = np.where(level, of_waiting[end] - of_waiting[begin], -1)
    best = int(np.argmax(worth))
    return slice(int(begin[best]), int(end[best]))


@dataclass(frozen=True, slots=True)
class Queue:
    """What waits between steps: keys of the caller's (row numbers, say), tokens, steps waited so far."""

    keys: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    ages: tuple[int, ...] = ()

    def to_json(self) -> dict[str, list[int]]:
        """For a checkpoint."""
        return {"keys": list(self.keys), "lengths": list(self.lengths), "ages": list(self.ages)}

    @classmethod
    def from_json(cls, data: Mapping[str, Sequence[int]]) -> Self:
        """Raises ValueError where lists are missing or differ in length."""
        lists = [tuple(int(value) for value in data.get(name, ())) for name in ("keys", "lengths", "ages")]
        if set(data) != {"keys", "lengths", "ages"} or len({len(values) for values in lists}) != 1:
            raise ValueError(f"a queue is three lists alike: keys, lengths, ages; got {sorted(data)}")
        return cls(*lists)


@dataclass(frozen=True, slots=True, eq=False)
class QueuedStep:
    """One step: `keys` int64 (m,) of what it holds, the `sequence` int32 (m,) of each, and the `age` int64
    (m,) that each had; `queue` after it; `lacking` tokens that it has less than it should.
    """

    keys: Ints
    sequence: NDArray[np.int32]
    age: Ints
    queue: Queue
    lacking: int


def queued_step(
    queue: Queue,
    keys: ArrayLike,
    lengths: ArrayLike,
    cost: Callable[[Ints], ArrayLike],
    num_sequences: int,
    mean_length: int,
    longest: int,
    *,
    more: bool = True,
    tolerance: float = TOLERANCE,
    max_age: int = MAX_AGE,
) -> QueuedStep:
    """A step of what waits and of new pieces `keys` int (n,) of `lengths` int (n,): outliers wait for their
    like, all others are placed, in sequences of unequal length up to `longest`, as far as they have room.

    cost  lengths int (n,) -> float (n,), predicted time
    more  False: nothing comes after these; nothing is held

    Pure: the same arguments give the same step. Where it is `lacking`, call again with the same queue and so
    many tokens more; begin with none, since what waits may go now. Steps then have `num_sequences *
    mean_length` tokens to within a document. Every piece is in the step or in its queue.
    """
    names = np.concatenate([np.array(queue.keys, np.int64), whole(keys, "keys")])
    sizes = np.concatenate([np.array(queue.lengths, np.int64), whole(lengths, "lengths")])
    if len(names) != len(sizes):
        raise ValueError(f"{len(names)} keys of {len(sizes)} lengths, with what waits; as many are needed")
    within(sizes, 1, longest, "tokens")
    ages = np.concatenate([np.array(queue.ages, np.int64), np.zeros(len(sizes) - len(queue.ages), np.int64)])
    price = prices(cost(sizes), sizes)
    held = np.zeros(len(sizes), np.bool_)
    if more:
        held = outliers(sizes, ages, price, num_sequences, mean_length, tolerance=tolerance, max_age=max_age)
    free = np.flatnonzero(~held)
    sequence = variable(sizes[free], num_sequences, longest, ages[free], price[free])
    placed = free[sequence >= 0]
    waits = np.ones(len(sizes), np.bool_)
    waits[placed] = False
    after = Queue(
        tuple(names[waits].tolist()), tuple(sizes[waits].tolist()), tuple((ages[waits] + 1).tolist())
    )
    lacking = max(0, num_sequences * mean_length - int(sizes[free].sum()))
    return QueuedStep(names[placed], sequence[sequence >= 0], ages[placed], after, lacking)
