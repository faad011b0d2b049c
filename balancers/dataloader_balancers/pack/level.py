"""How equal packed sequences could be at best, and how equal they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dataloader_balancers.pack.pieces import Floats, prices, whole, within


@dataclass(frozen=True, slots=True)
class Level:
    """A packing beside the best that its pieces allow.

    fill       tokens placed, as a share of `num_sequences * capacity`
    spread     dearest sequence over the mean
    floor      the least `spread` of any packing of the same pieces: no sequence can be cheaper than its
               dearest piece, and the dearest not cheaper than the mean
    gap        `spread / floor - 1`; 0 is as good as can be
    range      dearest sequence over the cheapest; inf where one is free
    range_floor  the least `range`: the cheapest sequence has at most its share of what the k dearest pieces
               leave to the sequences without them, for every k
    """

    fill: float
    spread: float
    floor: float
    gap: float
    range: float
    range_floor: float


def level(
    lengths: ArrayLike, sequence: ArrayLike, num_sequences: int, capacity: int, costs: ArrayLike | None = None
) -> Level:
    """Judges `sequence` int (n,), -1 for what waits, as packers give it; what waits counts nowhere."""
    sizes = whole(lengths, "lengths")
    place = whole(sequence, "sequence", len(sizes))
    if num_sequences < 1 or capacity < 1:
        raise ValueError(f"need at least one sequence of one token; got {num_sequences} of {capacity}")
    within(place, -1, num_sequences - 1, "as its sequence")
    placed = place >= 0
    price = prices(costs, sizes)[placed]
    load = np.bincount(place[placed], price, num_sequences).astype(np.float64)
    fill = int(sizes[placed].sum()) / (num_sequences * capacity)
    total = _sum(load)
    if total <= 0:
        return Level(fill, 1.0, 1.0, 0.0, 1.0, 1.0)
    mean = total / num_sequences
    dearest, cheapest = float(load.max()), float(load.min())
    least = max(mean, float(price.max()))
    falling = np.sort(price)[::-1][: num_sequences - 1]
    left = total - np.append(0.0, np.cumsum(falling))
    most = float((left / (num_sequences - np.arange(len(left)))).min())
    return Level(
        fill=fill,
        spread=dearest / mean,
        floor=least / mean,
        gap=dearest / least - 1,
        range=dearest / cheapest if cheapest > 0 else np.inf,
        range_floor=least / most if most > 0 else np.inf,
    )


def _sum(values: Floats) -> float:
    return float(np.cumsum(values)[-1])
