"""Outliers wait until enough of their like have come: a document that is dearer than a whole average sequence
makes its step late, unless the other sequences of that step are as dear.

The published form (WLB-LLM, arXiv 2503.17924, section 4.2) has queues with fixed thresholds, and empties one
when it holds a document for each sequence. Here there are no thresholds. Outliers stand in one line by cost,
and of all runs of neighbours in it the one goes for which waiting on would be dearest: the tokens times steps
that it has waited, less `patience` times the share of the step's time that it would cost, as the step is not
level with it. So like goes with like, whatever the lengths are, and a run may be shorter than the sequences
where the rest of the step is dear enough, or where it has waited too long. It never takes more than the step
holds.

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

TOLERANCE = 0.02
"""Above an equal share: what is dearer is an outlier, and waits. More levels less and delays less."""

PATIENCE = 20.0
"""Steps that a step's tokens may wait to spare its time: a run that would make its step 1 % longer goes once
it has waited 0.2 steps for each token of a step. More levels more and delays more.
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
    longest: int | None = None,
    tolerance: float = TOLERANCE,
    patience: float = PATIENCE,
    max_age: int = MAX_AGE,
) -> NDArray[np.bool_]:
    """Which pieces should wait, bool (n,), of those at hand for a step of `num_sequences` of `mean_length`.

    lengths  int (n,), tokens; costs float (n,); ages int (n,), steps that each has waited
    longest  tokens that a sequence holds at most, with what may stand in it beside an outlier; None: any

    Give what waits and a step's worth of new pieces; draw as many tokens more as are held. The mean delay of
    a token is about half the outliers' share of a sequence, whatever the number of sequences. Ties go to the
    lower index.
    """
    sizes = whole(lengths, "lengths")
    within(sizes, 1, LARGEST, "tokens")
    waited = whole(ages, "ages", len(sizes))
    price = prices(costs, sizes)
    if (
        num_sequences < 1
        or mean_length < 1
        or not tolerance >= 0
        or not 0 <= patience < np.inf
        or max_age < 0
    ):
        raise ValueError(
            "need a sequence of one token, a tolerance, a patience and a max_age from 0; got "
            f"{num_sequences} of {mean_length}, {tolerance}, {patience}, {max_age}"
        )
    if longest is not None and longest < mean_length:
        raise ValueError(f"sequences of {mean_length} tokens on average hold {longest} at most: too few")
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
        run = _run_that_goes(
            _Line(price[line], sizes[line], waited[line]),
            _Rest(num_sequences, mean_length, longest, rest, float(rate[first]), room),
            patience,
        )
        held[line[run]] = False
    return held


@dataclass(frozen=True, slots=True, eq=False)
class _Line:
    """Outliers in line: cost, falling, tokens and age of each."""

    cost: Floats
    tokens: Ints
    age: Ints


@dataclass(frozen=True, slots=True)
class _Rest:
    """A step without outliers: `cost` of all that is in it, `rate` of a token; it has `room` for so many."""

    num_sequences: int
    mean_length: int
    longest: int | None
    cost: float
    rate: float
    room: int


def _run_that_goes(line: _Line, rest: _Rest, patience: float) -> slice:
    """Of all runs of at most `num_sequences` neighbours that there is room for: the one that gains most, if
    any does.
    """
    count, most = len(line.cost), rest.num_sequences
    sizes = np.arange(1, min(most, count) + 1)
    if count * len(sizes) > _MOST_RUNS:
        sizes = sizes[-1:]
    begin, size = (grid.reshape(-1) for grid in np.meshgrid(np.arange(count), sizes, indexing="ij"))
    begin, size = begin[begin + size <= count], size[begin + size <= count]
    of_cost, of_tokens, of_waiting = (
        np.append(0, np.cumsum(values)) for values in (line.cost, line.tokens, (line.age + 1) * line.tokens)
    )
    taken = of_tokens[begin + size] - of_tokens[begin]
    cost = of_cost[begin + size] - of_cost[begin]
    total = cost + rest.cost - rest.rate * taken
    dearest = line.cost[begin]
    if rest.longest is not None:  # what the other sequences have no room for stands beside outliers
        beside = np.maximum(rest.room - taken - (most - size) * rest.longest, 0)
        dearest = np.maximum(dearest, (cost + rest.rate * beside) / size)
    late = np.maximum(dearest * most - total, 0.0)  # of the step, of which `total` is the time if level
    waited = (of_waiting[begin + size] - of_waiting[begin]) / (most * rest.mean_length)
    gain = np.where((taken <= rest.room) & (total > 0), waited * total - patience * late, 0.0)
    best = int(np.argmax(np.divide(gain, total, out=np.zeros_like(gain), where=total > 0)))
    return slice(int(begin[best]), int(begin[best] + size[best])) if gain[best] > 0 else slice(0, 0)


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
    patience: float = PATIENCE,
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
        held = outliers(
            *(sizes, ages, price, num_sequences, mean_length),
            longest=max(longest, mean_length),
            tolerance=tolerance,
            patience=patience,
            max_age=max_age,
        )
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
