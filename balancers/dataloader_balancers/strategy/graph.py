"""A strategy: the primitives one after the other, as one value that never changes.

    mix -> cost -> pack -> distribute -> balance -> split -> broadcast_at

after those of MegaScale-Data (OVERLORD, arXiv 2504.09844): which samples, what they cost, which share a
sequence, over which ranks they are spread, which rank gets which, which are cut over ranks, and which ranks
have the same. Every method returns a new Strategy; one that can't stand where it is put is refused, and the
message says what may. `plan` runs it: pure, from arrays to a `Planned` (`run.py`).

*Strict* is the rule that the set of samples of a step and their sequences are the same on any mesh, so that a
job goes on elsewhere without a sample lost or seen twice. It refuses what would make them depend on ranks:
`pack` behind `distribute`, and caps of ranks, for which items might wait. A *relaxed* strategy may have both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeGuard, TypeVar

from numpy.typing import ArrayLike

from dataloader_balancers.assign import Balancer
from dataloader_balancers.context_parallel import Cut
from dataloader_balancers.cost import CostModel, EncoderCost, FunctionCost
from dataloader_balancers.pack import Packer
from dataloader_balancers.strategy.functions import FunctionBalancer, FunctionPacker
from dataloader_balancers.strategy.nodes import (
    AXES,
    NAMES,
    Balance,
    BroadcastAt,
    Cost,
    Counts,
    Distribute,
    Mix,
    Node,
    Pack,
    Split,
    StrategyError,
    Unit,
    method_name,
)

if TYPE_CHECKING:
    from dataloader_balancers.strategy.data import Items, Mesh, Planned

Mode = Literal["strict", "relaxed"]
Kind = TypeVar("Kind", bound=Node)
_SPREADING = frozenset({"distribute", "balance"})


@dataclass(frozen=True, slots=True)
class Strategy:
    """Primitives in the order in which they run. Begin with `Strategy()` and add to it; equal ones are equal.

    nodes  the primitives so far
    mode   strict or relaxed, see the module
    """

    nodes: tuple[Node, ...] = ()
    mode: Mode = "strict"

    def __post_init__(self) -> None:
        if self.mode not in ("strict", "relaxed"):
            raise StrategyError(f"mode is {self.mode!r}; known: strict, relaxed")
        for number, node in enumerate(self.nodes):
            _check(self.nodes[:number], node, self.mode)

    # ---- The primitives

    def mix(
        self, weights: Mapping[str, float] | None = None, unit: Unit = "tokens", *, overdraw: float = 0.02
    ) -> Strategy:
        """Draw items by the shares of their sources, in `unit`, until the sequences of `pack` are full and a
        share of `overdraw` more. Without weights: the job's mixture, and of plain items the order of arrival.
        """
        shares = None if weights is None else tuple((name, float(w)) for name, w in weights.items())
        return self._with(Mix(shares, unit, overdraw))

    def cost(
        self,
        llm: CostModel | Callable[..., object] | str | None = None,
        encoder: EncoderCost | FunctionCost | Callable[..., object] | float | None = None,
    ) -> Strategy:
        """Say what work costs: models of `dataloader_balancers.cost`, functions from an array of sizes to an
        array of costs, the name of a preset, or the cost of a patch. All in one unit.
        """
        return self._with(
            Cost(
                FunctionCost(llm, method_name(llm)) if _is_function(llm) else llm,  # type: ignore[arg-type]
                FunctionCost(encoder, method_name(encoder)) if _is_function(encoder) else encoder,  # type: ignore[arg-type]
            )
        )

    def pack(
        self,
        method: str | Packer = "best_fit",
        *,
        sequences: int | None = None,
        capacity: int | None = None,
        limits: Mapping[str, int] | None = None,
    ) -> Strategy:
        """Put items into sequences of at most `capacity` tokens, and of at most what `limits` say of other
        weights; exactly `sequences` of them, or as many as all items need.
        """
        packer = FunctionPacker.of(method) if _is_own(method, FunctionPacker) else method
        return self._with(Pack(packer, sequences, capacity, tuple((limits or {}).items())))

    def distribute(self, axis: str = "dp", group_size: int | None = None) -> Strategy:
        """Spread work over the ranks of `axis`: `dp`; `cp`, each of dp x cp ranks with work of its own; or
        `world`, all ranks. With `group_size` it stays in the group of ranks where it arrives.
        """
        return self._with(Distribute(axis, group_size))

    def balance(
        self,
        method: str | Balancer = "lpt",
        *,
        counts: Counts = "equal",
        alternatives: bool = True,
        caps: Mapping[str, float] | None = None,
    ) -> Strategy:
        """Choose ranks so that the dearest is as cheap as can be. Without it they keep where they arrive."""
        balancer = FunctionBalancer.of(method) if _is_own(method, FunctionBalancer) else method
        return self._with(Balance(balancer, counts, alternatives, tuple((caps or {}).items())))

    def split(self, axis: str = "cp", method: str | Cut = "per_document") -> Strategy:
        """Cut each sequence over the ranks of `axis`, which is cp."""
        return self._with(Split(axis, method))

    def broadcast_at(self, *axes: str) -> Strategy:
        """Say that ranks along `axes` have the same batch, and that one of them reads it."""
        result = self
        for axis in axes:
            result = result._with(BroadcastAt(axis))
        return result

    def plan(self, items: Items, mesh: Mesh, *, per_microbatch: int = 1) -> Planned:
        """Run it on `items`. Pure: equal arguments give an equal plan. `per_microbatch` sequences are one
        microbatch. StrategyError says what is missing or impossible.
        """
        from dataloader_balancers.strategy.run import run

        return run(self, items, mesh, per_microbatch)

    # ---- What it holds

    def find(self, kind: type[Kind]) -> Kind | None:
        """The first primitive of a kind."""
        return next((node for node in self.nodes if isinstance(node, kind)), None)

    @property
    def broadcast(self) -> tuple[str, ...]:
        """Axes whose ranks have the same batch."""
        return tuple(node.axis for node in self.nodes if isinstance(node, BroadcastAt))

    @property
    def packs_by_rank(self) -> bool:
        """Whether `pack` stands behind `distribute`: each rank packs what it got (relaxed only)."""
        names = [NAMES[type(node)] for node in self.nodes]
        return "pack" in names and "distribute" in names and names.index("distribute") < names.index("pack")

    def may_follow(self) -> tuple[str, ...]:
        """Names of the primitives that may come next."""
        return tuple(_may_follow(self.nodes, self.mode))

    def __str__(self) -> str:
        return " -> ".join(str(node) for node in self.nodes) or "nothing"

    def _with(self, node: Node) -> Strategy:
        return replace(self, nodes=(*self.nodes, node))


def _may_follow(before: tuple[Node, ...], mode: Mode) -> Iterator[str]:
    names = [NAMES[type(node)] for node in before]
    held = set(names)
    last = "broadcast_at" in held or "split" in held
    spread = next((node for node in before if isinstance(node, Distribute)), None)
    if not names:
        yield "mix"
    if not held & {"cost", "balance"} and not last:
        yield "cost"
    if "pack" not in held and not last and (spread is None or mode == "relaxed"):
        yield "pack"
    if "distribute" not in held:
        yield "distribute"
    if spread is not None and not last and "balance" not in held and "pack" not in _behind(names):
        yield "balance"
    if spread is not None and spread.axis == "dp" and not last:
        yield "split"
    if spread is not None and _broadcastable(before, spread):
        yield "broadcast_at"


def _behind(names: list[str]) -> list[str]:
    """What stands behind `distribute`."""
    return names[names.index("distribute") + 1 :] if "distribute" in names else []


def _broadcastable(before: tuple[Node, ...], spread: Distribute) -> list[str]:
    """Axes whose ranks may still be said to have the same batch."""
    taken = {*AXES[spread.axis]} | {node.axis for node in before if isinstance(node, Split | BroadcastAt)}
    return [axis for axis in ("cp", "tp", "pp") if axis not in taken]


def _check(before: tuple[Node, ...], node: Node, mode: Mode) -> None:
    """StrategyError where `node` can't stand behind `before`."""
    name = NAMES[type(node)]
    allowed = list(_may_follow(before, mode))
    spread = next((each for each in before if isinstance(each, Distribute)), None)
    if name not in allowed:
        raise StrategyError(
            f"{name} can't come {_place(before)}{_why(name, spread, mode)}; what may: "
            f"{', '.join(allowed) or 'nothing, it is complete'}"
        )
    if (
        isinstance(node, BroadcastAt)
        and spread is not None
        and node.axis not in _broadcastable(before, spread)
    ):
        raise StrategyError(
            f"broadcast_at: ranks along {node.axis} do not have the same batch, or it was said already; what "
            f"may: {', '.join(_broadcastable(before, spread))}"
        )
    if isinstance(node, Balance) and node.caps and mode == "strict":
        raise StrategyError(
            "balance: caps of ranks make items wait, and which would depend on the mesh: in strict mode cap "
            'sequences (pack(..., limits=...)), or use Strategy(mode="relaxed")'
        )


def _place(before: tuple[Node, ...]) -> str:
    return f"behind {before[-1]}" if before else "first"


def _why(name: str, spread: Distribute | None, mode: Mode) -> str:
    if name == "pack" and spread is not None and mode == "strict":
        return ': sequences would depend on the mesh, which strict mode (mode="relaxed") forbids'
    if name == "split" and spread is not None and spread.axis != "dp":
        return f": distribute({spread.axis}) gives cp ranks work of their own"
    if name in _SPREADING | {"split", "broadcast_at"} and spread is None and name != "distribute":
        return ": distribute says over which ranks"
    return ""


def _is_own(method: object, kind: type) -> TypeGuard[Callable[..., ArrayLike]]:
    return callable(method) and not isinstance(method, kind)


def _is_function(model: object) -> bool:
    return callable(model) and not hasattr(model, "scaled")
