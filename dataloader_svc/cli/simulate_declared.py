"""The user's own strategy in `simulate`: from a file or by import path, on steps of items.

In Python `module:function`, in YAML the list of primitives that `strategy.steps` of a job takes, as
docs/strategies.md has them. With lengths alone it runs as `Strategy.plan` runs it, relaxed ones too; a job
plans by it as the service would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from dataloader_balancers import segment_sum
from dataloader_balancers.strategy import Items, Mesh, Pack, Strategy, StrategyError, from_steps, to_steps
from dataloader_svc.cli.simulate_strategies import Layout, Placed
from dataloader_svc.cli.simulate_waiting import joined
from dataloader_svc.cli.simulate_work import Work
from dataloader_svc.config.code_import import described, import_function
from dataloader_svc.config.load import LoadedConfig
from dataloader_svc.config.schema import Strategy as Fields
from dataloader_svc.errors import ConfigError


def read_declared(given: str) -> Strategy:
    """A path of YAML, or MODULE:FUNCTION from this folder or as Python finds it. ConfigError says what is not
    right, and of which entry.
    """
    if ":" in given and not Path(given).exists():
        return _called(given, Path())
    path = Path(given)
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"--strategy {given}: can't be read as YAML: {error}") from None
    section = data.get("strategy", data) if isinstance(data, dict) else {"steps": data}
    if isinstance(section, dict) and isinstance(section.get("function"), str):
        return _called(section["function"], path.parent)
    steps = section.get("steps") if isinstance(section, dict) else None
    if not isinstance(steps, list) or not steps:
        raise ConfigError(
            f"--strategy {given}: it has no list of primitives; needed is `steps: [...]` or `function: "
            "MODULE:FUNCTION`, at the top or under `strategy`"
        )
    mode = section.get("mode", "strict")
    if mode not in ("strict", "relaxed"):
        raise ConfigError(f"--strategy {given}: mode is {mode!r}; known: strict, relaxed")

    def find(name: str) -> Callable[..., Any]:
        return import_function(name, path.parent)

    try:
        return from_steps(steps, mode, find)
    except StrategyError as error:
        raise ConfigError(f"--strategy {given}: steps.{getattr(error, 'step', 0)}: {error}") from None


def _called(name: str, folder: Path) -> Strategy:
    function = import_function(name, folder)
    try:
        result = function()
    except Exception as error:
        raise ConfigError(f"--strategy {name} failed: {described(error)}") from error
    if not isinstance(result, Strategy):
        raise ConfigError(
            f"--strategy {name} returned {type(result).__name__}; expected a "
            "dataloader_balancers.strategy.Strategy"
        )
    return result


def with_declared(loaded: LoadedConfig, strategy: Strategy) -> LoadedConfig:
    """The job with the strategy in place of its own. ConfigError: the service can't plan by it."""
    own = loaded.config.strategy
    try:
        fields = {"steps": to_steps(strategy), "calibrate": own.calibrate, "mode": own.mode, "wait": own.wait}
        config = loaded.config.model_copy(update={"strategy": Fields.model_validate(fields)})
    except (StrategyError, ValueError) as error:
        raise ConfigError(f"--strategy: {error}") from None
    return replace(loaded, config=config)


def declared_steps(
    strategy: Strategy, steps: Sequence[Work], layout: Layout, length: int, patch_cost: float
) -> tuple[list[Work], list[Placed]]:
    """The steps and their sequences on ranks, as the strategy has them: (what was placed, its placement).

    What it lets wait is in front of the next step. A `pack` without a capacity has sequences of `length`; a
    `cost` that it lacks is tokens. Whatever it plans by, figures are of the work's own costs, in which a
    patch has `patch_cost`. ConfigError: it can't be run on these.
    """
    nodes = tuple(
        replace(node, capacity=length) if isinstance(node, Pack) and node.capacity is None else node
        for node in strategy.nodes
    )
    strategy = replace(strategy, nodes=nodes)
    mesh = Mesh(dp=layout.dp, cp=layout.cp, pp=layout.pp)
    waits, age = joined(steps[:1]).take(np.empty(0, np.int64)), np.empty(0, np.int64)
    made, placements = [], []
    for step in steps:
        items = joined([waits, step])
        age = np.concatenate([age, np.zeros(len(step.tokens), np.int64)])
        patches = np.rint(items.encoder / patch_cost).astype(np.int64)
        try:
            planned = strategy.plan(Items.of(items.tokens, patches=patches, age=age), mesh)
        except StrategyError as error:
            raise ConfigError(f"--strategy: {error}") from None
        if planned.num_ranks != layout.dp:
            raise ConfigError(
                f"--strategy: it spreads work over {planned.num_ranks} ranks; simulate has dp={layout.dp}: "
                "distribute over dp"
            )
        sequence = planned.sequence
        order = np.argsort(sequence, kind="stable")
        order = order[sequence[order] >= 0]
        offsets = np.searchsorted(sequence[order], np.arange(len(planned.rank) + 1))
        llm, encoder, tokens = (
            segment_sum(column[order], offsets) for column in (items.llm, items.encoder, items.tokens)
        )
        rank = planned.rank.astype(np.int32)
        made.append(Work(llm, encoder, tokens.astype(np.int64)))
        placements.append(Placed(llm, encoder, rank, rank))
        left = planned.waiting
        waits, age = items.take(left), age[left] + 1
    return made, placements
