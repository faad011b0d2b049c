"""Sequences while they are filled: how much each still takes, and best fit into them.

Best fit goes by runs of like pieces. The fullest sequence with room for a piece is the fullest with room for
the next like it too, until it has none: so a run of k costs one look-up for each sequence that it touches,
not k. Of 100,000 texts there are some 5,000 runs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

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
        """Best fit of `pieces` int (m,), longest first. `room` int (sequences,): as if there were no more."""
        if len(pieces) == 0:
            return
        if len(self._need) > 1:  # runs are longer where what is as long is also sorted by its weights
            pieces = pieces[np.lexsort((*-self._need[1:, pieces], -self._need[0, pieces]))]
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
    shelves = _Shelves(rooms, int(need[0].min()))
    if len(spare):
        return _best_fit_limited(shelves, rooms.copy(), spare.copy(), need, counts)
    places: list[int] = []
    taken: list[int] = []
    for size, count in zip(need[0].tolist(), counts.tolist(), strict=True):
        left = count
        while left and (room := shelves.least(size)):
            place = shelves.take(room)
            fit = min(left, room // size)
            places.append(place)
            taken.append(fit)
            left -= fit
            shelves.add(room - fit * size, place)
        if left:
            places.append(-1)
            taken.append(left)
    return places, taken


class _Shelves:
    """Sequences by their room, on a shelf for each room; those with less than `smallest` are done with.

    A shelf holds them negative and ascending: the lowest number is its last, which is cheap to take.
    """

    def __init__(self, rooms: Ints, smallest: int) -> None:
        order = np.lexsort((-np.arange(len(rooms)), rooms))
        found, starts = np.unique(rooms[order], return_index=True)
        groups = np.split(-order, starts[1:])
        self._smallest = smallest
        self._shelves = {
            room: group.tolist()
            for room, group in zip(found.tolist(), groups, strict=True)
            if room >= smallest
        }
        self._open = sorted(self._shelves)

    def least(self, size: int) -> int:
        """The least room that is at least `size`; 0 if there is none."""
        at = bisect_left(self._open, size)
        return self._open[at] if at < len(self._open) else 0

    def first(self, room: int) -> int:
        """Of those that have this `room`."""
        place: int = -self._shelves[room][-1]
        return place

    def take(self, room: int, place: int | None = None) -> int:
        """Off its shelf: `place`, or the first that has this `room`."""
        shelf = self._shelves[room]
        taken: int = -shelf.pop() if place is None else -shelf.pop(bisect_left(shelf, -place))
        if not shelf:
            del self._shelves[room], self._open[bisect_left(self._open, room)]
        return taken

    def add(self, room: int, place: int) -> None:
        """Back, with so much room."""
        if room in self._shelves:
            insort(self._shelves[room], -place)
        elif room >= self._smallest:
            self._shelves[room] = [-place]
            insort(self._open, room)

    def from_least(self, size: int) -> Iterator[tuple[int, int]]:
        """(room, place) of those with room for `size`, the fullest first; of equally full ones the first."""
        for at in range(bisect_left(self._open, size), len(self._open)):
            room = self._open[at]
            for place in reversed(self._shelves[room]):
                yield room, -place


def _best_fit_limited(
    shelves: _Shelves, rooms: Ints, spare: Ints, need: Ints, counts: Ints
) -> tuple[list[int], list[int]]:
    """The same under further limits. `rooms` and `spare` are used up.

    What fits nowhere now never will: of those a few are remembered, and what needs no less is not looked for.
    """
    places: list[int] = []
    taken: list[int] = []
    to_spare: list[list[int]] = spare.tolist()  # numbers one by one are read five times as fast from lists
    lost: list[tuple[int, ...]] = []
    for wanted, count in zip(need.T.tolist(), counts.tolist(), strict=True):
        size, weights = wanted[0], [(i, weight) for i, weight in enumerate(wanted[1:]) if weight]
        left = count
        while left:
            if any(all(a <= b for a, b in zip(known, wanted, strict=True)) for known in lost):
                break
            room, place = _fullest(shelves, rooms, spare, to_spare, size, weights)
            if not room:
                lost = [tuple(wanted), *lost[: _KNOWN_LOST - 1]]
                break
            shelves.take(room, place)
            fit = min(left, room // size)
            for i, weight in weights:
                fit = min(fit, to_spare[i][place] // weight)
            shelves.add(room - fit * size, place)
            rooms[place] = room - fit * size
            for i, weight in weights:
                to_spare[i][place] -= fit * weight
                spare[i, place] = to_spare[i][place]
            places.append(place)
            taken.append(fit)
            left -= fit
        if left:
            places.append(-1)
            taken.append(left)
    return places, taken


def _fullest(
    shelves: _Shelves,
    rooms: Ints,
    spare: Ints,
    to_spare: list[list[int]],
    size: int,
    weights: list[tuple[int, int]],
) -> tuple[int, int]:
    """(room, place) of the fullest sequence with room for `size` that has all of `weights` to spare; (0, -1)
    if there is none.
    """
    if not weights:
        room = shelves.least(size)
        return (room, shelves.first(room)) if room else (0, -1)
    for looks, (room, place) in enumerate(shelves.from_least(size)):
        if looks == _LOOKS:
            break
        for i, weight in weights:
            if to_spare[i][place] < weight:
                break
        else:
            return room, place
    else:
        return 0, -1
    fits = rooms >= size
    for i, weight in weights:
        fits &= spare[i] >= weight
    found = np.flatnonzero(fits)
    if not len(found):
        return 0, -1
    place = int(found[np.argmin(rooms[found])])
    return int(rooms[place]), place
