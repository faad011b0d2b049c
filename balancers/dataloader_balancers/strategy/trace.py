"""What each primitive did, in numbers: for `Planned.trace`, and for the service's `explain`, whose plans were
made elsewhere. Pure, and of use for any plan: nothing here decides anything.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dataloader_balancers.bounds import floor, gap, imbalance, loads
from dataloader_balancers.context_parallel import CUTS
from dataloader_balancers.strategy.data import Applied, Floats, Ints, Items, padded_bounds
from dataloader_balancers.strategy.draw import amounts
from dataloader_balancers.strategy.nodes import (
    NAMES,
    Balance,
    BroadcastAt,
    Cost,
    Distribute,
    Mix,
    Node,
    Pack,
    Split,
    method_name,
)
from dataloader_balancers.strategy.placing import ARRIVAL, in_order


@dataclass(frozen=True, slots=True, eq=False)
class Sequences:
    """Items with their costs, (n,) each, and the sequence of each, -1 where it waits."""

    lengths: Ints
    llm: Floats
    encoder: Floats
    sequence: Ints
    count: int

    def sums(self, values: NDArray[np.float64] | Ints) -> Floats:
        """float64 (count,): of `values` (n,) over the items of each sequence."""
        placed = self.sequence >= 0
        return np.bincount(self.sequence[placed], values[placed], self.count).astype(np.float64)


def mix(node: Mix, items: Items, drawn: NDArray[np.bool_]) -> Applied:
    """Figures: tokens drawn; `share NAME` of the drawn, and the largest distance of one from its weight."""
    figures = {"tokens": float(items.lengths[drawn].sum())}
    amount = amounts(node, items)[drawn]
    if node.weights is not None and len(amount):
        held = np.bincount(items.source[drawn], amount, len(items.sources)) / amount.sum()
        found = dict(zip(items.sources, held.tolist(), strict=True))
        weights = dict(node.weights)
        total = sum(weights.values())
        figures |= {f"share {name}": share for name, share in found.items()}
        figures["off by"] = max(
            abs(found.get(name, 0.0) - weights.get(name, 0.0) / total) for name in {**found, **weights}
        )
    count = int(np.count_nonzero(drawn))
    return _applied(node, len(items), count, len(items) - count, "items", figures)


def cost(node: Cost, llm: Floats, encoder: Floats) -> Applied:
    """Figures: the work of each phase, and the share of the dearest item in it."""
    figures = {}
    for name, phase in (("llm", llm), ("encoder", encoder)):
        total = float(phase.sum())
        figures[name] = total
        figures[f"{name} dearest item"] = float(phase.max(initial=0.0)) / total if total else 0.0
    return _applied(node, len(llm), len(llm), 0, "items", figures)


def pack(node: Pack, inputs: int, made: Sequences, capacity: int) -> Applied:
    """Figures: how full sequences are; max / mean of their cost, and the least that it could be."""
    placed = int(np.count_nonzero(made.sequence >= 0))
    held = made.sums(made.lengths)
    each = made.sums(made.llm)
    figures = {"fill": float(held.sum()) / (made.count * capacity) if made.count else 1.0}
    note = ""
    if made.count:
        bound = floor(made.llm[made.sequence >= 0], made.count)
        figures["cost max / mean"] = imbalance(each)
        figures["floor"] = bound.imbalance(float(each.sum()) / made.count)
        note = _bound(bound.binding)
    return _applied(node, inputs, made.count, inputs - placed, "sequences", figures, note)


def distribute(node: Distribute, sequences: int, ranks: int) -> Applied:
    """Figures: ranks, and groups that exchange nothing."""
    figures = {"ranks": float(ranks), "groups": float(ranks // (node.group_size or ranks))}
    return _applied(node, sequences, sequences, 0, "sequences", figures)


def balance(
    node: Balance, inputs: int, llm: Floats, encoder: Floats, rank: Ints, num_ranks: int, chosen: str
) -> Applied:
    """Figures of each phase with work in it: max / mean over ranks in order of arrival and as placed, the
    floor of any placement, and the gap of the dearest rank to it. Of the costs, those behind the first
    `inputs` are of empty sequences. `chosen`: the method that was taken.
    """
    figures: dict[str, float] = {}
    placed = rank >= 0
    notes = [] if chosen == method_name(node.method) else [_instead(chosen)]
    for name, phase in (("llm", llm), ("encoder", encoder)):
        if not phase.any():
            continue
        mine = loads(phase[placed], rank[placed], num_ranks)
        bound = floor(phase[placed], num_ranks)
        figures[f"{name} before"] = imbalance(loads(phase, in_order(len(phase), num_ranks), num_ranks))
        figures[f"{name} after"] = imbalance(mine)
        figures[f"{name} floor"] = bound.imbalance(float(mine.sum()) / num_ranks)
        figures[f"{name} gap"] = gap(mine, bound)
        notes += [f"{name}: {_bound(bound.binding)}"] if bound.binding != "mean" else []
    stay = int(np.count_nonzero(placed[:inputs]))
    return _applied(node, inputs, stay, inputs - stay, "sequences", figures, "; ".join(notes))


def split(node: Split, made: Sequences, cp: int) -> Applied:
    """Figures: ranks of a sequence, tokens of padding, and max / mean of the causal attention of the cp ranks
    of the dearest sequence.
    """
    held = made.sums(made.lengths).astype(np.int64)
    figures = {"ranks": float(cp), "padding": float((-held % (2 * cp)).sum())}
    if made.count:
        dearest = int(np.argmax(made.sums(made.llm)))
        bounds = padded_bounds(made.lengths[made.sequence == dearest], cp)
        cut = CUTS[node.method] if isinstance(node.method, str) else node.method
        figures["attention max / mean"] = imbalance([_pairs(bounds, part) for part in cut(bounds, cp)])
    return _applied(node, made.count, made.count, 0, "sequences", figures)


def broadcast(node: BroadcastAt, before: NDArray[np.bool_], readers: NDArray[np.bool_]) -> Applied:
    """From ranks with a batch of their own to those that are left."""
    return _applied(node, int(np.count_nonzero(before)), int(np.count_nonzero(readers)), 0, "batches", {})


def _pairs(bounds: Ints, part: NDArray[np.int32]) -> float:
    """Query and key pairs of the tokens `part` of a sequence: each sees its document up to itself."""
    index = np.asarray(part, np.int64)
    first = bounds[np.searchsorted(bounds, index, side="right") - 1]
    return float((index - first + 1).sum())


def _instead(chosen: str) -> str:
    if chosen == ARRIVAL:
        return "nothing gains over the order of arrival, which is kept"
    return f"{chosen} is predicted to be faster, and taken"


def _bound(binding: str) -> str:
    reasons = {
        "mean": "bound by the mean",
        "item": "bound by the dearest item, which no placement divides",
        "crowd": "bound by dear items, of which some rank must take several",
        "caps": "bound by caps",
    }
    return reasons[binding]


def _applied(
    node: Node, inputs: int, outputs: int, waiting: int, unit: str, figures: dict[str, float], note: str = ""
) -> Applied:
    return Applied(NAMES[type(node)], str(node), inputs, outputs, waiting, unit, figures, note)
