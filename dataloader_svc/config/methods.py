"""Packers and balancers that the YAML names as `module:function`: imported, tried, and known by that name.

What they get wrong later stops the job as a mistake of the configuration: nothing is placed by a broken plan,
and nobody is told that the service is at fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers import BALANCERS, PACKERS, Limit
from dataloader_balancers.strategy import FunctionBalancer, FunctionPacker, StrategyError
from dataloader_balancers.strategy.nodes import BOTH, CONCATENATE
from dataloader_svc.config.code_import import import_function
from dataloader_svc.errors import ConfigError
from dataloader_svc.registry import nearest

NONE = "none"
"""Of `strategy.pack`: no packing, each document is a sequence of its own."""


@dataclass(frozen=True, slots=True)
class _Packer(FunctionPacker):
    """ConfigError in the place of StrategyError."""

    def __call__(
        self,
        lengths: ArrayLike,
        num_sequences: int,
        capacity: int,
        priority: ArrayLike | None = None,
        costs: ArrayLike | None = None,
        *,
        limits: Sequence[Limit] = (),
    ) -> NDArray[np.int32]:
        try:
            return FunctionPacker.__call__(
                self, lengths, num_sequences, capacity, priority, costs, limits=limits
            )
        except StrategyError as error:
            raise ConfigError(f"strategy.{error}") from error


@dataclass(frozen=True, slots=True)
class _Balancer(FunctionBalancer):
    """ConfigError in the place of StrategyError."""

    def __call__(self, costs: ArrayLike, num_ranks: int, per_rank: int | None = None) -> NDArray[np.int32]:
        try:
            return FunctionBalancer.__call__(self, costs, num_ranks, per_rank)
        except StrategyError as error:
            raise ConfigError(f"strategy.{error}") from error


def _imported(field: str, name: str, base_dir: Path) -> Callable[..., ArrayLike]:
    try:
        return import_function(name, base_dir)
    except ConfigError as error:
        raise ConfigError(f"strategy.{field}: {error}") from None


def known_packer(name: str, base_dir: Path) -> str:
    """`name`, which is in PACKERS from now on, `concatenate` or `none`. ConfigError: it is none, or
    breaks its contract.
    """
    if ":" in name:
        PACKERS[name] = _Packer(_imported("pack", name, base_dir), name)
    if name not in PACKERS and name not in (CONCATENATE, NONE):
        known = sorted({*PACKERS, CONCATENATE, NONE})
        raise ConfigError(
            f"strategy.pack: unknown packer {name!r}; known: {', '.join(known)}{nearest(name, known)}"
        )
    return name


def known_balancer(name: str, base_dir: Path) -> str:
    """`name`, which is in BALANCERS from now on, or `both`. ConfigError as of `known_packer`."""
    if ":" in name:
        BALANCERS[name] = _Balancer(_imported("balance", name, base_dir), name)
    if name not in BALANCERS and name != BOTH:
        known = sorted({*BALANCERS, BOTH})
        raise ConfigError(
            f"strategy.balance: unknown balancer {name!r}; known: {', '.join(known)}{nearest(name, known)}"
        )
    return name
