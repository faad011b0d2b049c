"""Weights of sources that follow their losses, within bounds. Pure functions; nothing is asked of a service.

The service calls them as `mixture.adaptive` of a job says (`rules.py`). A trainer that decides for itself
sums losses by source (`losses.py`), gets its next weights here, and has them made with `loader.set_mixture`,
which logs them and puts them into every state.
"""

from dataloader_client.adaptive.bounds import Bounds
from dataloader_client.adaptive.excess_loss import by_excess_loss
from dataloader_client.adaptive.learning_speed import by_learning_speed
from dataloader_client.adaptive.rules import RULES, option_names, updated, within
from dataloader_client.adaptive.told import Rule, Told

__all__ = [
    "RULES",
    "Bounds",
    "Rule",
    "Told",
    "by_excess_loss",
    "by_learning_speed",
    "option_names",
    "updated",
    "within",
]
