"""What a strategy works on and what it gives: items, a mesh, and a plan of them with its trace."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers.context_parallel import CUTS
from dataloader_balancers.strategy.nodes import AXES, Split, StrategyError

if TYPE_CHECKING:
    from dataloader_balancers.strategy.graph import Strategy

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Mesh:
    """Sizes of the trainer's axes, each at least 1."""

    dp: int = 1
    cp: int = 1
    tp: int = 1
    pp: int = 1

    def __post_init__(self) -> None:
        for axis in AXES["world"]:
            if getattr(self, axis) < 1:
                raise StrategyError(f"mesh: {axis} is {getattr(self, axis)}; at least 1")

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(dp, cp, tp, pp)."""
        return (self.dp, self.cp, self.tp, self.pp)

    def ranks(self, axis: str) -> int:
        """Ranks with work of their own under `distribute(axis)`, numbered dp first, row by row."""
        return int(np.prod([getattr(self, each) for each in AXES[axis]]))


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """Samples, or pieces of them, in order of arrival: int64 (n,) each. StrategyError names what is wrong.

    lengths  tokens, at least 1
    patches  of pictures
    age      steps waited: more is packed before less
    source   numbers of their sources, whose names are `sources`
    weights  further weights by name, for limits and caps

    `Items.of` makes them, with all but the lengths optional.
    """

    lengths: Ints
    patches: Ints
    age: Ints
    source: Ints
    sources: tuple[str, ...]
    weights: Mapping[str, Ints]

    @classmethod
    def of(
        cls,
        lengths: ArrayLike,
        *,
        patches: ArrayLike | None = None,
        age: ArrayLike | None = None,
        sources: ArrayLike | None = None,
        weights: Mapping[str, ArrayLike] | None = None,
    ) -> Items:
        """From arrays, `sources` being the name of each item's."""
        tokens = _whole("lengths", lengths, None, 1)
        count = len(tokens)
        names, numbers = np.array(["all"]), np.zeros(count, np.int64)
        if sources is not None:
            given = np.asarray(sources)
            if given.shape != (count,) or (count and given.dtype.kind not in "US"):
                raise StrategyError(
                    f"items: sources are {given.shape} {given.dtype}; a name for each of {count}"
                )
            names, numbers = np.unique(given.astype(np.str_), return_inverse=True)
        zeros = np.zeros(count, np.int64)
        return cls(
            tokens,
            zeros if patches is None else _whole("patches", patches, count, 0),
            zeros if age is None else _whole("age", age, count, 0),
            numbers.reshape(-1).astype(np.int64),
            tuple(names.tolist()),
            {name: _whole(name, values, count, 0) for name, values in (weights or {}).items()},
        )

    def __len__(self) -> int:
        return len(self.lengths)

    def weight(self, name: str, primitive: str) -> Ints:
        """Of the items, by name; StrategyError where there is none."""
        found = {"tokens": self.lengths, "patches": self.patches, **self.weights}
        if name not in found:
            close = difflib.get_close_matches(name, found, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise StrategyError(
                f"{primitive}: items have no weight {name!r}; known: {', '.join(found)}{hint}"
            )
        return found[name]


@dataclass(frozen=True, slots=True)
class Applied:
    """What one primitive did.

    name      of the primitive; `text` has its arguments too
    inputs    items or sequences that it was given, and what it made of them: `outputs`
    waiting   items that it left for a later step
    unit      what `outputs` are
    figures   by name: loads before and after, floor, gap, ...; trace.py says which
    note      a sentence where numbers do not say it, such as what the floor is bound by
    """

    name: str
    text: str
    inputs: int
    outputs: int
    waiting: int
    unit: str
    figures: Mapping[str, float]
    note: str = ""

    def __str__(self) -> str:
        flow = f"{self.inputs} -> {self.outputs} {self.unit}" + (
            f", {self.waiting} wait" if self.waiting else ""
        )
        figures = ", ".join(f"{name} {value:.4g}" for name, value in self.figures.items())
        return "; ".join(part for part in (f"{self.text}: {flow}", figures, self.note) if part)


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """Where each item goes. Sequences are numbered from 0; those without items are at the end, or where a
    packer left one empty.

    items       what was planned
    sequence    int32 (n,), of each item; -1: it waits. Without `pack` each item is a sequence
    rank        int64 (s,), rank of each sequence, 0 to `num_ranks` - 1 (`Mesh.ranks`)
    microbatch  int64 (s,), its turn on that rank
    llm, encoder  float64 (n,), cost of each item
    readers     bool (dp, cp, tp, pp): ranks that read a batch; the others get that of one along the axes of
                `broadcast_at`
    trace       what each primitive did, in their order
    """

    strategy: Strategy
    mesh: Mesh
    items: Items
    sequence: NDArray[np.int32]
    rank: Ints
    microbatch: Ints
    num_ranks: int
    llm: Floats
    encoder: Floats
    readers: NDArray[np.bool_]
    trace: tuple[Applied, ...]

    @property
    def waiting(self) -> Ints:
        """int64, items that wait for a later step, in order."""
        return np.flatnonzero(self.sequence < 0)

    def of_sequence(self, number: int) -> Ints:
        """int64, items of a sequence, in order."""
        return np.flatnonzero(self.sequence == number)

    def of_rank(self, rank: int) -> list[list[int]]:
        """Sequences of each microbatch of a rank, in the order in which it runs them."""
        mine = np.flatnonzero(self.rank == rank)
        turns = int(self.microbatch[mine].max(initial=-1)) + 1
        return [mine[self.microbatch[mine] == turn].tolist() for turn in range(turns)]

    def cut(self, number: int) -> tuple[NDArray[np.int32], ...]:
        """Of a sequence: which of its tokens, padded to a multiple of 2 cp, each cp rank has. StrategyError
        where the strategy has no `split`.
        """
        split = self.strategy.find(Split)
        if split is None:
            raise StrategyError("split: the strategy has none, so that no sequence is cut")
        bounds = padded_bounds(self.items.lengths[self.of_sequence(number)], self.mesh.cp)
        cut = CUTS[split.method] if isinstance(split.method, str) else split.method
        return cut(bounds, self.mesh.cp)

    def explain(self) -> str:
        """The trace, a line for each primitive."""
        return "\n".join(str(step) for step in self.trace)


def padded_bounds(lengths: Ints, cp: int) -> Ints:
    """int64 (d+1,) or one longer: document borders of a sequence whose end is padded to a multiple of 2 cp by
    a document of its own; an empty one is padding alone.
    """
    bounds = np.append(0, np.cumsum(lengths)).astype(np.int64)
    lacking = 2 * cp if bounds[-1] == 0 else -int(bounds[-1]) % (2 * cp)
    return np.append(bounds, bounds[-1] + lacking) if lacking else bounds


def _whole(name: str, values: ArrayLike, count: int | None, least: int) -> Ints:
    array = np.asarray(values)
    if array.ndim != 1 or (count is not None and len(array) != count):
        wanted = "one dimension" if count is None else f"one for each of {count} items"
        raise StrategyError(f"items: {name} have shape {array.shape}; {wanted}")
    if len(array) and array.dtype.kind not in "iu":
        raise StrategyError(f"items: {name} are {array.dtype}; whole numbers")
    wrong = np.flatnonzero((array < least) | (array > np.iinfo(np.int64).max // max(len(array), 1)))
    if len(wrong):
        first = int(wrong[0])
        raise StrategyError(
            f"items: {name} of item {first} is {array[first]}; at least {least}, and their sum within 64 bits"
        )
    return array.astype(np.int64)
