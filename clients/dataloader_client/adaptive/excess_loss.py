"""Weights by the loss that is in excess of a reference model's (DoReMi)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dataloader_client.adaptive.bounds import Bounds, FloatArray, check_names, limits, nearest, shares
from dataloader_client.adaptive.told import Told


def by_excess_loss(
    weights: Mapping[str, float],
    losses: Mapping[str, float],
    references: Mapping[str, float],
    *,
    declared: Mapping[str, float],
    bounds: Bounds,
    rate: float = 1.0,
    smoothing: float = 1e-3,
) -> dict[str, float]:
    """The next weights, summing to 1: sources that are learned less well than they could be get more.

    weights      that hold now, as the last `set_mixture` or this function gave them
    losses       mean loss of a target token of each source, of the model that is trained. A source that had
                 no target since is left out; it neither gains nor loses by its loss
    references   the same of a reference model: what each source can be learned to
    declared     weights of the configuration, which `bounds` refer to; they name the sources
    rate         of the exponentiated gradient: the paper's eta
    smoothing    share of the uniform distribution that is mixed in: the paper's c

    DoReMi (Xie et al., arXiv 2305.10429), algorithm 1: with the excess losses x = max(loss - reference, 0),

        w' = w * exp(rate * x) / sum(w * exp(rate * x));   next = (1 - smoothing) * w' + smoothing / sources

    and of what is within `bounds` the nearest to it, by relative entropy, of which the rule itself is a step.
    Unlike there, the excess is of a source's mean and not of each token, and one model learns from data drawn
    by the weights, where the paper draws evenly, weights losses, and trains the model proper afterwards on
    the mean of all weights.

    ValueError names the source: a loss that is no finite number, one that is unknown or has no reference,
    weights that are outside of `bounds`.
    """
    names = sorted(declared)
    check_names(names, weights=weights, losses=losses, references=references)
    goal, now = shares("declared", declared, names), shares("weights", weights, names)
    excess = _excess(losses, references, names, now)
    exponents = rate * excess
    moved = now * np.exp(exponents - exponents.max())
    wanted = (1 - smoothing) * moved / moved.sum() + smoothing / len(names)
    low, high = limits(goal, now, bounds, names)
    return dict(zip(names, nearest(wanted, low, high).tolist(), strict=True))


def excess_loss(
    told: Told,
    _memory: Any,
    /,
    *,
    references: Mapping[str, float],
    rate: float = 1.0,
    smoothing: float = 1e-3,
) -> tuple[dict[str, float], None]:
    """The same as a `Rule`; it remembers nothing. A reference of a source that has no weight now is fine."""
    weights = by_excess_loss(
        told.weights,
        told.losses,
        {name: loss for name, loss in references.items() if name in told.declared},
        declared=told.declared,
        bounds=told.bounds,
        rate=rate,
        smoothing=smoothing,
    )
    return weights, None


def _excess(
    losses: Mapping[str, float], references: Mapping[str, float], names: list[str], now: FloatArray
) -> FloatArray:
    """By source; one without a loss has the mean of the others by weight, which leaves its share."""
    excess = np.full(len(names), np.nan)
    for row, name in enumerate(names):
        if name not in losses:
            continue
        if name not in references:
            raise ValueError(f"there is no reference loss for {name!r}: what can it be learned to?")
        for what, value in (("loss", losses[name]), ("reference loss", references[name])):
            if not math.isfinite(value):
                raise ValueError(
                    f"the {what} of {name!r} is {value}: leave a source out whose loss is not known"
                )
        excess[row] = max(losses[name] - references[name], 0.0)
    known = ~np.isnan(excess)
    weight = float(now[known].sum())
    mean = float((now[known] * excess[known]).sum()) / weight if weight > 0 else 0.0
    return np.where(known, excess, mean)
