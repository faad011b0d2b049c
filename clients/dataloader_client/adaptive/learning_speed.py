"""Weights by how fast each source is still learned (ADO): scaling laws fitted while the model trains."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dataloader_client.adaptive.bounds import Bounds, FloatArray, check_names, limits, nearest, shares
from dataloader_client.adaptive.told import Told

_FEWEST = 3  # a law has three unknowns
_KEPT, _KEPT_BY_SERVICE = 64, 16  # losses of a source, so that a state stays small; the service's has many
_EXPONENTS = np.linspace(0.05, 1.0, 39)
_VERSION = 1


def by_learning_speed(
    weights: Mapping[str, float],
    losses: Mapping[str, float],
    targets: Mapping[str, float],
    state: Mapping[str, Any] | None,
    *,
    declared: Mapping[str, float],
    bounds: Bounds,
    credit: float = 0.5,
    smoothing: float = 0.1,
    kept: int = _KEPT,
) -> tuple[dict[str, float], dict[str, Any]]:
    """The next weights, summing to 1, and the next state: sources that are still learned fast get more.

    weights     that hold now, as the last `set_mixture` or this function gave them
    losses      mean loss of a target token of each source since the last call; a source without is left out
    targets     number of those tokens, summed over all ranks (or their weight): needed where there is a loss
    state       what this function gave last, None at first. It is JSON, at most `kept` pairs of numbers a
                source: keep it in the trainer's checkpoint, beside `weights`. It is not changed
    declared    weights of the configuration, which `bounds` refer to; they name the sources
    credit      power of a source's mean past share
    smoothing   share of the new in the mean of past shares, and in the weights
    kept        losses of each source that are kept, 4 or more: at so many every second one is dropped

    After ADO (Jiang et al., arXiv 2410.11820), whose law and speed these are; how they become weights follows
    its idea (prior, credit, smoothing over time) and not its algorithm to the letter. The loss of a source
    after n of its own targets is fitted by

        L(n) = floor + scale * n ** -exponent;   speed = -dL/dn = exponent * (L(n) - floor) / n

    with floor, scale >= 0, and with h the mean past share of the source, wanted = declared * h ** credit *
    speed, made to sum to 1. The weights go `smoothing` of the way to it, and what is nearest to that within
    `bounds` by relative entropy is returned. Until every source has three losses, the weights stay as they
    are: a law has three unknowns. So they do where no source is learned any more.

    The fit is of least squares, in floor and scale exactly, for exponents from 0.05 to 1.
    Early losses are fitted too: call it after the warm-up of the learning rate, whose losses follow no law.

    ValueError names the source: a number that is not finite, a loss without targets, one that is unknown,
    weights outside of `bounds`, a state that is none.
    """
    names = sorted(declared)
    check_names(names, weights=weights, losses=losses, targets=targets)
    for what, value in (("credit", credit), ("smoothing", smoothing)):
        if not 0 <= value <= 1:
            raise ValueError(f"{what} is {value}: 0 to 1")
    if kept <= _FEWEST:
        raise ValueError(f"kept is {kept}: {_FEWEST + 1} losses of a source or more")
    goal, now = shares("declared", declared, names), shares("weights", weights, names)
    low, high = limits(goal, now, bounds, names)
    seen, past = _opened(state, names, now)
    seen = {name: _with(seen[name], name, losses, targets, kept) for name in names}
    past = smoothing * now + (1 - smoothing) * past
    wanted = goal * past**credit * _speeds(seen, names)
    total = float(wanted.sum())
    mixed = smoothing * wanted / total + (1 - smoothing) * now if total > 0 else now
    after = nearest(mixed, low, high).tolist()
    shares_past = dict(zip(names, past.tolist(), strict=True))
    return dict(zip(names, after, strict=True)), {"version": _VERSION, "past": shares_past, "seen": seen}


def learning_speed(
    told: Told,
    memory: Any,
    /,
    *,
    credit: float = 0.5,
    smoothing: float = 0.1,
    kept: int = _KEPT_BY_SERVICE,
) -> tuple[dict[str, float], dict[str, Any]]:
    """The same as a `Rule`. Numbers are cut to six digits of a loss and whole targets: less of a state.

    Where the schedule brings in a source, it has no losses yet, and the weights stay until it has; of one
    that has left it, what was seen is forgotten.
    """
    return by_learning_speed(
        told.weights,
        {name: float(f"{loss:.6g}") for name, loss in told.losses.items()},
        {name: float(max(round(count), 1)) for name, count in told.targets.items()},
        None if memory is None else _of_sources(memory, told),
        declared=told.declared,
        bounds=told.bounds,
        credit=credit,
        smoothing=smoothing,
        kept=kept,
    )


def _of_sources(memory: Mapping[str, Any], told: Told) -> dict[str, Any]:
    """The state with the sources that have a weight now."""
    past, seen = memory["past"], memory["seen"]
    return {
        "version": memory.get("version"),
        "past": {name: past.get(name, told.weights[name]) for name in told.declared},
        "seen": {name: seen.get(name, []) for name in told.declared},
    }


def _opened(
    state: Mapping[str, Any] | None, names: list[str], now: FloatArray
) -> tuple[dict[str, list[list[float]]], FloatArray]:
    if state is None:
        return {name: [] for name in names}, now
    if state.get("version") != _VERSION:
        raise ValueError(
            f"the state has version {state.get('version')!r}, this reads {_VERSION}: None starts anew"
        )
    for field in ("past", "seen"):
        if sorted(state[field]) != names:
            raise ValueError(
                f"{field} of the state is of {', '.join(sorted(state[field]))}, and the sources are "
                f"{', '.join(names)}: start anew with None"
            )
    return dict(state["seen"]), shares("past of the state", state["past"], names)


def _with(
    seen: list[list[float]], name: str, losses: Mapping[str, float], targets: Mapping[str, float], most: int
) -> list[list[float]]:
    """Pairs of (targets until then, loss), with what is told now."""
    if name not in losses:
        return seen
    loss, count = losses[name], targets.get(name, 0.0)
    if not math.isfinite(loss):
        raise ValueError(f"the loss of {name!r} is {loss}: leave a source out whose loss is not known")
    total = (seen[-1][0] if seen else 0.0) + count
    if not (count > 0 and math.isfinite(total)):
        raise ValueError(
            f"the targets of {name!r} are {count}: a loss is a mean over more than 0, and finite"
        )
    kept = seen[1::2] if len(seen) >= most else seen  # the last stays: it has the count
    return [*kept, [float(total), float(loss)]]


def _speeds(seen: Mapping[str, list[list[float]]], names: list[str]) -> FloatArray:
    """Of each source, relative to the fastest; zeros until all have a law."""
    if min(len(seen[name]) for name in names) < _FEWEST:
        return np.zeros(len(names))
    largest = max(abs(loss) for name in names for _, loss in seen[name]) or 1.0  # so that no square overflows
    speeds = np.array([_speed(np.array(seen[name], np.float64), largest) for name in names])
    fastest = float(speeds.max())
    return speeds / fastest if fastest > 0 else speeds


def _speed(points: FloatArray, largest: float) -> float:
    """How much of `largest` a target lowers the loss by, now. `points`: (losses, 2) of targets and loss."""
    now = float(points[-1, 0])
    powers = (points[:, 0] / now) ** -_EXPONENTS[:, None]  # (exponents, losses), 1 at the end
    values = points[:, 1] / largest
    mean = powers.mean(axis=1, keepdims=True)
    spread = ((powers - mean) ** 2).sum(axis=1)
    flat = spread <= 0
    scale = ((powers - mean) * (values - values.mean())).sum(axis=1) / np.where(flat, 1.0, spread)
    scale = np.maximum(scale, 0.0)
    floor = values.mean() - scale * mean[:, 0]
    through_zero = (powers * values).sum(axis=1) / (powers**2).sum(axis=1)
    scale = np.where(floor < 0, np.maximum(through_zero, 0.0), scale)
    floor = np.maximum(floor, 0.0)
    errors = ((floor[:, None] + scale[:, None] * powers - values) ** 2).sum(axis=1)
    best = int(errors.argmin())
    return float(_EXPONENTS[best] * scale[best] / now)
