"""The rule that `mixture.adaptive` names: looked up or imported, and tried before it is relied upon."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dataloader_client.adaptive import RULES, Bounds, Rule, Told, option_names, updated
from dataloader_svc.config.code_import import described, import_function
from dataloader_svc.errors import ConfigError
from dataloader_svc.registry import nearest

if TYPE_CHECKING:  # the models ask here while they are built
    from dataloader_svc.config.schema import Mixture
    from dataloader_svc.config.schema.adaptive import Adaptive

Problem = tuple[tuple[str | int, ...], str]

_PLACE = ("mixture", "adaptive")


def known_rule(adaptive: Adaptive, sources: Iterable[str], base_dir: Path) -> Rule:
    """The rule, tried with a loss of 1 for each of the `sources`. ConfigError: there is none, it doesn't take
    the options, or it fails.
    """
    if ":" in adaptive.rule:
        try:
            rule: Rule = import_function(adaptive.rule, base_dir)
        except (ConfigError, ValueError) as error:
            raise ConfigError(f"mixture.adaptive.rule: {error}") from None
    elif adaptive.rule in RULES:
        rule = RULES[adaptive.rule]
    else:
        known = sorted(RULES)
        raise ConfigError(
            f"mixture.adaptive.rule: unknown rule {adaptive.rule!r}; known: {', '.join(known)}, or "
            f"module:function{nearest(adaptive.rule, known)}"
        )
    if problem := _tried(rule, adaptive, sorted(sources)):
        raise ConfigError(problem)
    return rule


def _tried(rule: Rule, adaptive: Adaptive, names: list[str]) -> str:
    """What is wrong with the rule or its options, with the field in front; "" where nothing is."""
    options = option_names(rule)
    for name in adaptive.options:
        if options is not None and name not in options:
            takes = (
                f"it takes {', '.join(options)}{nearest(name, list(options))}" if options else "it has none"
            )
            return f"mixture.adaptive.options: {adaptive.rule} has no option {name!r}; {takes}"
    even, ones = dict.fromkeys(names, 1 / len(names)), dict.fromkeys(names, 1.0)
    told = Told(weights=even, declared=even, losses=ones, targets=ones, bounds=Bounds())
    try:
        updated(rule, told, None, adaptive.options)
    except Exception as error:
        return f"mixture.adaptive.options: {adaptive.rule} can't be used so: {described(error)}"
    return ""


def adaptive_problems(mixture: Mixture) -> list[Problem]:
    """What is wrong without a look at files: a function of the user's is tried when roles start."""
    adaptive = mixture.adaptive
    if adaptive is None:
        return []
    problems = _outside(mixture, adaptive)
    if ":" not in adaptive.rule:
        weighted = {name for entry in mixture.schedule for name, weight in entry.weights.items() if weight}
        try:
            known_rule(adaptive, weighted, Path())
        except ConfigError as error:
            field, _, what = str(error).removeprefix("mixture.adaptive.").partition(": ")
            problems.append(((*_PLACE, field), what))
    return problems


def _outside(mixture: Mixture, adaptive: Adaptive) -> list[Problem]:
    """Declared weights that the bounds would not let be."""
    found: list[Problem] = []
    for number, entry in enumerate(mixture.schedule):
        for name, share in shares(entry.weights).items():
            if share and not adaptive.min_share <= share <= adaptive.max_share:
                message = (
                    f"its share is {share:.4g}, and mixture.adaptive lets it be {adaptive.min_share:g} to "
                    f"{adaptive.max_share:g}: widen min_share or max_share"
                )
                found.append((("mixture", "schedule", number, name), message))
    return found


def shares(weights: Mapping[str, float]) -> dict[str, float]:
    """Summing to 1."""
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}
