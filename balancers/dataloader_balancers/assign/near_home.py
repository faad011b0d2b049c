"""Encoder work that leaves the rank of its tokens only where that rank has more than its share.

`two_placements` chooses both placements of a step and levels each node anew. Here tokens are placed, and so
is their encoder work unless that is uneven: what has to be sent is what a rank has above its share, and
little more. For work that is placed microbatch by microbatch, where ranks meet in an all-to-all, as in
OrchMLLM (arXiv 2503.23830).
"""

from __future__ import annotations

import heapq
import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers.assign.items import checked
from dataloader_balancers.assign.ranks import Floats, Ints

TOLERANCE = 0.05
"""How much above an equal share a rank may be before work leaves it."""


def near_home(
    costs: ArrayLike,
    home: ArrayLike,
    num_ranks: int,
    *,
    home_size: int = 1,
    nodes: ArrayLike | None = None,
    speeds: ArrayLike | None = None,
    tolerance: float = TOLERANCE,
) -> NDArray[np.int32]:
    """int32 (n,): the rank that does each item: one of its home, as long as that stays within the allowed
    time; else, dearest first, the rank of its node that is done first, if it stays within that; else of all.

    costs       float (n,), finite and from 0
    home        int (n,): home h is of the `home_size` ranks from h * home_size on, which all have the item's
                tokens, or part of them: cp ranks
    nodes       int (num_ranks,), the host of each rank; None: all are on one
    speeds      float (num_ranks,), from 0, the same for all ranks of a home; one at 0 does nothing, and some
                rank has to be above; None: alike
    tolerance   the allowed time is that of equal shares and so much of it, or of the dearest item on the
                fastest rank where that is longer

    Where each home is one rank and none is above the allowed time, nothing moves. Of like ranks the slowest
    takes at most the allowed time, or that of equal shares and one item more. ValueError names what is wrong.
    """
    work = checked(costs, num_ranks, None)
    if home_size < 1 or num_ranks % home_size:
        raise ValueError(f"homes of {home_size} ranks do not divide {num_ranks} ranks")
    homes = _within("home", home, len(work), num_ranks // home_size)
    if not tolerance >= 0:
        raise ValueError(f"tolerance is {tolerance}; from 0")
    node = np.zeros(num_ranks, np.int64) if nodes is None else np.asarray(nodes, np.int64)
    if node.shape != (num_ranks,):
        raise ValueError(f"nodes has shape {node.shape} for {num_ranks} ranks")
    fast = _speeds(speeds, num_ranks)
    if not len(work):
        return np.empty(0, np.int32)
    equal = math.fsum(work) / math.fsum(fast)
    allowed = max(equal * (1 + tolerance), float(work.max()) / float(fast.max()))
    load = np.zeros(num_ranks)
    rank = _at_home(work, homes, home_size, fast, allowed, load)
    leaves = np.flatnonzero(rank < 0)
    leaves = leaves[np.argsort(-work[leaves], kind="stable")]
    of_home = node[homes * home_size]
    give = _in_turn if (fast == fast[0]).all() else _by_speed
    rank[leaves] = give(work[leaves], of_home[leaves], load, node, fast, allowed)
    return rank.astype(np.int32)


def _within(name: str, values: ArrayLike, count: int, stop: int) -> Ints:
    found = np.asarray(values, np.int64)
    if found.shape != (count,):
        raise ValueError(f"{name} has shape {found.shape} for {count} items")
    wrong = np.flatnonzero((found < 0) | (found >= stop))
    if len(wrong):
        raise ValueError(f"item {wrong[0]} has {name} {found[wrong[0]]}; 0 to {stop - 1}")
    return found


def _speeds(speeds: ArrayLike | None, num_ranks: int) -> Floats:
    fast = np.ones(num_ranks) if speeds is None else np.asarray(speeds, np.float64)
    if fast.shape != (num_ranks,) or not (np.isfinite(fast) & (fast >= 0)).all() or not (fast > 0).any():
        raise ValueError(f"speeds must be {num_ranks} finite numbers from 0, one of them above")
    return fast


def _at_home(work: Floats, homes: Ints, size: int, fast: Floats, allowed: float, load: Floats) -> Ints:
    """(n,) the rank of what stays at home, -1 of what does not; `load` (ranks,) is filled. Ranks of a home
    are as fast as its first.
    """
    rank = np.full(len(work), -1, np.int64)
    most = fast[::size] * allowed
    rest = fast[::size][homes] > 0
    if size == 1:
        has = np.bincount(homes, work, len(most))
        stays = rest & (has <= most)[homes]
        rank[stays] = homes[stays]
        np.add.at(load, homes[stays], work[stays])
        rest &= ~stays
    items = np.flatnonzero(rest)
    items = items[np.lexsort((items, -work[items], homes[items]))]
    at, heap = -1, [(0.0, 0)]
    for item, cost, h in zip(items.tolist(), work[items].tolist(), homes[items].tolist(), strict=True):
        if h != at:
            at, heap, limit = h, [(0.0, r) for r in range(h * size, (h + 1) * size)], float(most[h])
        has_least, r = heap[0]
        if has_least + cost <= limit:  # else a cheaper one may still find room
            heapq.heapreplace(heap, (has_least + cost, r))
            rank[item], load[r] = r, has_least + cost
    return rank


def _in_turn(
    work: Floats, of_node: Ints, load: Floats, node: Ints, fast: Floats, allowed: float
) -> list[int]:
    """The rank of each item that leaves home, in the order given, where ranks are equally fast."""
    limit = allowed * float(fast[0])
    ranks = sorted(zip(load.tolist(), range(len(load)), strict=True))
    now, everywhere = load.tolist(), ranks
    near: dict[int, list[tuple[float, int]]] = {}
    for entry in ranks:  # sorted, so each is a heap
        near.setdefault(int(node[entry[1]]), []).append(entry)
    found = []
    for cost, n in zip(work.tolist(), of_node.tolist(), strict=True):
        heap = near[n]
        _skip_old(heap, now)
        if heap[0][0] + cost > limit:
            heap = everywhere
            _skip_old(heap, now)
        has, r = heap[0]
        now[r] = has + cost
        for each in (everywhere, near[int(node[r])]):
            heapq.heappush(each, (now[r], r))
        found.append(r)
    return found


def _skip_old(heap: list[tuple[float, int]], now: list[float]) -> None:
    """Drop entries at the top that are not what their rank has now."""
    while heap[0][0] != now[heap[0][1]]:
        heapq.heappop(heap)


def _by_speed(
    work: Floats, of_node: Ints, load: Floats, node: Ints, fast: Floats, allowed: float
) -> list[int]:
    """The same where they are not, the rank that is done first with the item."""
    slow = np.divide(1.0, fast, out=np.full(len(fast), np.inf), where=fast > 0)
    now, found = load.copy(), []
    working = np.flatnonzero(fast > 0)
    near = {int(n): working[node[working] == n] for n in np.unique(node)}
    for cost, n in zip(work.tolist(), of_node.tolist(), strict=True):
        best = -1
        for ranks in (near[n], working):
            if len(ranks):
                done = (now[ranks] + cost) * slow[ranks]
                best = int(ranks[np.argmin(done)])
                if float(done.min()) <= allowed:
                    break
        now[best] += cost
        found.append(best)
    return found
