"""Packers and balancers that the YAML names as `module:function`: imported, tried, and known by that name."""

from __future__ import annotations

from pathlib import Path

from dataloader_balancers import BALANCERS, PACKERS
from dataloader_balancers.strategy import FunctionBalancer, FunctionPacker, StrategyError
from dataloader_balancers.strategy.nodes import BOTH
from dataloader_svc.config.code_import import import_function
from dataloader_svc.errors import ConfigError
from dataloader_svc.registry import nearest


def known_packer(name: str, base_dir: Path) -> str:
    """`name`, which is in PACKERS from now on. ConfigError: there is none, or it breaks its contract."""
    if ":" in name:
        try:
            PACKERS[name] = FunctionPacker(import_function(name, base_dir), name)
        except (ConfigError, StrategyError, ValueError) as error:
            raise ConfigError(f"strategy.pack: {error}") from None
    if name not in PACKERS:
        known = sorted(PACKERS)
        raise ConfigError(
            f"strategy.pack: unknown packer {name!r}; known: {', '.join(known)}{nearest(name, known)}"
        )
    return name


def known_balancer(name: str, base_dir: Path) -> str:
    """`name`, which is in BALANCERS from now on, or `both`. ConfigError as of `known_packer`."""
    if ":" in name:
        try:
            BALANCERS[name] = FunctionBalancer(import_function(name, base_dir), name)
        except (ConfigError, StrategyError, ValueError) as error:
            raise ConfigError(f"strategy.balance: {error}") from None
    if name not in BALANCERS and name != BOTH:
        known = sorted({*BALANCERS, BOTH})
        raise ConfigError(
            f"strategy.balance: unknown balancer {name!r}; known: {', '.join(known)}{nearest(name, known)}"
        )
    return name
