"""Sequences while they are filled: how much each still takes, and best fit into them.

Best fit goes by runs of like pieces. The fullest sequence with room for a piece is the fullest with room for
the next like it too, until it has none: so a run of k costs one look-up for each sequence that it touches,
not k. Of 100,000 texts there are some 5,000 runs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from dataloader_balancers.pack.pieces import Ints, Task

# Sequences looked at one by one before all are compared at once.
_LOOKS = 16
_KNOWN_LOST = 16


class Bins:
    """`result` int32 (n,): where each piece is, or -1."""

    def __init__(self, task: Task) -> None:
        self.result = np.full(len(task.sizes), -1, np.int32)
        self._need = np.stack([task.sizes, *task.weights])  # (1 + limits, n)
        self.free = np.array([task.capacity, *task.caps])[:, None].repeat(task.num_sequences, axis=1)

    def put(self, pieces: Ints, places: Ints) -> None:
        """`pieces` int (m,) into `places` int (m,), which have room for them and are all different."""
        self.result[pieces] = places
        self.free[:, places] -= self._need[:, pieces]

    def hold(self, pieces: Ints, places: NDArray[np.integer]) -> None:
        """`pieces` int (m,) in `places` int (m,), which have room for all of them."""
        self.result[pieces] = places
        for row, used in zip(self.free, self._need[:, pieces], strict=True):
            np.subtract.at(row, places, used)

    def admits(self, pieces: Ints) -> NDArray[np.bool_]:
        """Whether any sequence has room for each of `pieces` int (m,), by itself: bool (m,)."""
        result = np.zeros(len(pieces), np.bool_)
        for at, need in enumerate(self._need[:, pieces].T):
            result[at] = (self.free >= need[:, None]).all(axis=0).any()
        return result

    def fits(self, pieces: Ints, places: Ints) -> NDArray[np.bool_]:
        """Whether each of `places` int (m,), by itself, has room for its piece: bool (m,)."""
        fits: NDArray[np.bool_] = np.logical_and.reduce(self.free[:, places] >= self._need[:, pieces])
        return fits

    def fill(self, pieces: Ints, room: Ints | None = None) -> None:
        """Best fit, in the order of `pieces`. `room` int (sequences,): as if there were no more than that."""
        if len(pieces) == 0:
            return
        rooms = self.free[0] if room is None else np.minimum(room, self.free[0])
        need = self._need[:, pieces]
        starts = np.flatnonzero(np.append(True, (need[:, 1:] != need[:, :-1]).any(axis=0)))
        counts = np.diff(np.append(starts, len(pieces)))
        places, taken = _best_fit(rooms, self.free[1:], need[:, starts], counts)
        # `taken` says how many of each run went where; those left over of a run have place -1.
        where = np.repeat(np.array(places, np.int32), np.array(taken, np.int64))
        self.result[pieces] = where
        at = where >= 0
        for row, used in zip(self.free, need, strict=True):
            np.subtract.at(row, where[at], used[at])


def _best_fit(rooms: Ints, spare: Ints, need: Ints, counts: Ints) -> tuple[list[int], list[int]]:
    """(place, how many) in the order of the runs; place -1 for the rest of a run that fits nowhere.

    rooms   int (sequences,), and `spare` int (limits, sequences)
    need    int (1 + limits, runs): of one piece of each run of `counts` int (runs,)
    """
    if len(spare):
        return _best_fit_limited(rooms.copy(), spare.copy(), need, counts)
    heaps = _by_room(rooms)
    open_rooms = sorted(heaps)
    smallest = int(need[0].min())
    places: list[int] = []
    taken: list[int] = []
    for size, count in zip(need[0].tolist(), counts.tolist(), strict=True):
        left = count
        at = bisect_left(open_rooms, size)
        while left and at < len(open_rooms):
            room = open_rooms[at]
            heap = heaps[room]
            places.append(heappop(heap))
            if not heap:
                del open_rooms[at], heaps[room]
            fit = room // size
            if fit > left:
                fit = left
            taken.append(fit)
            left -= fit
            room -= fit * size
            if room in heaps:
                heappush(heaps[room], places[-1])
            elif room >= smallest:
                heaps[room] = [places[-1]]
                insort(open_rooms, room)
            at = bisect_left(open_rooms, size)
        if left:
            places.append(-1)
            taken.append(left)
    return places, taken


def _by_room(rooms: Ints) -> dict[int, list[int]]:
    """The sequences of each room, ascending, so that each list is a heap."""
    order = np.argsort(rooms, kind="stable")
    found, starts = np.unique(rooms[order], return_index=True)
    groups = np.split(order, starts[1:])
    return {int(room): group.tolist() for room, group in zip(found, groups, strict=True)}


def _best_fit_limited(rooms: Ints, spare: Ints, need: Ints, counts: Ints) -> tuple[list[int], list[int]]:
    """The same under further limits. `rooms` and `spare` are used up.

    What fits nowhere now never will: of those a few are remembered, and what needs no less is not looked for.
    """
    # Room and sequence in one integer: a sorted list of plain integers is the fastest of its kind here.
    total = len(rooms)
    keys: list[int] = np.sort(rooms * total + np.arange(total)).tolist()
    places: list[int] = []
    taken: list[int] = []
    lost: list[tuple[int, ...]] = []
    for wanted, count in zip(need.T.tolist(), counts.tolist(), strict=True):
        size, weights = wanted[0], wanted[1:]
        left = count
        while left:
            place = -1
            if not any(all(a <= b for a, b in zip(known, wanted, strict=True)) for known in lost):
                place = _fullest(keys, total, rooms, spare, size, weights)
            if place < 0:
                if len(lost) < _KNOWN_LOST:
                    lost.append(tuple(wanted))
                places.append(-1)
                taken.append(left)
                break
            room = int(rooms[place])
            key = room * total + place
            fits = [room // size, left]
            fits += [int(spare[i, place]) // weight for i, weight in enumerate(weights) if weight]
            fit = min(fits)
            keys.pop(bisect_left(keys, key))
            insort(keys, key - fit * size * total)
            rooms[place] -= fit * size
            for i, weight in enumerate(weights):
                spare[i, place] -= fit * weight
            places.append(place)
            taken.append(fit)
            left -= fit
    return places, taken


def _fullest(keys: list[int], total: int, rooms: Ints, spare: Ints, size: int, weights: list[int]) -> int:
    """The fullest sequence with room, by `keys`, that also has all of `weights` to spare; -1 if none has."""
    at = bisect_left(keys, size * total)
    for key in keys[at : at + _LOOKS]:
        if all(spare[i, key % total] >= weight for i, weight in enumerate(weights)):
            return key % total
    if at + _LOOKS >= len(keys):
        return -1
    fits = rooms >= size
    for row, weight in zip(spare, weights, strict=True):
        fits &= row >= weight
    found = np.flatnonzero(fits)
    return int(found[np.argmin(rooms[found])]) if len(found) else -1
