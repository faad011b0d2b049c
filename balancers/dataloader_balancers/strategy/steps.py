"""A strategy as plain values, such as a YAML list holds, and back.

    - mix: {weights: {web: 0.7, captions: 0.3}}
    - cost: {llm: 8b, encoder: {patches: 1.0}}
    - pack: {method: balanced, sequences: 64, capacity: 8192}
    - distribute: dp
    - balance: lpt
    - split: per_document
    - broadcast_at: [tp, pp]

A primitive by itself, or with nothing behind the colon, has its defaults; a single value is the argument that
FIRST names. Functions are MODULE:NAME. A StrategyError has `step`, the number of the entry that it is about.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dataloader_balancers.cost import EncoderCost, FunctionCost, LlmCost
from dataloader_balancers.strategy.functions import FunctionBalancer, FunctionPacker
from dataloader_balancers.strategy.graph import Mode, Strategy
from dataloader_balancers.strategy.nodes import (
    Balance,
    BroadcastAt,
    Cost,
    Distribute,
    Mix,
    Node,
    Pack,
    Split,
    StrategyError,
    method_name,
)

ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "mix": ("weights", "unit", "overdraw"),
    "cost": ("llm", "encoder"),
    "pack": ("method", "sequences", "capacity", "limits"),
    "distribute": ("axis", "group_size"),
    "balance": ("method", "counts", "alternatives", "caps"),
    "split": ("axis", "method"),
    "broadcast_at": ("axes",),
}

FIRST: Mapping[str, str] = {
    "mix": "weights",
    "cost": "llm",
    "pack": "method",
    "distribute": "axis",
    "balance": "method",
    "split": "method",
    "broadcast_at": "axes",
}

Find = Callable[[str], Callable[..., Any]]
"""From MODULE:NAME to the function."""


class StepError(StrategyError):
    """Of the entry number `step`."""

    def __init__(self, step: int, message: str) -> None:
        super().__init__(message)
        self.step = step


def from_steps(steps: Sequence[object], mode: Mode = "strict", find: Find | None = None) -> Strategy:
    """The strategy of a list of entries. `find` imports functions; without it they are refused. StepError."""
    result = Strategy(mode=mode)
    for number, step in enumerate(steps):
        try:
            name, arguments = entry(step)
            result = _added(result, name, arguments, find)
        except (StrategyError, TypeError, ValueError) as error:
            raise StepError(number, str(error)) from error
    return result


def entry(step: object) -> tuple[str, dict[str, Any]]:
    """The primitive of an entry and its arguments by name. StrategyError: it is none."""
    name, value = (step, None) if isinstance(step, str) else _only(step)
    if name not in ARGUMENTS:
        raise StrategyError(
            f"unknown primitive {name!r}; known: {', '.join(ARGUMENTS)}{_near(name, ARGUMENTS)}"
        )
    if value is None:
        return name, {}
    if not isinstance(value, Mapping):
        return name, {FIRST[name]: value}
    unknown = [str(key) for key in value if key not in ARGUMENTS[name]]
    if unknown:
        near = _near(unknown[0], ARGUMENTS[name])
        raise StrategyError(
            f"{name}: unknown argument {unknown[0]!r}; known: {', '.join(ARGUMENTS[name])}{near}"
        )
    return name, dict(value)


def to_steps(strategy: Strategy) -> list[dict[str, dict[str, Any]]]:
    """The list that `from_steps` makes the same strategy of, its defaults written out. StrategyError: a model
    in it has no plain form, or a function no name that it could be imported by.
    """
    return [_plain(node) for node in strategy.nodes]


def _only(step: object) -> tuple[str, object]:
    if not isinstance(step, Mapping) or len(step) != 1:
        found = f"{len(step)} keys" if isinstance(step, Mapping) else type(step).__name__
        raise StrategyError(f"an entry is one primitive, such as `pack: balanced`; found {found}")
    ((name, value),) = step.items()
    return str(name), value


def _added(strategy: Strategy, name: str, arguments: dict[str, Any], find: Find | None) -> Strategy:
    if name == "broadcast_at":
        axes = arguments.get("axes", ())
        axes = [axes] if isinstance(axes, str) else list(axes)
        if not axes:
            raise StrategyError("broadcast_at: which axes? such as [tp, pp]")
        return strategy.broadcast_at(*axes)
    if name == "cost":
        arguments = {phase: _model(phase, value, find) for phase, value in arguments.items()}
    if isinstance(arguments.get("method"), str):
        arguments["method"] = _found(name, arguments["method"], find)
    result: Strategy = getattr(strategy, name)(**arguments)
    return result


def _model(phase: str, value: Any, find: Find | None) -> Any:
    """A cost model from its plain form; what is none of these forms is left to `cost` to refuse."""
    if isinstance(value, str) and ":" in value:
        return FunctionCost(_found("cost", value, find), value)
    if not isinstance(value, Mapping):
        return value
    known = ("model", "linear", "quadratic", "function") if phase == "llm" else ("patches", "function")
    unknown = [str(key) for key in value if key not in known]
    if unknown or not value:
        raise StrategyError(
            f"cost: {phase} is of {', '.join(known)}; found {', '.join(unknown) or 'nothing'}"
        )
    if "function" in value:
        return FunctionCost(_found("cost", value["function"], find), value["function"])
    if "model" in value:
        return value["model"]
    if phase == "encoder":
        return value["patches"]
    return LlmCost(value.get("linear", 0.0), value.get("quadratic", 0.0))


def _found(primitive: str, name: str, find: Find | None) -> Any:
    if ":" not in name:
        return name
    if find is None:
        raise StrategyError(f"{primitive}: {name} is a function, and nothing was given to import it with")
    function = find(name)
    kind = {"pack": FunctionPacker, "balance": FunctionBalancer}.get(primitive)
    return function if kind is None else kind(function, name)


def _plain(node: Node) -> dict[str, dict[str, Any]]:
    if isinstance(node, Mix):
        weights = None if node.weights is None else dict(node.weights)
        return {"mix": _set(weights=weights, unit=node.unit, overdraw=node.overdraw)}
    if isinstance(node, Cost):
        return {"cost": _set(llm=_plain_llm(node.llm), encoder=_plain_encoder(node.encoder))}
    if isinstance(node, Pack):
        limits = dict(node.limits) or None
        return {
            "pack": _set(
                method=_name("pack", node.method),
                sequences=node.sequences,
                capacity=node.capacity,
                limits=limits,
            )
        }
    if isinstance(node, Distribute):
        return {"distribute": _set(axis=node.axis, group_size=node.group_size)}
    if isinstance(node, Balance):
        method = _name("balance", node.method)
        more = {"counts": node.counts, "alternatives": node.alternatives, "caps": dict(node.caps) or None}
        return {"balance": _set(method=method, **more)}
    if isinstance(node, Split):
        return {"split": _set(axis=node.axis, method=_name("split", node.method))}
    assert isinstance(node, BroadcastAt), "the last of the primitives"
    return {"broadcast_at": {"axes": [node.axis]}}


def _set(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _plain_llm(model: object) -> Any:
    if model is None or isinstance(model, str):
        return None if model is None else {"model": model}
    if isinstance(model, LlmCost) and not model.windowed:
        return {"linear": model.linear, "quadratic": model.quadratic}
    if isinstance(model, FunctionCost) and model.factor == 1.0:
        return {"function": _name("cost", model.function)}
    raise StrategyError(f"cost: {model} has no plain form: name a preset, two coefficients, or a function")


def _plain_encoder(model: object) -> Any:
    if model is None or isinstance(model, int | float):
        return None if model is None else {"patches": float(model)}
    if isinstance(model, EncoderCost) and not (model.quadratic or model.windowed):
        return {"patches": model.per_patch}
    if isinstance(model, FunctionCost) and model.factor == 1.0:
        return {"function": _name("cost", model.function)}
    raise StrategyError(f"cost: {model} has no plain form: give the cost of a patch, or a function")


def _name(primitive: str, method: str | Callable[..., object]) -> str:
    name = method_name(method)
    if not isinstance(method, str) and not all(
        part.isidentifier() for part in name.replace(":", ".").split(".")
    ):
        raise StrategyError(
            f"{primitive}: {name} can't be imported by that name: define the function at the top of a module"
        )
    return name


def _near(name: str, names: Mapping[str, object] | Sequence[str]) -> str:
    close = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {close[0]}?" if close else ""
