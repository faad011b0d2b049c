"""Random chains of primitives on random items: nothing is lost or doubled, and no cap is breached.

The checks are loops over plain numbers and share no code with the library.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dataloader_balancers import BALANCERS, CUTS, PACKERS
from dataloader_balancers.strategy import Items, Mesh, Strategy, StrategyError, from_steps, to_steps

CAPACITY = 32
SOURCES = ("captions", "clips", "web")
PRIMITIVES = ("mix", "cost", "pack", "distribute", "balance", "split", "broadcast_at")
SIZES = {"dp": ("dp",), "cp": ("dp", "cp"), "world": ("dp", "cp", "tp", "pp")}

whole = st.integers(0, 9)


def draw_items(draw, least=0):
    count = draw(st.integers(least, 24))

    def numbers(strategy):
        return draw(st.lists(strategy, min_size=count, max_size=count))

    return Items.of(
        np.array(numbers(st.integers(1, CAPACITY)), np.int64),
        patches=np.array(numbers(st.integers(0, 40)), np.int64),
        age=np.array(numbers(st.sampled_from([0, 0, 0, 1, 3])), np.int64),
        sources=np.array(numbers(st.sampled_from(SOURCES)), np.str_),
        weights={"bytes": np.array(numbers(whole), np.int64)},
    )


def draw_mesh(draw):
    return Mesh(*(draw(st.sampled_from(sizes)) for sizes in ((1, 2, 3, 4, 6), (1, 2, 3), (1, 2), (1, 2))))


def divisors(number):
    return [size for size in range(1, number + 1) if number % size == 0]


def extended(draw, strategy, name, items, mesh):
    """The strategy with one more primitive, its arguments drawn."""
    if name == "mix":
        present = sorted(set(items.sources)) if len(items) else []
        weights = {each: draw(st.sampled_from([0.5, 1.0, 3.0])) for each in present} or None
        weights = draw(st.sampled_from([None, weights]))
        return strategy.mix(
            weights,
            draw(st.sampled_from(["tokens", "samples"])),
            overdraw=draw(st.sampled_from([0.0, 0.02, 0.5])),
        )
    if name == "cost":
        return strategy.cost(
            draw(st.sampled_from(["7b", "qwen3-30b-a3b"])), draw(st.sampled_from([None, 0.0, 1.0]))
        )
    if name == "pack":
        sequences = draw(st.one_of(st.none(), st.integers(1, 9)))
        limits = draw(st.sampled_from([{}, {"patches": 40}, {"patches": 64, "bytes": 9}]))
        return strategy.pack(
            draw(st.sampled_from(sorted(PACKERS))), sequences=sequences, capacity=CAPACITY, limits=limits
        )
    if name == "distribute":
        axis = draw(st.sampled_from(["dp", "dp", "cp", "world"]))
        ranks = int(np.prod([getattr(mesh, each) for each in SIZES[axis]]))
        return strategy.distribute(axis, draw(st.sampled_from([None, *divisors(ranks)])))
    if name == "balance":
        counts = draw(st.sampled_from(["equal", "any"]))
        if strategy.mode == "relaxed" and draw(st.booleans()):
            return strategy.balance("both", counts=counts, caps={"tokens": 2 * CAPACITY, "patches": 150})
        return strategy.balance(
            draw(st.sampled_from([*BALANCERS, "both"])), counts=counts, alternatives=draw(st.booleans())
        )
    if name == "split":
        return strategy.split("cp", draw(st.sampled_from(sorted(CUTS))))
    taken = SIZES[strategy.nodes[[str(n)[:10] for n in strategy.nodes].index("distribute")].axis]
    cut = any(str(node).startswith("split") for node in strategy.nodes)
    free = [a for a in ("cp", "tp", "pp") if a not in taken and not (a == "cp" and cut)]
    return strategy.broadcast_at(draw(st.sampled_from([a for a in free if a not in strategy.broadcast])))


@st.composite
def chains(draw, mode=None):
    """(strategy, items, mesh): every chain that the grammar allows, up to its end or not."""
    items, mesh = draw_items(draw), draw_mesh(draw)
    strategy = Strategy(mode=mode or draw(st.sampled_from(["strict", "relaxed"])))
    for _ in range(draw(st.integers(1, 9))):
        follow = strategy.may_follow()
        if not follow:
            break
        strategy = extended(draw, strategy, draw(st.sampled_from(follow)), items, mesh)
    return strategy, items, mesh


def arguments_of(strategy, name):
    """Of the first such primitive in the plain form, or None."""
    return next((step[name] for step in to_steps(strategy) if name in step), None)


def planned(strategy, items, mesh, per_microbatch=1):
    """The plan; None where the strategy lacks what a plan needs."""
    spread = arguments_of(strategy, "distribute")
    lacks = spread is None or (
        mesh.cp > 1
        and spread["axis"] == "dp"
        and arguments_of(strategy, "split") is None
        and "cp" not in strategy.broadcast
    )
    if lacks:
        with pytest.raises(StrategyError, match="^plan: "):
            strategy.plan(items, mesh, per_microbatch=per_microbatch)
        return None
    if (arguments_of(strategy, "balance") or {}).get("caps"):
        try:
            return strategy.plan(items, mesh, per_microbatch=per_microbatch)
        except StrategyError as error:  # a sequence is above the cap of any rank
            if not re.match(r"balance: .*patches", str(error)):
                raise
            return None
    return strategy.plan(items, mesh, per_microbatch=per_microbatch)


@settings(deadline=None, max_examples=250)
@given(chains(), st.integers(1, 3))
def test_no_chain_loses_or_doubles_an_item_or_breaches_a_cap(chain, per_microbatch):
    strategy, items, mesh = chain
    plan = planned(strategy, items, mesh, per_microbatch)
    assume(plan is not None)
    spread, pack = arguments_of(strategy, "distribute"), arguments_of(strategy, "pack")
    balance = arguments_of(strategy, "balance")
    ranks = 1
    for axis in SIZES[spread["axis"]]:
        ranks *= getattr(mesh, axis)
    # Every sequence is once on one rank; every item once in one sequence, or it waits.
    run = [number for rank in range(ranks) for turn in plan.of_rank(rank) for number in turn]
    assert sorted(run) == list(range(len(plan.rank)))
    held = [item for number in run for item in plan.of_sequence(number).tolist()]
    assert sorted(held + plan.waiting.tolist()) == list(range(len(items)))
    assert all(len(turn) <= per_microbatch for rank in range(ranks) for turn in plan.of_rank(rank))
    for number in run:
        mine = plan.of_sequence(number).tolist()
        if pack is None:
            assert len(mine) <= 1
            continue
        assert sum(int(items.lengths[i]) for i in mine) <= CAPACITY
        for name, cap in (pack.get("limits") or {}).items():
            weights = items.patches if name == "patches" else items.weights[name]
            assert sum(int(weights[i]) for i in mine) <= cap
    for rank in range(ranks):
        mine = [
            i for turn in plan.of_rank(rank) for number in turn for i in plan.of_sequence(number).tolist()
        ]
        for name, cap in ((balance or {}).get("caps") or {}).items():
            weights = items.lengths if name == "tokens" else items.patches
            assert sum(int(weights[i]) for i in mine) <= cap
    if balance is None or balance["counts"] == "equal" or strategy.packs_by_rank:
        assert len({sum(len(turn) for turn in plan.of_rank(rank)) for rank in range(ranks)}) == 1
    size = spread.get("group_size")
    if size and not strategy.packs_by_rank and not (balance or {}).get("caps"):
        assert all(plan.rank[number] // size == number % ranks // size for number in run)
    if arguments_of(strategy, "mix") is None and pack is None and not (balance or {}).get("caps"):
        assert not len(plan.waiting)


@settings(deadline=None, max_examples=100)
@given(chains(mode="strict"), st.data())
def test_strict_chains_make_the_same_sequences_on_any_mesh(chain, data):
    strategy, items, mesh = chain
    plan = planned(strategy, items, mesh)
    assume(plan is not None)
    other = draw_mesh(data.draw)
    size = (arguments_of(strategy, "distribute") or {}).get("group_size")
    axis = arguments_of(strategy, "distribute")["axis"]
    assume(size is None or int(np.prod([getattr(other, each) for each in SIZES[axis]])) % size == 0)
    again = planned(strategy, items, other)
    assume(again is not None)
    assert again.sequence.tolist() == plan.sequence.tolist()


@settings(deadline=None, max_examples=100)
@given(chains())
def test_equal_arguments_give_an_equal_plan_and_the_plain_form_an_equal_strategy(chain):
    strategy, items, mesh = chain
    assert from_steps(to_steps(strategy), strategy.mode) == strategy
    plan = planned(strategy, items, mesh)
    assume(plan is not None)
    again = planned(from_steps(to_steps(strategy), strategy.mode), items, mesh)
    assert again.trace == plan.trace
    for name in ("sequence", "rank", "microbatch", "readers"):
        assert getattr(again, name).tolist() == getattr(plan, name).tolist()


@settings(deadline=None, max_examples=100)
@given(chains())
def test_each_primitive_is_in_the_trace_and_hands_on_what_the_next_was_given(chain):
    strategy, items, mesh = chain
    plan = planned(strategy, items, mesh)
    assume(plan is not None)
    assert [step.text for step in plan.trace] == [str(node) for node in strategy.nodes]
    assert all(step.outputs <= step.inputs or step.name == "pack" for step in plan.trace)
    of_items = [step.waiting for step in plan.trace if step.name in ("mix", "pack")]
    if not (arguments_of(strategy, "balance") or {}).get("caps"):
        assert sum(of_items) == len(plan.waiting)


@settings(deadline=None, max_examples=100)
@given(chains())
def test_what_may_not_follow_is_refused(chain):
    strategy, _, _ = chain
    plain = {name: name for name in PRIMITIVES} | {
        "cost": {"cost": "7b"},
        "broadcast_at": {"broadcast_at": "tp"},
    }
    for name in set(PRIMITIVES) - set(strategy.may_follow()):
        with pytest.raises(StrategyError, match=f"{name} can't come .*; what may: "):
            from_steps([*to_steps(strategy), plain[name]], strategy.mode)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_cuts_hold_each_token_once(data):
    items, cp = draw_items(data.draw, least=1), data.draw(st.sampled_from([1, 2, 3, 4]))
    method = data.draw(st.sampled_from(sorted(CUTS)))
    strategy = Strategy().pack("best_fit", capacity=CAPACITY).distribute("dp").split("cp", method)
    plan = strategy.plan(items, Mesh(dp=2, cp=cp))
    for number in range(len(plan.rank)):
        tokens = sum(items.lengths[plan.of_sequence(number)].tolist())
        parts = [part.tolist() for part in plan.cut(number)]
        assert len({len(part) for part in parts}) == 1
        index = sorted(token for part in parts for token in part)
        assert index == list(range(len(index)))
        assert tokens <= len(index) < max(tokens, 1) + 2 * cp


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_a_mixture_is_never_further_off_than_an_item_of_each_source(data):
    items = draw_items(data.draw, least=1)
    items = Items.of(items.lengths, sources=np.array(items.sources)[items.source])  # nothing has waited
    weights = {name: data.draw(st.sampled_from([1, 2, 5])) for name in items.sources}
    unit = data.draw(st.sampled_from(["tokens", "samples"]))
    plan = Strategy().mix(weights, unit).distribute("dp").plan(items, Mesh())
    drawn = [i for i in range(len(items)) if plan.sequence[i] >= 0]
    amount = [int(n) if unit == "tokens" else 1 for n in items.lengths]
    at = {}
    for number, name in enumerate(items.sources):
        mine = [i for i in range(len(items)) if items.source[i] == number]
        count = sum(i in drawn for i in mine)
        assert [i for i in mine if i in drawn] == mine[:count]  # in order of arrival
        given_, last = sum(amount[i] for i in mine[:count]), amount[mine[count - 1]] if count else 0
        at[name] = (given_ - last) / weights[name], given_ / weights[name]
    # Each source's last item began before any other had come further than its own last item.
    assert max(before for before, _ in at.values()) <= min(after for _, after in at.values()) + 1e-9
