"""`mix` on a buffer of items: which are drawn, so that sources have their shares all along.

A source of weight w that has given an amount a stands at time a / w; the next item is one of the source that
stands furthest back (weighted fair queueing: Demers, Keshav and Shenker 1989, SIGCOMM). So at any moment a
source is at most one item from its share. The service draws from a stream of blocks instead, over many
steps and with a schedule (its `mixture:`); this is the same primitive for what is at hand.
"""

from __future__ import annotations

import difflib

import numpy as np
from numpy.typing import NDArray

from dataloader_balancers.strategy.data import Floats, Ints, Items
from dataloader_balancers.strategy.nodes import Mix, StrategyError


def draw(mix: Mix, items: Items, room: int | None) -> NDArray[np.bool_]:
    """Which items are drawn, bool (n,); the others wait. In order of arrival within a source.

    `room` is the tokens that the sequences hold; None: there is no end to them. Drawing ends with the item
    that fills them and what is overdrawn, or before the first draw of a source that has no item left: on
    without it the shares would be others. What has waited is drawn first, oldest first, and counts.
    """
    order, moment = _times(mix, items)
    if mix.weights is not None:
        order = order[(moment < _ends(mix, items)) | (items.age[order] > 0)]
    if room is not None:
        before = np.cumsum(items.lengths[order]) - items.lengths[order]
        order = order[before < room * (1 + mix.overdraw)]
    result = np.zeros(len(items), np.bool_)
    result[order] = True
    return result


def shares(mix: Mix, items: Items) -> Floats:
    """float64 (sources,), summing to 1: the weight of each source of `items`. StrategyError: a source with a
    weight has no item.
    """
    assert mix.weights is not None, "asked where there are weights"
    weight: Floats = np.zeros(len(items.sources))
    for name, value in mix.weights:
        if name in items.sources:
            weight[items.sources.index(name)] = value
        elif value > 0:
            close = difflib.get_close_matches(name, items.sources, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise StrategyError(
                f"mix: no item is of source {name!r}, whose weight is {value:g}; sources: "
                f"{', '.join(items.sources)}{hint}"
            )
    return np.asarray(weight / weight.sum())


def amounts(mix: Mix, items: Items) -> Ints:
    """int64 (n,): what an item counts for in the unit of the mixture."""
    return items.lengths if mix.unit == "tokens" else np.ones(len(items), np.int64)


def _times(mix: Mix, items: Items) -> tuple[Ints, Floats]:
    """Items in the order of drawing, and the time of each one's source before it; inf: never drawn."""
    by_age = np.lexsort((np.arange(len(items)), -items.age))
    if mix.weights is None:
        return by_age, np.zeros(len(items))
    weight = shares(mix, items)
    amount = amounts(mix, items)
    moment = np.full(len(items), np.inf)
    for number in np.flatnonzero(weight > 0):
        mine = by_age[items.source[by_age] == number]
        moment[mine] = (np.cumsum(amount[mine]) - amount[mine]) / weight[number]
    order = np.lexsort((np.arange(len(items)), moment, -items.age))
    return order, moment[order]


def _ends(mix: Mix, items: Items) -> float:
    """The time at which the first source has nothing left."""
    weight = shares(mix, items)
    total = np.bincount(items.source, amounts(mix, items), len(weight))
    return float((total[weight > 0] / weight[weight > 0]).min())
