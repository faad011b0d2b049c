"""`strategy.steps`, a strategy as a list of primitives -> the fields of `strategy` that say the same.

The grammar is that of `dataloader_balancers.strategy`, in strict mode. What a job has said elsewhere, or what
the service does not do, is refused here: sizes of sequences, weights of sources, caps of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dataloader_balancers.strategy import StepError, StrategyError, from_steps
from dataloader_balancers.strategy.steps import entry
from dataloader_svc.config.methods import NONE

_ELSEWHERE: Mapping[str, Mapping[str, str]] = {
    "mix": {
        "weights": "the job's `mixture` has the weights",
        "unit": "the job's `mixture.unit` says it",
    },
    "pack": {
        "sequences": "the job's `global_batch` says it",
        "capacity": "the job's `sequence_length` says it",
    },
    "balance": {
        "alternatives": "the service takes the order of arrival wherever nothing gains over it",
        "caps": "caps of ranks make sequences wait, which the service does not do once they are packed",
    },
}
LIMITED = ("patches", "frames", "media")
"""What of a sequence `limits` caps beside its tokens."""

_DEFAULTS = {"unit": "tokens", "alternatives": True}


def fields_of(steps: Sequence[object]) -> dict[str, Any]:
    """Fields of `strategy`, as they would stand in the YAML. StepError, with the number of the entry, or
    StrategyError where there is none that a job needs.

    Without `balance`, sequences stay where they arrive; without `mix`, `cost` or `split` the fields of these
    have their defaults, and ranks along tp and pp have the same batch whether `broadcast_at` says so or not.
    """
    fields: dict[str, Any] = {"balance": "arrival"}
    plain: list[object] = []
    for number, step in enumerate(steps):
        try:
            name, arguments = entry(step)
            fields |= _fields(name, arguments)
        except StrategyError as error:
            raise StepError(number, str(error)) from None
        method = arguments.get("method")
        if name == "pack" and method == NONE:
            continue  # what no `pack` means there
        if name == "cost" or (isinstance(method, str) and ":" in method):
            plain.append({"cost": "7b"} if name == "cost" else name)  # imported, or read, when roles start
        else:
            plain.append({name: arguments})
    from_steps(plain)
    named = {entry(step)[0] for step in steps}
    for needed, why in (("pack", "sequences are made by"), ("distribute", "work is spread by")):
        if needed not in named:
            raise StrategyError(f"{why} `{needed}`, which the list lacks")
    return fields


def _fields(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    for argument, why in _ELSEWHERE.get(name, {}).items():
        given = arguments.get(argument)
        if given is not None and given != _DEFAULTS.get(argument):
            raise StrategyError(f"{name}: {argument} is {given!r}; {why}")
    if name == "mix":
        return {"overdraw": arguments["overdraw"]} if "overdraw" in arguments else {}
    if name == "cost":
        return {"cost": {phase: _cost(phase, value) for phase, value in arguments.items()}}
    if name == "pack":
        limits = arguments.get("limits") or {}
        if unknown := sorted(set(limits) - set(LIMITED)):
            raise StrategyError(f"pack: limits has {unknown[0]!r}; the service counts {', '.join(LIMITED)}")
        return {"pack": arguments.get("method", "best_fit"), **({"limits": limits} if limits else {})}
    if name == "balance":
        counts = {"counts": arguments["counts"]} if "counts" in arguments else {}
        return {"balance": arguments.get("method", "lpt"), **counts}
    if name == "distribute":
        axis = arguments.get("axis", "dp")
        if axis in ("cp", "world"):
            raise StrategyError(f"distribute: axis is {axis!r}; the service spreads sequences over dp alone")
        return {"group_size": arguments.get("group_size")}
    if name == "split":
        return {"context_parallel": arguments.get("method", "per_document")}
    axes = arguments.get("axes", ())
    if "cp" in ([axes] if isinstance(axes, str) else axes):
        raise StrategyError("broadcast_at: cp ranks have slices of a sequence in the service; known: tp, pp")
    return {}


def _cost(phase: str, value: object) -> object:
    """The long form of `llm: 8b` and `encoder: 1.0`."""
    if isinstance(value, str):
        return {"function" if ":" in value else "model": value}
    return {"patches": value} if phase == "encoder" and isinstance(value, int | float) else value
