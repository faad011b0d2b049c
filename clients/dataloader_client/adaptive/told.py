"""What a rule is told of a job, and the form that all rules have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dataloader_client.adaptive.bounds import Bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A period of training, by source.

    weights    that hold now, summing to 1
    declared   of the configuration, which `bounds` refer to, summing to 1; they name the sources
    losses     mean loss of a target token in the period; a source without targets is left out
    targets    number of those tokens, over all ranks, or their weight; of the same sources
    bounds     the next weights will be in them, whatever a rule wants
    """

    weights: Mapping[str, float]
    declared: Mapping[str, float]
    losses: Mapping[str, float]
    targets: Mapping[str, float]
    bounds: Bounds


Rule = Callable[..., tuple[Mapping[str, float], Any]]
"""rule(told, memory, **options) -> (wanted weights by source, what the rule remembers).

memory    what the rule gave last; None at first. JSON, and small: it is in every state of the job
options   keyword arguments, with the names that the YAML gives them

The same arguments give the same answer: no clock, no randomness, no memory of its own. Weights need not sum
to 1, nor keep to the bounds: the nearest within is taken. An exception leaves the weights as they are; its
text is what people read.
"""
