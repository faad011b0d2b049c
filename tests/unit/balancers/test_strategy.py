from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from dataloader_balancers import EncoderCost, FunctionCost, LlmCost
from dataloader_balancers.strategy import (
    Items,
    Mesh,
    StepError,
    Strategy,
    StrategyError,
    from_steps,
    to_steps,
)


def squares(lengths):
    return np.asarray(lengths, np.float64) ** 2


TWICE = itertools.cycle([1, 2])


def backwards(costs, num_ranks, per_rank=None):
    """A balancer of the user's own."""
    return (num_ranks - 1 - np.arange(len(np.asarray(costs))) % num_ranks).astype(np.int32)


def each_alone(lengths, num_sequences, capacity, priority=None, costs=None, *, limits=()):
    """A packer of the user's own."""
    index = np.arange(len(lengths))
    return np.where(index < num_sequences, index, -1)


FULL = (
    Strategy()
    .mix({"web": 3, "captions": 1}, overdraw=0.1)
    .cost(llm="8b", encoder=2.0)
    .pack("balanced", sequences=4, capacity=64, limits={"patches": 100})
    .distribute("dp", group_size=2)
    .balance("karmarkar_karp", alternatives=False)
    .split("cp", "per_sequence")
    .broadcast_at("tp", "pp")
)


def test_a_strategy_never_changes():
    before = Strategy().distribute("dp")
    after = before.balance("lpt")
    assert len(before.nodes) == 1
    assert len(after.nodes) == 2
    assert after == Strategy().distribute("dp").balance("lpt")
    with pytest.raises(dataclasses.FrozenInstanceError):
        after.mode = "relaxed"


def test_it_reads_as_what_it_does():
    assert str(FULL) == (
        "mix(web=3, captions=1; tokens, overdraw 0.1) -> cost(llm: 8b, encoder: 2) -> "
        "pack(balanced, 4 sequences, 64 tokens each, at most 100 patches each) -> "
        "distribute(dp, groups of 2) -> balance(karmarkar_karp, equal counts, no alternatives) -> "
        "split(cp, per_sequence) -> broadcast_at(tp) -> broadcast_at(pp)"
    )
    assert FULL.may_follow() == ()


def test_seven_of_eight_tokens_never_become_fourteen():
    """A counter-example known from another trainer: 8 samples of 7 tokens, at most 8 in a sequence."""
    items = Items.of(np.full(8, 7))
    plan = Strategy().pack("best_fit", sequences=4, capacity=8).distribute().balance().plan(items, Mesh(dp=2))
    assert sorted(plan.sequence.tolist()) == [-1, -1, -1, -1, 0, 1, 2, 3]
    every = Strategy().pack("best_fit", capacity=8).distribute().balance().plan(items, Mesh(dp=2))
    assert sorted(every.sequence.tolist()) == list(range(8))


def test_a_mixture_draws_by_tokens_until_the_sequences_are_full():
    lengths = np.array([4] * 40 + [1] * 40)
    items = Items.of(lengths, sources=np.repeat(["web", "captions"], 40))
    strategy = Strategy().mix({"web": 3, "captions": 1}, overdraw=0.0).pack(sequences=4, capacity=8)
    plan = strategy.distribute().plan(items, Mesh())
    assert plan.trace[0].figures == {
        "tokens": 32.0,
        "share captions": 0.25,
        "share web": 0.75,
        "off by": 0.0,
    }
    assert np.flatnonzero(plan.sequence >= 0).tolist() == [*range(6), *range(40, 48)]


def test_what_has_waited_is_drawn_first_whatever_its_weight():
    items = Items.of([8, 8, 8], age=[0, 0, 2], sources=["web", "web", "gone"])
    strategy = Strategy().mix({"web": 1}, overdraw=0.0).pack(sequences=2, capacity=8).distribute()
    assert strategy.plan(items, Mesh()).waiting.tolist() == [1]


def test_a_mixture_ends_where_a_source_is_used_up():
    items = Items.of([4, 4, 4, 4, 2], sources=["web", "web", "web", "web", "captions"])
    plan = Strategy().mix({"web": 1, "captions": 1}).distribute().plan(items, Mesh())
    assert plan.waiting.tolist() == [1, 2, 3]


def test_balance_takes_what_is_predicted_to_be_fastest_unless_told_not_to():
    items = Items.of([100, 100, 100, 100], patches=[0, 400, 400, 0])
    chain = Strategy().cost(llm=LlmCost(1.0, 0.0), encoder=1.0).distribute("dp")
    alone = chain.balance("arrival").plan(items, Mesh(dp=2))
    assert [step.figures["encoder after"] for step in alone.trace if step.name == "balance"] == [1.0]
    found = chain.balance(backwards).plan(items, Mesh(dp=2))
    assert found.rank.tolist() == [0, 1, 0, 1]  # no more even than the order of arrival, which stays
    assert "arrival" in found.trace[-1].note
    worse = Items.of([100, 1, 1, 100], patches=[0, 400, 0, 400])
    kept = chain.balance(backwards, alternatives=False).plan(worse, Mesh(dp=2))
    other = chain.balance(backwards).plan(worse, Mesh(dp=2))
    assert kept.rank.tolist() == [1, 0, 1, 0]
    assert kept.trace[-1].note != other.trace[-1].note == "both is predicted to be faster, and taken"
    assert other.trace[-1].figures["llm after"] == 1.0


def test_equal_counts_are_filled_up_with_empty_sequences():
    plan = Strategy().distribute().balance().plan(Items.of([5, 4, 3, 2, 1]), Mesh(dp=2), per_microbatch=2)
    assert np.bincount(plan.rank).tolist() == [4, 4]
    assert [len(plan.of_sequence(number)) for number in range(8)] == [1] * 5 + [0] * 3
    free = Strategy().distribute().balance(counts="any").plan(Items.of([9, 1, 1, 1]), Mesh(dp=2))
    assert sorted(np.bincount(free.rank).tolist()) == [1, 3]


def test_dear_microbatches_come_first_or_in_the_middle_of_a_pipeline():
    items = Items.of([1, 2, 3, 4, 5])
    flat = Strategy().distribute().plan(items, Mesh())
    assert flat.of_rank(0) == [[4], [3], [2], [1], [0]]
    piped = Strategy().distribute().plan(items, Mesh(pp=2))
    assert piped.of_rank(0)[2] == [4]


def test_each_rank_may_pack_what_it_got_where_the_mode_is_relaxed():
    relaxed = Strategy(mode="relaxed").distribute("dp").balance("lpt").pack(sequences=1, capacity=10)
    plan = relaxed.plan(Items.of([9, 8, 2, 1]), Mesh(dp=2))
    assert plan.rank.tolist() == [0, 1]
    assert plan.sequence.tolist() == [0, 1, 1, 0]


def test_caps_of_ranks_make_items_wait():
    relaxed = Strategy(mode="relaxed").distribute("dp").balance("both", caps={"tokens": 10})
    plan = relaxed.plan(Items.of([9, 9, 9, 1]), Mesh(dp=2))
    assert len(plan.waiting) == 1
    assert plan.trace[-1].waiting == 1
    assert np.bincount(plan.rank).tolist() == [2, 2]  # one is empty


def test_ranks_with_the_same_batch_have_one_reader():
    plan = FULL.plan(Items.of([8] * 32, sources=["web"] * 24 + ["captions"] * 8), Mesh(2, 2, 2, 2))
    assert plan.readers.shape == (2, 2, 2, 2)
    assert np.argwhere(plan.readers).tolist() == [[dp, cp, 0, 0] for dp in (0, 1) for cp in (0, 1)]
    assert [(step.inputs, step.outputs) for step in plan.trace[-2:]] == [(16, 8), (8, 4)]


def test_the_trace_says_what_binds():
    plan = (
        Strategy().cost(LlmCost(1.0, 0.0)).distribute("dp").balance().plan(Items.of([9, 1, 1, 1]), Mesh(dp=3))
    )
    step = plan.trace[-1]
    assert step.figures["llm after"] == step.figures["llm floor"] == 9 / 4
    assert step.figures["llm gap"] == 0
    assert "dearest item" in step.note
    assert plan.explain().splitlines()[-1] == str(step)


def test_the_plain_form_is_an_equal_strategy():
    assert from_steps(to_steps(FULL)) == FULL
    short = ["mix", {"cost": "8b"}, {"pack": "balanced"}, {"distribute": "dp"}, {"split": "per_sequence"}]
    assert from_steps([*short, {"broadcast_at": ["tp", "pp"]}]) == Strategy().mix().cost("8b").pack(
        "balanced"
    ).distribute("dp").split("cp", "per_sequence").broadcast_at("tp", "pp")


def test_functions_have_the_name_that_they_are_imported_by():
    own = Strategy().cost(squares, 2.0).pack(each_alone, sequences=2, capacity=9)
    own = own.distribute().balance(backwards)
    steps = to_steps(own)
    assert steps[0]["cost"] == {"llm": {"function": f"{__name__}:squares"}, "encoder": {"patches": 2.0}}
    assert steps[3]["balance"]["method"] == f"{__name__}:backwards"
    names = {f"{__name__}:{each.__name__}": each for each in (squares, each_alone, backwards)}
    assert from_steps(steps, find=names.__getitem__) == own
    assert own.plan(Items.of([3, 4, 5]), Mesh(dp=2)).sequence.tolist() == [0, 1, -1]
    with pytest.raises(StrategyError, match="lambda.*define the function at the top of a module"):
        to_steps(Strategy().distribute().balance(lambda costs, *_: np.arange(len(costs)) % 4))


@pytest.mark.parametrize(
    ("steps", "number", "found"),
    [
        (["mix", "stir"], 1, "unknown primitive 'stir'; known: mix, cost"),
        ([{"pack": "balanced", "balance": "lpt"}], 0, "an entry is one primitive.*found 2 keys"),
        ([7], 0, "found int"),
        ([{"pack": {"metod": "balanced"}}], 0, "unknown argument 'metod'.*did you mean method"),
        ([{"cost": {"llm": {"modell": "8b"}}}], 0, "llm is of model, linear.*found modell"),
        ([{"cost": "8c"}], 0, "unknown model '8c'"),
        ([{"pack": "mod:name"}], 0, "mod:name is a function, and nothing was given to import it with"),
        (["distribute", "broadcast_at"], 1, "which axes"),
        (["distribute", {"broadcast_at": "dp"}], 1, "unknown axis 'dp'; known: cp, tp, pp"),
        (["distribute", "pack"], 1, "pack can't come behind .*strict.*what may: cost, balance, split"),
    ],
)
def test_a_wrong_entry_is_named(steps, number, found):
    with pytest.raises(StepError, match=found) as caught:
        from_steps(steps)
    assert caught.value.step == number


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (
            lambda s: s.balance(),
            "balance can't come first: distribute says over which ranks; what may: mix, ",
        ),
        (lambda s: s.pack().pack(), "pack can't come behind pack.*what may: cost, distribute"),
        (lambda s: s.pack().mix(), "mix can't come behind pack"),
        (
            lambda s: s.distribute("cp").split(),
            "gives cp ranks work of their own; what may: cost, balance, broad",
        ),
        (lambda s: s.distribute("cp").broadcast_at("cp"), "along cp do not have the same batch.*may: tp, pp"),
        (lambda s: s.distribute().broadcast_at("tp", "tp"), "said already; what may: cp, pp"),
        (lambda s: s.distribute("dq"), "unknown axis 'dq'; known: dp, cp, world"),
        (lambda s: s.distribute("dp", 0), "group_size is 0; at least 1"),
        (lambda s: s.split("tp"), "cut over cp alone"),
        (lambda s: s.pack("balancd"), "unknown packer 'balancd'.*did you mean balanced"),
        (lambda s: s.pack(capacity=0), "capacity is 0"),
        (
            lambda s: s.distribute().balance("both", caps={"tokens": 9}),
            "caps of ranks make items wait.*strict",
        ),
        (lambda s: s.distribute().balance("lpt", caps={"tokens": 9}), "lpt knows no caps"),
        (lambda s: s.distribute().balance(counts="odd"), "known: equal, any"),
        (lambda s: s.mix({"web": -1}), "weight of web is -1"),
        (lambda s: s.mix({"web": 0}), "no source has a weight above zero"),
        (lambda s: s.mix(overdraw=2), "overdraw is 2"),
        (lambda s: s.mix(unit="words"), "known: tokens, samples"),
        (lambda s: s.cost(), "neither llm nor encoder"),
        (lambda s: s.cost(encoder=-1), "encoder.*not negative"),
    ],
)
def test_a_chain_that_cannot_be_is_refused_as_it_is_built(wrong, found):
    with pytest.raises(StrategyError, match=found):
        wrong(Strategy())


@pytest.mark.parametrize(
    ("strategy", "mesh", "found"),
    [
        (Strategy().pack(capacity=8), Mesh(), "add distribute; what may come next: cost, distribute"),
        (Strategy().distribute(), Mesh(cp=2), r"cp=2 and nothing says.*split\('cp'\)"),
        (
            Strategy().distribute("dp", 3).balance(),
            Mesh(dp=4),
            "groups of 3 do not divide 4 ranks: use 2 or 4",
        ),
        (Strategy().pack().distribute(), Mesh(), r"say pack\(..., capacity=8192\)"),
        (Strategy().pack(capacity=4).distribute(), Mesh(), "pack: best_fit: piece 1 has 7 tokens"),
        (Strategy().pack(each_alone, capacity=9).distribute(), Mesh(), "needs a number of sequences"),
        (
            Strategy().pack(limits={"pixels": 9}, capacity=9).distribute(),
            Mesh(),
            "no weight 'pixels'; known: tok",
        ),
        (Strategy().mix({"wb": 1}).distribute(), Mesh(), "no item is of source 'wb'.*did you mean web"),
        (Strategy().cost(encoder=EncoderCost(1, 1)).distribute(), Mesh(), "cost: this encoder's attention"),
        (
            Strategy().cost(FunctionCost(lambda n: np.where(n == 7, np.nan, n), "odd")).distribute(),
            Mesh(),
            "cost: odd: the cost of one of 7 is nan",
        ),
    ],
)
def test_what_a_plan_lacks_or_a_function_gets_wrong_is_named(strategy, mesh, found):
    with pytest.raises(StrategyError, match=found):
        strategy.plan(Items.of([3, 7], sources=["web", "web"]), mesh)


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (lambda n, *_, **__: np.zeros(len(n), int), "put 35 tokens into sequence 0; at most 8"),
        (lambda n, *_, **__: np.full(len(n), 3), "put piece 0 into sequence 3; they are -1 to 2"),
        (lambda n, *_, **__: np.full(len(n), -2), "put piece 0 into sequence -2"),
        (lambda n, *_, **__: np.full(len(n), -1.0), r"returned float64 \(8,\) for 8 pieces; whole numbers"),
        (lambda n, *_, **__: None, "returned object"),
        (lambda n: n, "failed: TypeError"),
        (lambda n, *_, **__: np.where(n == next(TWICE), 0, -1), "two results for equal arguments"),
    ],
)
def test_a_packer_of_the_users_is_held_to_its_contract(wrong, found):
    with pytest.raises(StrategyError, match=rf"^pack: {__name__}:<lambda> .*{found}"):
        Strategy().pack(wrong, sequences=4, capacity=64)


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (lambda c, *_: np.full(len(c), 5), "put item 0 on rank 5; ranks are 0 to 3"),
        (lambda c, *_: np.full(len(c), -1), "put item 0 on rank -1"),
        (lambda c, *_: np.zeros(len(c), int), "put 8 items on rank 0; at most 2 a rank"),
        (lambda c, *_: c[:3], r"returned float64 \(3,\) for 8 costs"),
        (lambda c: c, "failed: TypeError"),
        (lambda c, *_: (np.arange(len(c)) + next(TWICE)) % 4, "two results for equal arguments"),
    ],
)
def test_a_balancer_of_the_users_is_held_to_its_contract(wrong, found):
    with pytest.raises(StrategyError, match=rf"^balance: {__name__}:<lambda> .*{found}"):
        Strategy().distribute().balance(wrong)


def test_what_a_packer_does_later_is_checked_too():
    """It keeps its contract when it is tried, and not on what comes then."""
    late = Strategy().pack(lambda n, *_, **__: np.where(n == 9, 0, -1), sequences=1, capacity=10).distribute()
    with pytest.raises(StrategyError, match="put 18 tokens into sequence 0; at most 10"):
        late.plan(Items.of([9, 9]), Mesh())


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"lengths": [1, 0]}, "lengths of item 1 is 0; at least 1"),
        ({"lengths": [1, -5]}, "lengths of item 1 is -5"),
        ({"lengths": [1.0, float("nan")]}, "lengths are float64; whole numbers"),
        ({"lengths": [2**62, 2**62]}, "within 64 bits"),
        ({"lengths": [[1]]}, "one dimension"),
        ({"lengths": [1], "patches": [1, 2]}, "one for each of 1 items"),
        ({"lengths": [1], "sources": [3]}, "a name for each of 1"),
        ({"lengths": [1], "weights": {"bytes": [-1]}}, "bytes of item 0 is -1"),
    ],
)
def test_items_that_cannot_be_are_named(arguments, found):
    with pytest.raises(StrategyError, match=found):
        Items.of(arguments.pop("lengths"), **arguments)


def test_no_items_at_all_are_a_plan_of_empty_sequences():
    plan = (
        Strategy()
        .cost("7b")
        .pack(sequences=2, capacity=8)
        .distribute()
        .balance()
        .split()
        .plan(Items.of(np.empty(0, np.int64)), Mesh(dp=2, cp=2))
    )
    assert plan.rank.tolist() in ([0, 1], [1, 0])
    assert [len(part) for part in plan.cut(0)] == [2, 2]


def test_extremes_end_in_a_plan():
    million = (
        Strategy()
        .cost(LlmCost(1.0, 0.0))
        .distribute()
        .balance("lpt")
        .plan(Items.of(np.ones(1_000_000, np.int64)), Mesh(dp=64))
    )
    assert set(np.bincount(million.rank).tolist()) == {15625}
    one = (
        Strategy()
        .cost("8b")
        .pack(capacity=1_000_000)
        .distribute()
        .balance()
        .split()
        .plan(Items.of([1_000_000]), Mesh(dp=4, cp=8))
    )
    assert sum(len(part) for part in one.cut(int(one.sequence[0]))) == 1_000_000


@pytest.mark.parametrize("size", [{"dp": 0}, {"tp": -1}])
def test_a_mesh_without_ranks_is_refused(size):
    with pytest.raises(StrategyError, match="at least 1"):
        Mesh(**size)
