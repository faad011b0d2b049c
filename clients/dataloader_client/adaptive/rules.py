"""Rules by name, as `mixture.adaptive` of a job names them, and the one place where they are called.

To add one: a function of the form `Rule` in one file, and its name here. A user's own needs no entry: the
YAML names it as `module:function`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any

from dataloader_client.adaptive.bounds import check_names, limits, nearest, shares
from dataloader_client.adaptive.excess_loss import excess_loss
from dataloader_client.adaptive.learning_speed import learning_speed
from dataloader_client.adaptive.told import Rule, Told

RULES: dict[str, Rule] = {"excess_loss": excess_loss, "learning_speed": learning_speed}

MOST_MEMORY = 1 << 20
"""Letters of JSON that a rule may remember: they are in every state of the job."""


def option_names(rule: Rule) -> tuple[str, ...] | None:
    """The options that a rule takes; None: any."""
    parameters = inspect.signature(rule).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    return tuple(each.name for each in parameters if each.kind is each.KEYWORD_ONLY)


def updated(rule: Rule, told: Told, memory: Any, options: Mapping[str, Any]) -> tuple[dict[str, float], Any]:
    """(next weights, summing to 1 and within the bounds; what the rule remembers), whatever the rule does.

    TypeError: it gave something else than a rule gives; ValueError: weights that make no sense, or those that
    hold now are outside of the bounds. What it raises is raised on.
    """
    result = rule(told, memory, **options)
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(f"it gave {type(result).__name__}; a rule gives (weights by source, memory)")
    wanted, remembered = result
    if not isinstance(wanted, Mapping):
        raise TypeError(f"it gave {type(wanted).__name__} for weights; a mapping by source is needed")
    return within(wanted, told), _plain(remembered)


def within(wanted: Mapping[str, float], told: Told) -> dict[str, float]:
    """The weights nearest to `wanted` that the bounds allow next. ValueError: none, or of no source."""
    names = sorted(told.declared)
    check_names(names, weights=wanted)
    target = shares("wanted weights", wanted, names)
    low, high = limits(
        shares("declared", told.declared, names), shares("weights", told.weights, names), told.bounds, names
    )
    return dict(zip(names, nearest(target, low, high).tolist(), strict=True))


def _plain(memory: Any) -> Any:
    """As it will be read again: what JSON can't hold must not be found out at the next restart."""
    try:
        text = json.dumps(memory, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"what it remembers is no JSON: {error}") from None
    if len(text) > MOST_MEMORY:
        raise ValueError(f"it remembers {len(text)} letters of JSON; at most {MOST_MEMORY}")
    return json.loads(text)
