"""Hybrid data parallel: each sequence on as many ranks as it needs, the others beside it data-parallel.

Context parallel of one size makes short sequences pay for long ones: all are cut over cp ranks. Here a long
sequence gets a group of ranks of its own size, any number from `ceil(L / capacity)` up, and short ones stay
whole on a rank each (ByteScale, arXiv 2502.21231, sections 4 and 5). Two modes:

- `equal_tokens`: the fewest ranks that hold a sequence; ranks are balanced by tokens.
- `equal_time`: as many ranks as bring a sequence to about an equal share of the step's predicted time; dear
  ranks get fewer microbatches. Several widths are tried; the plan that ends first is taken.

**No new process groups.** The group of a sequence is the ranks `first_rank` to `first_rank + num_ranks - 1`
of the one global group that a job has anyway, in order. What they need of each other is a ring of
point-to-point sends: keys and values to the next rank of the range, from the one before (`ring`, in global
ranks), which `torch.distributed.batch_isend_irecv` does on the global group. Gradients are summed over all
ranks once a step, as always, each microbatch's loss divided by the tokens of the whole step, since ranks
have unequal numbers of microbatches. A trainer that gathers weights in every microbatch (ZeRO-3, FSDP) must
let ranks that have none left take part with an empty one; `num_microbatches` says how many each has.

**No deadlock.** Microbatches have numbers, and every rank runs its own in ascending order. Of those that are
not done, the lowest always finds all its ranks free.

**Nodes.** With `ranks_per_node`, a group that fits a node lies in one, and a larger one begins at the first
rank of a node, so that it touches as few as it can. Pure; knows nothing of the network.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers.context_parallel import per_document


@runtime_checkable
class DocumentCost(Protocol):
    """What is needed of a cost model, such as `LlmCost`."""

    def of_documents(self, lengths: ArrayLike) -> NDArray[np.float64]: ...


Mode = Literal["equal_tokens", "equal_time"]
MODES: tuple[Mode, ...] = ("equal_time", "equal_tokens")

# Times of a sequence, in equal shares of the step, that `equal_time` widens to; first the fewest ranks.
_SHARES = (math.inf, 1.5, 1.1, 1.02, 1.0, 0.8)
_BETTER = 1e-3  # share of the time that more ranks, hence more to send, must save
_NEAR = 5e-3  # share of the floor above it that no further try is worth


@dataclass(frozen=True, slots=True, eq=False)
class HybridPlan:
    """Where n sequences run on R ranks.

    lengths     int64 (n,) tokens, as they were given
    first_rank  int32 (n,) of its group
    num_ranks   int32 (n,) of its group, 1 and more
    microbatch  int32 (n,) number; sequences of one number run together, on the same ranks
    tokens      int64 (R,) on each rank: of a cut sequence the rank that has most counts for all
    busy        float64 (R,) predicted time of its work
    end         float64 (R,) predicted time when it is done, with waiting for the others of its groups
    floor       no plan of these sequences and ranks ends earlier; in the same unit
    """

    lengths: NDArray[np.int64]
    first_rank: NDArray[np.int32]
    num_ranks: NDArray[np.int32]
    microbatch: NDArray[np.int32]
    tokens: NDArray[np.int64]
    busy: NDArray[np.float64]
    end: NDArray[np.float64]
    floor: float

    @property
    def time(self) -> float:
        """When the last rank is done."""
        return float(self.end.max())

    @property
    def gap(self) -> float:
        """Time over the floor, minus 1; 0 without work."""
        return self.time / self.floor - 1.0 if self.floor > 0 else 0.0

    @property
    def num_microbatches(self) -> NDArray[np.int64]:
        """int64 (R,): of each rank."""
        _, one = np.unique(self.microbatch, return_index=True)
        steps = np.zeros(len(self.end) + 1, np.int64)
        np.add.at(steps, self.first_rank[one], 1)
        np.add.at(steps, self.first_rank[one] + self.num_ranks[one], -1)
        return np.cumsum(steps)[:-1]

    def of_rank(self, rank: int) -> tuple[NDArray[np.int64], ...]:
        """The sequences of each microbatch of `rank`, in the order in which it runs them."""
        mine = np.flatnonzero((self.first_rank <= rank) & (rank < self.first_rank + self.num_ranks))
        numbers = self.microbatch[mine]
        return tuple(mine[numbers == number] for number in np.unique(numbers))

    def ring(self, sequence: int, rank: int) -> tuple[int, int]:
        """(rank to send keys and values to, rank to receive from), global ranks; `rank` itself on one rank.

        ValueError where `rank` has no part in `sequence`.
        """
        first, count = int(self.first_rank[sequence]), int(self.num_ranks[sequence])
        if not first <= rank < first + count:
            raise ValueError(
                f"rank {rank} has no part in sequence {sequence}, which is on {first} to {first + count - 1}"
            )
        return first + (rank - first + 1) % count, first + (rank - first - 1) % count

    def cut(self, sequence: int, multiple: int = 1) -> tuple[NDArray[np.int32], ...]:
        """Token indices of `sequence` on each rank of its group, zig-zag (`per_document`)."""
        return per_document([0, int(self.lengths[sequence])], int(self.num_ranks[sequence]), multiple)


@dataclass(frozen=True, slots=True)
class _Task:
    """What is asked, checked. ring_time: that of receiving each sequence's keys and values, float (n,)."""

    lengths: NDArray[np.int64]
    costs: NDArray[np.float64]
    ring_time: NDArray[np.float64]
    least: NDArray[np.int64]
    num_ranks: int
    per_node: int
    capacity: int

    def time(self, ranks: NDArray[np.int64]) -> NDArray[np.float64]:
        """Of each sequence on so many ranks: it shares its work, and receives what the others have."""
        return self.costs / ranks + self.ring_time * (ranks - 1) / ranks

    def floor(self) -> float:
        """Work on the fewest ranks, where least is sent, in equal shares; or the dearest sequence on the
        number of ranks that is best for it alone.
        """
        if not len(self.lengths):
            return 0.0
        all_ranks = np.full(len(self.lengths), self.num_ranks)
        alone = np.minimum(self.time(self.least), self.time(all_ranks))
        mean = math.fsum(self.time(self.least) * self.least) / self.num_ranks
        return max(mean, float(alone.max()))


def hybrid(
    lengths: ArrayLike,
    num_ranks: int,
    capacity: int,
    cost: DocumentCost | ArrayLike,
    *,
    mode: Mode = "equal_time",
    ranks_per_node: int | None = None,
    ring: float = 0.0,
) -> HybridPlan:
    """Groups and microbatches for sequences of `lengths` int (n,) on `num_ranks` ranks.

    capacity        most tokens of a microbatch on a rank
    cost            of a sequence on one rank, if it is one document; or of each, float (n,). On k ranks it
                    takes a k-th
    ranks_per_node  divides `num_ranks`; None: all ranks are as near to each other
    ring            time of receiving one token's keys and values, in the unit of the cost, that is not hidden
                    behind the work; each of k ranks receives (k - 1) / k of the sequence

    ValueError names the sequence that is not positive, or longer than all ranks hold together.
    """
    task = _checked(lengths, num_ranks, capacity, cost, ranks_per_node, ring)
    if mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}; known: {', '.join(MODES)}")
    if mode == "equal_tokens":
        return _placed(task, task.least, np.asarray(task.lengths / task.least, np.float64))
    bound = task.floor()
    best: HybridPlan | None = None
    tried: set[bytes] = set()
    for share in _SHARES:
        ranks = _widths(task, bound * share)
        if ranks.tobytes() in tried:
            continue
        tried.add(ranks.tobytes())
        plan = _placed(task, ranks, task.time(ranks))
        if best is None or plan.time < best.time * (1 - _BETTER):
            best = plan
        if best.gap <= _NEAR:
            break
    assert best is not None, "the first share is tried"
    return best


def _widths(task: _Task, target: float) -> NDArray[np.int64]:
    """The fewest ranks on which each sequence takes `target` or less; all, where none do."""
    if math.isinf(target) or not len(task.lengths):
        return task.least
    # cost / k + ring (k - 1) / k <= target  <=>  k >= (cost - ring) / (target - ring)
    gain, room = task.costs - task.ring_time, target - task.ring_time
    with np.errstate(divide="ignore", invalid="ignore"):
        wanted = np.where(room > 0, gain / room, np.where(gain > 0, np.inf, 1.0))
    wanted = np.ceil(np.clip(wanted * (1 - 1e-12), 1, task.num_ranks))
    return np.maximum(task.least, wanted.astype(np.int64))


def _placed(task: _Task, ranks: NDArray[np.int64], weight: NDArray[np.float64]) -> HybridPlan:
    """Wide sequences on the range of ranks that is free first, widest first; then whole ones, dearest first,
    each to the rank with least. `weight` float (n,) is what ranks are balanced by.
    """
    count = len(task.lengths)
    first = np.zeros(count, np.int32)
    microbatch = np.zeros(count, np.int32)
    load = np.zeros(task.num_ranks)
    order = np.lexsort((np.arange(count), -weight, -ranks))
    wide = order[ranks[order] > 1]
    ranges: _Ranges | None = None
    for number, item in enumerate(wide.tolist()):
        width = int(ranks[item])
        if ranges is None or ranges.width != width:
            ranges = _Ranges(load, width, task.per_node)
        microbatch[item] = number
        first[item] = ranges.take(float(weight[item]))
    whole = order[len(wide) :]
    heap = [
        (value, 0, rank) for rank, value in enumerate(load.tolist())
    ]  # of equals the one with fewer items
    heapq.heapify(heap)
    for item in whole.tolist():
        value, held, rank = heap[0]
        first[item] = rank
        heapq.heapreplace(heap, (value + float(weight[item]), held + 1, rank))
    _fill(task, whole, first, microbatch, len(wide))
    return _plan(task, ranks, first, microbatch, wide)


class _Ranges:
    """All ranges of `width` ranks that a group may be, and when their ranks are free: `load` float (R,),
    which `take` changes in place.
    """

    def __init__(self, load: NDArray[np.float64], width: int, per_node: int) -> None:
        self.width = width
        self._load = load
        starts = np.arange(len(load) - width + 1)
        in_node = starts % per_node
        allowed = in_node + width <= per_node if width <= per_node else in_node == 0
        self._closed = np.where(allowed, 0.0, np.inf)
        self._free = np.empty(len(starts))
        self._look(0, len(starts))

    def take(self, weight: float) -> int:
        """The first rank of the range that is free first, the lowest of equals; busy so much longer now."""
        start = int(np.argmin(self._free))
        self._load[start : start + self.width] = self._free[start] + weight
        self._look(max(0, start - self.width + 1), min(len(self._free), start + self.width))
        return start

    def _look(self, low: int, high: int) -> None:
        """At the ranges that begin at `low` to `high` - 1."""
        loads = self._load[low : high + self.width - 1]
        views = np.lib.stride_tricks.sliding_window_view(loads, self.width)  # axes: range, rank
        self._free[low:high] = views.max(axis=1) + self._closed[low:high]


def _fill(
    task: _Task, whole: NDArray[np.int64], first: NDArray[np.int32], microbatch: NDArray[np.int32], start: int
) -> None:
    """In place: the microbatches of whole sequences, first fit decreasing by tokens on each rank, numbered
    from `start`.
    """
    longest = whole[np.argsort(-task.lengths[whole], kind="stable")]
    opened: dict[int, list[tuple[int, int]]] = {}  # rank -> (number, room)
    number = start
    for item, rank, length in zip(
        longest.tolist(), first[longest].tolist(), task.lengths[longest].tolist(), strict=True
    ):
        mine = opened.setdefault(rank, [])
        for at, (held, room) in enumerate(mine):
            if length <= room:
                mine[at] = held, room - length
                microbatch[item] = held
                break
        else:
            mine.append((number, task.capacity - length))
            microbatch[item] = number
            number += 1


def _plan(
    task: _Task,
    ranks: NDArray[np.int64],
    first: NDArray[np.int32],
    microbatch: NDArray[np.int32],
    wide: NDArray[np.int64],
) -> HybridPlan:
    """With the predicted times of a placement, whatever it was balanced by."""
    times = task.time(ranks)
    busy, end = np.zeros(task.num_ranks), np.zeros(task.num_ranks)
    tokens = np.zeros(task.num_ranks, np.int64)
    for item in wide.tolist():
        group = slice(int(first[item]), int(first[item] + ranks[item]))
        busy[group] += times[item]
        end[group] = end[group].max() + times[item]
        tokens[group] += -(-task.lengths[item] // ranks[item])
    whole = ranks == 1
    alone = np.bincount(first[whole], times[whole], task.num_ranks)
    np.add.at(tokens, first[whole], task.lengths[whole])
    return HybridPlan(
        lengths=task.lengths,
        first_rank=first,
        num_ranks=ranks.astype(np.int32),
        microbatch=microbatch,
        tokens=tokens,
        busy=busy + alone,
        end=end + alone,
        floor=task.floor(),
    )


def _checked(
    lengths: ArrayLike,
    num_ranks: int,
    capacity: int,
    cost: DocumentCost | ArrayLike,
    ranks_per_node: int | None,
    ring: float,
) -> _Task:
    values = np.asarray(lengths)
    if values.ndim != 1 or not (np.issubdtype(values.dtype, np.integer) or not values.size):
        raise ValueError(f"lengths are {values.dtype} of shape {values.shape}; integers (n,) are needed")
    if num_ranks < 1 or capacity < 1:
        raise ValueError(f"num_ranks is {num_ranks} and capacity {capacity}; both at least 1")
    per_node = num_ranks if ranks_per_node is None else ranks_per_node
    if per_node < 1 or num_ranks % per_node:
        raise ValueError(f"{num_ranks} ranks are no whole number of nodes of {per_node}")
    if not (math.isfinite(ring) and ring >= 0):
        raise ValueError(f"ring is {ring}; finite and not negative")
    wrong = np.flatnonzero((values < 1) | (values > num_ranks * capacity))
    if len(wrong):
        at = int(wrong[0])
        needed = -(-int(values[at]) // capacity)
        raise ValueError(
            f"sequence {at} has {values[at]} tokens; allowed are 1 to {num_ranks * capacity}, what "
            f"{num_ranks} ranks of {capacity} hold"
            + (f": it needs {needed} ranks, or a larger capacity" if needed > num_ranks else "")
        )
    sizes = values.astype(np.int64)
    return _Task(
        lengths=sizes,
        costs=cost.of_documents(sizes) if isinstance(cost, DocumentCost) else _given(cost, len(sizes)),
        ring_time=ring * sizes.astype(np.float64),
        least=-(-sizes // capacity),
        num_ranks=num_ranks,
        per_node=per_node,
        capacity=capacity,
    )


def _given(costs: ArrayLike, count: int) -> NDArray[np.float64]:
    values = np.asarray(costs, np.float64)
    if values.shape != (count,):
        raise ValueError(f"costs have shape {values.shape} for {count} sequences")
    wrong = np.flatnonzero(~((values >= 0) & np.isfinite(values)))
    if len(wrong):
        raise ValueError(f"sequence {wrong[0]} costs {values[wrong[0]]}; finite and not negative")
    return values
