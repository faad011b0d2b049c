"""Weights of sources that follow their losses, within bounds. Pure functions; nothing is asked of a service.

A trainer sums losses by source (`losses.py`), gets its next weights here, and has them made with
`loader.set_mixture`, which logs them and puts them into every state.
"""

from dataloader_client.adaptive.bounds import Bounds
from dataloader_client.adaptive.excess_loss import by_excess_loss
from dataloader_client.adaptive.learning_speed import by_learning_speed

__all__ = ["Bounds", "by_excess_loss", "by_learning_speed"]
