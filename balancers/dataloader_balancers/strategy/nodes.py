"""The primitives of a strategy, as records: what each of them was told. `graph.py` says what may follow what,
`run.py` does what they say.

Each checks its own arguments when it is made: a StrategyError names the primitive, what was found and what is
allowed. A packer, a balancer or a cut is a name of its registry or a function of the same signature.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from dataloader_balancers.assign import BALANCERS, Balancer
from dataloader_balancers.context_parallel import CUTS, Cut
from dataloader_balancers.cost import CostModel, EncoderCost, FunctionCost, LlmCost
from dataloader_balancers.pack import PACKERS, Packer

Unit = Literal["tokens", "samples"]
Counts = Literal["equal", "any"]

AXES: Mapping[str, tuple[str, ...]] = {"dp": ("dp",), "cp": ("dp", "cp"), "world": ("dp", "cp", "tp", "pp")}
"""Of `distribute`: which coordinates of a rank have items of their own."""

BOTH = "both"
"""Of `balance`: both phases at once (`assign.place`), which is no function of one cost."""


CONCATENATE = "concatenate"
"""Of `pack`: documents cut wherever a sequence is full (`pack.concatenate`). It makes other items of those
that it is given, so a service may do it, and `Strategy.plan`, which says what becomes of each item, does not.
"""


class StrategyError(ValueError):
    """A strategy that can't be: names the primitive, what was found, what is allowed."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Which items are drawn, by the shares of their sources. See `draw.py`.

    weights   (source, weight) of each; None: in order of arrival, or by the mixture of the job
    overdraw  share drawn beyond what the sequences hold, for the packer to fill gaps with
    """

    weights: tuple[tuple[str, float], ...] | None = None
    unit: Unit = "tokens"
    overdraw: float = 0.02

    def __post_init__(self) -> None:
        if self.unit not in ("tokens", "samples"):
            raise StrategyError(f"mix: unit is {self.unit!r}; known: tokens, samples")
        if not (math.isfinite(self.overdraw) and 0 <= self.overdraw <= 1):
            raise StrategyError(f"mix: overdraw is {self.overdraw}; a share from 0 to 1")
        for source, weight in self.weights or ():
            if not (math.isfinite(weight) and weight >= 0):
                raise StrategyError(f"mix: the weight of {source} is {weight}; finite and not negative")
        if self.weights is not None and not any(weight > 0 for _, weight in self.weights):
            raise StrategyError("mix: no source has a weight above zero; leave weights out to draw all")

    def __str__(self) -> str:
        shares = "" if self.weights is None else ", ".join(f"{name}={w:g}" for name, w in self.weights) + "; "
        return f"mix({shares}{self.unit}, overdraw {self.overdraw:g})"


@dataclass(frozen=True, slots=True)
class Cost:
    """What work costs in each phase. Without it an item costs its tokens, and encoders nothing.

    llm, encoder  a model, a function of sizes, a preset's name (llm), the cost of a patch (encoder); None:
                  nothing
    """

    llm: CostModel | str | None = None
    encoder: EncoderCost | FunctionCost | float | None = None

    def __post_init__(self) -> None:
        if self.llm is None and self.encoder is None:
            raise StrategyError("cost: neither llm nor encoder is given; leave it out to count tokens")
        if isinstance(self.llm, str):
            try:
                LlmCost.preset(self.llm)
            except ValueError as error:
                raise StrategyError(f"cost: llm: {error}") from None
        if isinstance(self.encoder, int | float):
            try:
                EncoderCost(float(self.encoder))
            except ValueError as error:
                raise StrategyError(f"cost: encoder: {error}") from None

    @property
    def llm_model(self) -> CostModel | None:
        """The model of documents; None where they cost nothing."""
        return LlmCost.preset(self.llm) if isinstance(self.llm, str) else self.llm

    @property
    def encoder_model(self) -> EncoderCost | FunctionCost | None:
        """The model of patches; None where they cost nothing."""
        given = self.encoder
        return EncoderCost(float(given)) if isinstance(given, int | float) else given

    def __str__(self) -> str:
        phases = (("llm", self.llm), ("encoder", self.encoder))
        return f"cost({', '.join(f'{name}: {_shown(model)}' for name, model in phases if model is not None)})"


@dataclass(frozen=True, slots=True)
class Pack:
    """Items into sequences, whole, under hard caps (`dataloader_balancers.pack`).

    sequences  how many; None: as many as all items need, so that none waits. Behind `distribute` a rank's
    capacity   most tokens of a sequence; None: the job says it
    limits     (name, most in a sequence) of further weights: `patches`, or names of `Items.weights`
    """

    method: str | Packer = "best_fit"
    sequences: int | None = None
    capacity: int | None = None
    limits: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        known("pack", "packer", self.method, (*PACKERS, CONCATENATE))
        for name, value in (("sequences", self.sequences), ("capacity", self.capacity), *self.limits):
            if value is not None and value < 1:
                raise StrategyError(f"pack: {name} is {value}; at least 1")

    def __str__(self) -> str:
        sizes = [f"{self.sequences} sequences"] if self.sequences is not None else []
        sizes += [f"{self.capacity} tokens each"] if self.capacity is not None else []
        sizes += [f"at most {cap} {name} each" for name, cap in self.limits]
        return f"pack({', '.join([method_name(self.method), *sizes])})"


@dataclass(frozen=True, slots=True)
class Distribute:
    """Over which ranks work is spread: `axis` of AXES; with `group_size`, within groups of so many
    neighbours, where items stay that arrive there.
    """

    axis: str = "dp"
    group_size: int | None = None

    def __post_init__(self) -> None:
        known("distribute", "axis", self.axis, AXES)
        if self.group_size is not None and self.group_size < 1:
            raise StrategyError(f"distribute: group_size is {self.group_size}; at least 1")

    def __str__(self) -> str:
        group = "" if self.group_size is None else f", groups of {self.group_size}"
        return f"distribute({self.axis}{group})"


@dataclass(frozen=True, slots=True)
class Balance:
    """Which rank gets what.

    method        a balancer, on the sum of both phases, or "both": both at once (`assign.place`)
    counts        "equal": as many sequences on every rank, the last of them empty where they do not divide
    alternatives  of the method's placement, one of both phases at once, and the order of arrival, the one
                  whose step is predicted to be shortest is taken; False: the method's, come what may
    caps          (name, most of a rank) of `tokens`, `patches` or names of `Items.weights`, with "both" only:
                  what no rank has room for waits
    """

    method: str | Balancer = "lpt"
    counts: Counts = "equal"
    alternatives: bool = True
    caps: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        known("balance", "balancer", self.method, (*BALANCERS, BOTH))
        if self.counts not in ("equal", "any"):
            raise StrategyError(f"balance: counts is {self.counts!r}; known: equal, any")
        if self.caps and self.method != BOTH:
            raise StrategyError(
                f"balance: {method_name(self.method)} knows no caps; balance({BOTH!r}, caps=...) does"
            )
        for name, cap in self.caps:
            if not cap >= 0:
                raise StrategyError(f"balance: the cap on {name} is {cap}; not negative")

    def __str__(self) -> str:
        parts = [method_name(self.method), f"{self.counts} counts"]
        parts += [f"at most {cap:g} {name} a rank" for name, cap in self.caps]
        parts += [] if self.alternatives else ["no alternatives"]
        return f"balance({', '.join(parts)})"


@dataclass(frozen=True, slots=True)
class Split:
    """Each sequence over the ranks of `axis`, which is cp, by a cut of CUTS. Its end is padded to a multiple
    of 2 cp tokens.
    """

    axis: str = "cp"
    method: str | Cut = "per_document"

    def __post_init__(self) -> None:
        if self.axis != "cp":
            raise StrategyError(f"split: axis is {self.axis!r}; sequences are cut over cp alone")
        known("split", "cut", self.method, CUTS)

    def __str__(self) -> str:
        return f"split({self.axis}, {method_name(self.method)})"


@dataclass(frozen=True, slots=True)
class BroadcastAt:
    """All ranks along `axis` have the same batch: it is made once, and one of them reads it for all."""

    axis: str

    def __post_init__(self) -> None:
        known("broadcast_at", "axis", self.axis, ("cp", "tp", "pp"))

    def __str__(self) -> str:
        return f"broadcast_at({self.axis})"


Node = Mix | Cost | Pack | Distribute | Balance | Split | BroadcastAt

NAMES: Mapping[type[Node], str] = {
    Mix: "mix",
    Cost: "cost",
    Pack: "pack",
    Distribute: "distribute",
    Balance: "balance",
    Split: "split",
    BroadcastAt: "broadcast_at",
}


def known(primitive: str, kind: str, given: object, names: Collection[str]) -> None:
    """StrategyError where `given` is neither one of `names` nor, of a method, a function."""
    if kind != "axis" and callable(given):
        return
    if given not in names:
        close = difflib.get_close_matches(str(given), names, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise StrategyError(f"{primitive}: unknown {kind} {given!r}; known: {', '.join(names)}{hint}")


def method_name(method: str | Callable[..., object]) -> str:
    """`lpt`; of a function `module:name`, under which it can be imported."""
    if isinstance(method, str):
        return method
    own = getattr(method, "name", None)  # of a FunctionPacker or FunctionBalancer
    if isinstance(own, str):
        return own
    name = getattr(method, "__qualname__", type(method).__qualname__)
    return f"{getattr(method, '__module__', type(method).__module__)}:{name}"


def _shown(model: object) -> str:
    if isinstance(model, FunctionCost):
        return model.name
    if isinstance(model, LlmCost) and not model.windowed:
        return f"{model.linear:g} L + {model.quadratic:g} L^2"
    return f"{model:g}" if isinstance(model, int | float) else str(model)
