"""A slow and obvious planner of text sources, for the real one to be held against. Shares no code with it.

Mixture: before each draw every source is looked at. One that has been given no more than its share of what is
drawn so far may come next; of those, the one whose next document falls due first. Packing: best fit, longest
first, into so many sequences or into as many as it takes. Weights do not change and sources do not end here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

Document = tuple[str, int]
"""(source, how many documents of it came before)."""


def draw_order(
    weights: Mapping[str, int], lengths: Mapping[str, Sequence[int]], unit: str, count: int
) -> list[Document]:
    """The first `count` documents. `lengths` repeat for ever."""
    total_weight = sum(weights.values())
    share = {name: Fraction(weight, total_weight) for name, weight in weights.items()}
    given = dict.fromkeys(weights, Fraction(0))
    taken = dict.fromkeys(weights, 0)
    drawn = largest = Fraction(0)
    order: list[Document] = []
    while len(order) < count:
        best: tuple[Fraction, str] | None = None
        for name in sorted(weights):
            length = lengths[name][taken[name] % len(lengths[name])]
            size = Fraction(length if unit == "tokens" else 1)
            if given[name] <= share[name] * drawn:
                due = (given[name] + (min(size, largest) if largest else size)) / share[name]
                if best is None or due < best[0]:
                    best = (due, name)
        assert best is not None, "shares add up to 1: somebody is not ahead"
        name = best[1]
        length = lengths[name][taken[name] % len(lengths[name])]
        size = Fraction(length if unit == "tokens" else 1)
        order.append((name, taken[name]))
        taken[name] += 1
        given[name] += size
        drawn += size
        largest = max(largest, size)
    return order


def packed_tokens(lengths: Sequence[int], sequences: int, capacity: int) -> int:
    """Tokens that best fit, longest first, gets into so many sequences."""
    room = [capacity] * sequences
    for length in sorted(lengths, reverse=True):
        fits = [space for space in room if space >= length]
        if fits:
            room[room.index(min(fits))] -= length
    return sequences * capacity - sum(room)


def packed_whole(lengths: Sequence[int], capacity: int) -> list[int]:
    """Tokens in each sequence where best fit, longest first, opens one whenever none has room."""
    filled: list[int] = []
    for length in sorted(lengths, reverse=True):
        fits = [tokens for tokens in filled if tokens + length <= capacity]
        if fits:
            filled[filled.index(max(fits))] += length
        else:
            filled.append(length)
    return filled
