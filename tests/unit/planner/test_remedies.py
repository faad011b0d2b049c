"""What a step is placed without, where that pays: equal numbers of sequences, or groups of ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dataloader_svc.config.schema import Config
from dataloader_svc.planner.place import MeshSize, Placement, Strategy, place, set_microbatches
from dataloader_svc.planner.plan import Plan
from dataloader_svc.testing.planning import PlanDriver, plan_config
from dataloader_svc.testing.scripted_loader import ScriptedSources

SQUARES = {"llm": {"linear": 0, "quadratic": 1}, "encoder": {"patches": 0}}


def some_config(samples: int, **strategy) -> Config:
    """Each document is a sequence, and costs its length squared."""
    fields = {"pack": "none", "cost": SQUARES, **strategy}
    return plan_config(
        {"a": 1}, samples=samples, sequence_length=512, strategy=fields, layout="padded", pad_to="longest"
    )


def plan_of(lengths: list[int], config: Config) -> Plan:
    """A step of these documents, in this order."""
    return PlanDriver(config, ScriptedSources.of_lengths({"a": lengths}, block=64)).run(0)[0]


def times(plan: Plan, placement: Placement, dp: int) -> list[int]:
    """Of each rank, counted one by one."""
    result = [0] * dp
    for number, rank in enumerate(placement.dp_rank[: plan.num_sequences].tolist()):
        low, high = plan.sequence_offsets[number : number + 2].tolist()
        result[rank] += sum(int(length) ** 2 for length in plan.pieces.length[low:high])
    return result


def placed(lengths: list[int], dp: int, **strategy) -> tuple[Plan, Placement]:
    config = some_config(len(lengths), **strategy)
    plan = plan_of(lengths, config)
    return plan, place(plan, MeshSize(dp=dp), Strategy.of(config))


ONE_DEAR = [64] * 3 + [256] + [64] * 4
"""As dear as 16 of the others: on two ranks, with four documents each, 19 to 4; by itself 16 to 7."""


def test_numbers_are_unequal_where_that_pays_and_then_alone():
    plan, placement = placed(ONE_DEAR, 2, remedies=["unequal"])
    assert placement.remedy == "unequal"
    assert sorted(times(plan, placement, 2)) == [7 * 64**2, 16 * 64**2]
    assert placement.metrics["remedy_unequal"] == pytest.approx(3 / 19)
    assert placement.metrics["llm_gap"] == 0
    # All ranks have as many microbatches as the one with the most.
    assert np.bincount(placement.dp_rank).tolist() == [7, 7]
    assert sorted(placement.microbatch.tolist()) == sorted([*range(7)] * 2)
    plan, placement = placed([64] * 8, 2, remedies=["unequal"])
    assert placement.remedy is None
    assert placement.metrics["remedy_unequal"] == 0
    assert np.bincount(placement.dp_rank).tolist() == [4, 4]


def test_one_that_spares_too_little_is_not_applied():
    for gain, remedy in ((0.15, "unequal"), (0.16, None)):
        _, placement = placed(ONE_DEAR, 2, remedies="auto", remedy_gain=gain)
        assert placement.remedy == remedy
    plain = placed(ONE_DEAR, 2)[1]
    assert placement.dp_rank.tolist() == plain.dp_rank.tolist()
    assert placement.microbatch.tolist() == plain.microbatch.tolist()
    assert "remedy_unequal" not in plain.metrics


IN_ONE_GROUP = [256, 256, 64, 64] * 2
"""In order of arrival both ranks of the first group get all that is dear."""


def test_groups_are_left_where_that_pays():
    plan, placement = placed(IN_ONE_GROUP, 4, group_size=2, remedies=["ungroup"])
    assert placement.remedy == "ungroup"
    assert times(plan, placement, 4) == [256**2 + 64**2] * 4
    assert placement.metrics["remedy_ungroup"] == pytest.approx(1 - 17 / 32)
    assert np.bincount(placement.dp_rank).tolist() == [2] * 4
    plan, placement = placed([256, 64, 256, 64] * 2, 4, group_size=2, remedies="auto")
    assert placement.remedy is None
    assert {name for name in placement.metrics if "remedy" in name} == {"remedy_unequal", "remedy_ungroup"}


def test_of_two_the_one_that_spares_most():
    """Groups bind; beyond them equal numbers would cost little."""
    assert placed(IN_ONE_GROUP, 4, group_size=2, remedies="auto")[1].remedy == "ungroup"
    assert placed(ONE_DEAR, 2, group_size=2, remedies="auto")[1].remedy == "unequal"


def test_a_fit_that_sees_no_gain_forbids_it():
    """By squares 7 to 4 becomes 6 to 5; by tokens 5 to 4 is as level as whole sequences can be."""
    cost = {"llm": {"linear": 0.01, "quadratic": 1}, "encoder": {"patches": 0}}
    config = some_config(8, cost=cost, remedies=["unequal"])
    plan, mesh, strategy = plan_of([128, *[64] * 7], config), MeshSize(dp=2), Strategy.of(config)
    assert place(plan, mesh, strategy).remedy == "unequal"
    assert place(plan, mesh, strategy, (0.0, 1.0, 1.0)).remedy == "unequal"
    assert place(plan, mesh, strategy, (1.0, 0.0, 1.0)).remedy is None


def test_ranks_of_unlike_memory_keep_it():
    ranks = {"llm": [1, 1], "sequences": [5, 8]}
    plan, placement = placed_in_sequences(ranks=ranks, balance="both", remedies=["unequal"])
    assert placement.remedy == "unequal"
    counts = np.bincount(placement.dp_rank[:8], minlength=2)
    assert counts.tolist() == [1, 7]
    ranks["sequences"] = [7, 5]
    plan, placement = placed_in_sequences(ranks=ranks, balance="both", remedies=["unequal"])
    assert (np.bincount(placement.dp_rank[: plan.num_sequences], minlength=2) <= [7, 5]).all()


def placed_in_sequences(**strategy) -> tuple[Plan, Placement]:
    """A step in sequences, of which one holds a long document, and seven two of half the length."""
    fields = {"pack": "best_fit", "cost": SQUARES, "overdraw": 0, **strategy}
    config = plan_config({"a": 1}, sequences=8, sequence_length=256, strategy=fields)
    plan = plan_of([256, *[16] * 16 * 7], config)
    return plan, place(plan, MeshSize(dp=2), Strategy.of(config))


def test_what_a_trainer_is_told_of_the_number_of_microbatches():
    fields = {"sequences": 8, "sequence_length": 64}
    plain = plan_config({"a": 1}, **fields, strategy={"group_size": 2, "remedies": ["ungroup"]})
    unequal = plan_config({"a": 1}, **fields, strategy={"remedies": "auto"})
    assert set_microbatches(plain, MeshSize(dp=4)) == 2
    assert set_microbatches(unequal, MeshSize(dp=4)) == 0


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        ({"remedies": ["unequal"], "counts": "any"}, "unequal changes nothing: with counts: any"),
        ({"remedies": ["ungroup"]}, "ungroup changes nothing: without group_size"),
        ({"remedies": ["unequal"], "balance": "arrival"}, "balance: arrival leaves sequences where they"),
        ({"remedies": ["wait"]}, "'unequal' or 'ungroup'"),
        ({"remedies": "auto", "remedy_gain": 0}, "remedy_gain"),
    ],
)
def test_what_can_not_be_meant_is_refused(strategy, words):
    with pytest.raises(ValidationError) as caught:
        some_config(8, **strategy)
    assert words in str(caught.value)


def test_auto_is_nothing_where_there_is_nothing_to_let_go_of():
    for strategy in ({"counts": "any"}, {"balance": "arrival"}):
        assert some_config(8, remedies="auto", **strategy).strategy.allowed_remedies == ()
    both = some_config(8, remedies="auto", group_size=2).strategy.allowed_remedies
    assert both == ("ungroup", "unequal")


@given(
    lengths=st.lists(st.integers(1, 512), min_size=1, max_size=40),
    dp=st.sampled_from([1, 2, 4, 6]),
    gain=st.sampled_from([0.01, 0.05, 0.3]),
    balance=st.sampled_from(["lpt", "snake", "both"]),
)
@settings(max_examples=120, deadline=None)
def test_a_remedy_spares_what_it_must_and_else_nothing_changes(lengths, dp, gain, balance):
    config = some_config(len(lengths), balance=balance, group_size=2 if dp % 2 == 0 else None)
    plan = plan_of(lengths, config)
    strategy = Strategy.of(config)
    allowed = replace(strategy, remedies=("ungroup", "unequal")[strategy.group_size is None :])
    allowed = replace(allowed, remedy_gain=gain)
    without, placement = (place(plan, MeshSize(dp=dp), one) for one in (strategy, allowed))
    before, after = max(times(plan, without, dp)), max(times(plan, placement, dp))
    assert len(placement.dp_rank) == len(placement.microbatch)
    spots = np.bincount(placement.dp_rank, minlength=dp)
    assert len(set(spots.tolist())) == 1
    told = [placement.metrics[f"remedy_{name}"] for name in allowed.remedies]
    if placement.remedy is None:
        assert placement.dp_rank.tolist() == without.dp_rank.tolist()
        assert told == [0.0] * len(told)
    else:
        assert after < before * (1 - gain) * (1 + 1e-9)
        assert max(told) == pytest.approx(1 - after / before)
        assert np.count_nonzero(told) == 1
