"""`strategy` of a configuration while it is read: a function of the user becomes the list of its primitives,
and what is wrong in a list is told with the line of its entry.

A function is asked once, when the file is read. Roles are told what it returned, never its name alone: they
can't come to different strategies, and the plan log's digest covers what was planned by.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dataloader_balancers.strategy import StepError, Strategy, StrategyError, to_steps
from dataloader_svc.config.code_import import described, import_function
from dataloader_svc.config.schema.steps import fields_of
from dataloader_svc.errors import ConfigError

Problem = tuple[tuple[str | int, ...], str]

_BESIDE = (
    *("function", "calibrate", "mode", "wait", "ranks", "remedies", "remedy_gain"),
    *("encoder_placement", "ranks_per_node"),
)
"""What may stand beside a function."""


def read_strategy(data: Mapping[str, Any], base_dir: Path) -> tuple[dict[str, Any], list[Problem]]:
    """The values of a file with `strategy.steps` in the place of a function, and what is wrong. What is wrong
    is left out, so that it is told once.
    """
    given = data.get("strategy")
    if not isinstance(given, dict):
        return dict(data), []
    strategy, place = dict(given), ("strategy", "steps")
    if isinstance(given.get("function"), str):
        place = ("strategy", "function")
        beside = [name for name in given if name not in _BESIDE]
        try:
            if beside:
                raise ConfigError(f"{beside[0]} is given beside it: keep one, or let the function say it")
            strategy["steps"] = called(given["function"], base_dir)
        except (ConfigError, ValueError) as error:
            del strategy["function"]
            return {**data, "strategy": strategy}, [(place, str(error))]
    steps = strategy.get("steps")
    if not isinstance(steps, list):
        return {**data, "strategy": strategy}, []
    try:
        fields_of(steps)
    except StrategyError as error:
        strategy = {name: value for name, value in strategy.items() if name not in ("steps", "function")}
        own = place[-1] == "function"
        where = (*place, error.step) if isinstance(error, StepError) and not own else place
        return {**data, "strategy": strategy}, [
            (where, f"{given['function']}: {error}" if own else str(error))
        ]
    return {**data, "strategy": strategy}, []


def called(name: str, base_dir: Path) -> list[dict[str, dict[str, Any]]]:
    """The primitives of the strategy that the function `module:function` returns. ConfigError: there is none,
    or it raises, or returns something else, or what has no plain form.
    """
    function = import_function(name, base_dir)
    try:
        result = function()
    except Exception as error:
        raise ConfigError(f"{name} failed: {described(error)}") from error
    if not isinstance(result, Strategy):
        raise ConfigError(
            f"{name} returned {type(result).__name__}; expected a dataloader_balancers.strategy.Strategy"
        )
    if result.mode != "strict":
        raise ConfigError(f"{name}: its mode is {result.mode}; the service packs on any mesh alike: strict")
    try:
        return to_steps(result)
    except StrategyError as error:
        raise ConfigError(f"{name}: {error}") from None
