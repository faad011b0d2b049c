"""A strategy on items: primitive after primitive, from arrays to a plan. Pure; equal on any machine."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dataloader_balancers.pack import PACKERS, Limit, pack_all
from dataloader_balancers.strategy import trace
from dataloader_balancers.strategy.data import Applied, Floats, Ints, Items, Mesh, Planned
from dataloader_balancers.strategy.draw import draw
from dataloader_balancers.strategy.functions import checked_sequences
from dataloader_balancers.strategy.graph import Strategy
from dataloader_balancers.strategy.nodes import (
    AXES,
    CONCATENATE,
    Balance,
    Cost,
    Distribute,
    Mix,
    Pack,
    Split,
    StrategyError,
    method_name,
)
from dataloader_balancers.strategy.placing import choose, in_order, microbatches


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """What is known so far.

    sequence       (n,) of each item; -1: it waits. Each item is its own until they are packed
    num_sequences  those at the end may be empty
    rank           (s,) once work is spread
    """

    items: Items
    mesh: Mesh
    llm: Floats
    encoder: Floats
    sequence: Ints
    num_sequences: int
    readers: NDArray[np.bool_]
    rank: Ints | None = None
    num_ranks: int = 1
    group_size: int | None = None
    trace: tuple[Applied, ...] = ()

    @property
    def placed(self) -> Ints:
        """Items that do not wait."""
        return np.flatnonzero(self.sequence >= 0)

    def of_sequences(self, values: NDArray[np.float64] | Ints) -> Floats:
        """float64 (s,): sums of values (n,) over the items of each sequence."""
        placed = self.placed
        return np.bincount(self.sequence[placed], values[placed], self.num_sequences).astype(np.float64)


def run(strategy: Strategy, items: Items, mesh: Mesh, per_microbatch: int = 1) -> Planned:
    """See `Strategy.plan`."""
    if per_microbatch < 1:
        raise StrategyError(f"per_microbatch is {per_microbatch}; at least 1")
    _check(strategy, mesh)
    count = len(items)
    state = _State(
        items=items,
        mesh=mesh,
        llm=items.lengths.astype(np.float64),
        encoder=np.zeros(count),
        sequence=np.arange(count),
        num_sequences=count,
        readers=np.ones(mesh.shape, np.bool_),
    )
    for node in strategy.nodes:
        if isinstance(node, Mix):
            state = _mix(state, node, strategy)
        elif isinstance(node, Cost):
            state = _cost(state, node)
        elif isinstance(node, Pack):
            state = _pack(state, node) if state.rank is None else _pack_by_rank(state, node)
        elif isinstance(node, Distribute):
            state = _distribute(state, node)
            if strategy.find(Balance) is None:
                state = _arrival(state, per_microbatch)
        elif isinstance(node, Balance):
            state = _balance(state, node, per_microbatch)
        elif isinstance(node, Split):
            state = replace(state, trace=(*state.trace, trace.split(node, _sequences(state), mesh.cp)))
        else:
            readers = state.readers.copy()
            np.moveaxis(readers, AXES["world"].index(node.axis), 0)[1:] = False
            step = trace.broadcast(node, state.readers, readers)
            state = replace(state, readers=readers, trace=(*state.trace, step))
    state = _filled(state, per_microbatch) if strategy.packs_by_rank else state
    assert state.rank is not None, "checked: work is spread"
    cost = state.of_sequences(state.llm + state.encoder)
    turn = microbatches(cost, state.rank, state.num_ranks, per_microbatch, pipeline=mesh.pp > 1)
    return Planned(
        strategy=strategy,
        mesh=mesh,
        items=items,
        sequence=state.sequence.astype(np.int32),
        rank=state.rank,
        microbatch=turn,
        num_ranks=state.num_ranks,
        llm=state.llm,
        encoder=state.encoder,
        readers=state.readers,
        trace=state.trace,
    )


def _check(strategy: Strategy, mesh: Mesh) -> None:
    """StrategyError where the strategy does not say all that the mesh asks for."""
    spread = strategy.find(Distribute)
    if spread is None:
        raise StrategyError(
            f"plan: nothing says over which ranks work is spread: add distribute; what may come next: "
            f"{', '.join(strategy.may_follow())}"
        )
    if (
        mesh.cp > 1
        and spread.axis == "dp"
        and strategy.find(Split) is None
        and "cp" not in strategy.broadcast
    ):
        raise StrategyError(
            f"plan: cp={mesh.cp} and nothing says what cp ranks have: add split('cp'), broadcast_at('cp'), "
            "or distribute('cp')"
        )


def _mix(state: _State, node: Mix, strategy: Strategy) -> _State:
    pack, spread = strategy.find(Pack), strategy.find(Distribute)
    room = None
    if pack is not None and pack.sequences is not None:
        packing = state.mesh.ranks(spread.axis) if spread is not None and strategy.packs_by_rank else 1
        room = packing * pack.sequences * _capacity(pack)
    drawn = draw(node, state.items, room)
    sequence = np.where(drawn, np.cumsum(drawn) - 1, -1)
    step = trace.mix(node, state.items, drawn)
    return replace(
        state, sequence=sequence, num_sequences=int(np.count_nonzero(drawn)), trace=(*state.trace, step)
    )


def _cost(state: _State, node: Cost) -> _State:
    zeros = np.zeros(len(state.items))
    try:
        llm = zeros if node.llm_model is None else node.llm_model.of_documents(state.items.lengths)
        media = node.encoder_model
        encoder = zeros if media is None else media.of_patches(state.items.patches)
    except ValueError as error:
        raise StrategyError(f"cost: {error}") from error
    step = trace.cost(node, llm[state.placed], encoder[state.placed])
    return replace(state, llm=llm, encoder=encoder, trace=(*state.trace, step))


def _capacity(node: Pack) -> int:
    if node.capacity is None:
        raise StrategyError("pack: how many tokens does a sequence hold? say pack(..., capacity=8192)")
    return node.capacity


def _pack(state: _State, node: Pack) -> _State:
    placed = state.placed
    found, number = _packed(node, state.items, placed, state.llm)
    sequence = np.full(len(state.items), -1, np.int64)
    sequence[placed] = found
    after = replace(state, sequence=sequence, num_sequences=number)
    step = trace.pack(node, len(placed), _sequences(after), _capacity(node))
    return replace(after, trace=(*state.trace, step))


def _pack_by_rank(state: _State, node: Pack) -> _State:
    """Each rank packs what it got, into as many sequences as every other where their number is given."""
    assert state.rank is not None, "it stands behind distribute"
    placed = state.placed
    of_item = np.full(len(state.items), -1, np.int64)
    of_item[placed] = state.rank[state.sequence[placed]]
    sequence, ranks, first = np.full(len(state.items), -1, np.int64), [], 0
    for rank in range(state.num_ranks):
        mine = np.flatnonzero(of_item == rank)
        found, number = _packed(node, state.items, mine, state.llm)
        sequence[mine] = np.where(found >= 0, found + first, -1)
        ranks.append(np.full(number, rank, np.int64))
        first += number
    after = replace(state, sequence=sequence, num_sequences=first, rank=np.concatenate(ranks))
    step = trace.pack(node, len(placed), _sequences(after), _capacity(node))
    return replace(after, trace=(*state.trace, step))


def _packed(node: Pack, items: Items, chosen: Ints, costs: Floats) -> tuple[Ints, int]:
    """The sequence of each of the items `chosen`, and how many sequences there are. Never a breach: what a
    packer returns is checked, for it may be the user's.
    """
    capacity, lengths = _capacity(node), items.lengths[chosen]
    limits = [Limit(name, items.weight(name, "pack")[chosen], cap) for name, cap in node.limits]
    name = method_name(node.method)
    if node.method == CONCATENATE:
        raise StrategyError(
            f"pack: {CONCATENATE} makes other items of those that it cuts; call "
            "dataloader_balancers.concatenate, and plan with its pieces"
        )
    try:
        if node.sequences is not None:
            packer = PACKERS[node.method] if isinstance(node.method, str) else node.method
            result = packer(
                lengths, node.sequences, capacity, items.age[chosen], costs[chosen], limits=limits
            )
        elif isinstance(node.method, str):
            result = pack_all(
                node.method,
                lengths,
                capacity,
                priority=items.age[chosen],
                costs=costs[chosen],
                limits=limits,
            )
        else:
            raise StrategyError(f"pack: {name} needs a number of sequences: pack(..., sequences=64)")
    except StrategyError:
        raise
    except ValueError as error:
        raise StrategyError(f"pack: {name}: {error}") from error
    most = int(np.max(result, initial=-1)) + 1
    number = most if node.sequences is None else node.sequences
    return checked_sequences(name, result, lengths, number, capacity, limits), number


def _distribute(state: _State, node: Distribute) -> _State:
    ranks = state.mesh.ranks(node.axis)
    step = trace.distribute(node, state.num_sequences, ranks)
    return replace(state, num_ranks=ranks, group_size=node.group_size, trace=(*state.trace, step))


def _arrival(state: _State, per_microbatch: int) -> _State:
    state = _padded(state, per_microbatch)
    return replace(state, rank=in_order(state.num_sequences, state.num_ranks))


def _padded(state: _State, per_microbatch: int) -> _State:
    """With empty sequences at the end, so that they divide among ranks and their microbatches."""
    return replace(state, num_sequences=_per_rank(state, per_microbatch) * state.num_ranks)


def _per_rank(state: _State, per_microbatch: int) -> int:
    return -(-state.num_sequences // (state.num_ranks * per_microbatch)) * per_microbatch


def _balance(state: _State, node: Balance, per_microbatch: int) -> _State:
    before = state.num_sequences
    per_rank = _per_rank(state, per_microbatch) if node.counts == "equal" else None
    if per_rank is not None:
        state = _padded(state, per_microbatch)
    llm, encoder = state.of_sequences(state.llm), state.of_sequences(state.encoder)
    weights = {
        name: state.of_sequences(state.items.weight(name, "balance")).astype(np.int64)
        for name, _ in node.caps
    }
    rank, method = choose(node, llm, encoder, state.num_ranks, state.group_size, per_rank, weights)
    step = trace.balance(node, before, llm, encoder, rank, state.num_ranks, method)
    state = replace(state, rank=rank, trace=(*state.trace, step))
    if np.any(rank < 0):
        state = _without_waiting(state)
        state = _filled(state, per_microbatch) if per_rank is not None else state
    return state


def _without_waiting(state: _State) -> _State:
    """Sequences that no rank has room for are none any more, and their items wait."""
    assert state.rank is not None, "just chosen"
    stays = state.rank >= 0
    number = np.append(np.where(stays, np.cumsum(stays) - 1, -1), -1)  # the last for items that waited before
    return replace(
        state,
        sequence=number[state.sequence],
        num_sequences=int(np.count_nonzero(stays)),
        rank=state.rank[stays],
    )


def _filled(state: _State, per_microbatch: int) -> _State:
    """With empty sequences at the end, so that every rank has as many as any other."""
    assert state.rank is not None, "work is spread"
    held = np.bincount(state.rank, minlength=state.num_ranks)
    most = -(-int(held.max(initial=0)) // per_microbatch) * per_microbatch
    rank = np.concatenate([state.rank, np.repeat(np.arange(state.num_ranks), most - held)])
    return replace(state, rank=rank, num_sequences=len(rank))


def _sequences(state: _State) -> trace.Sequences:
    return trace.Sequences(state.items.lengths, state.llm, state.encoder, state.sequence, state.num_sequences)
