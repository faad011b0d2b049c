"""Ranks of unlike speed, memory and number of sequences: who gets how much, and what can't be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dataloader_svc.config.schema import Config
from dataloader_svc.errors import MeshError
from dataloader_svc.planner.place import MeshSize, Placement, Strategy, check_mesh, place, set_microbatches
from dataloader_svc.planner.plan import Plan
from dataloader_svc.planner.ranks import Unlike, counts_allowed, in_rounds
from dataloader_svc.testing.planning import PlanDriver, plan_config
from dataloader_svc.testing.scripted_loader import Sample, ScriptedSources


def some_config(**strategy) -> Config:
    fields = {"balance": "both", **strategy}
    return plan_config({"a": 1, "b": 1}, sequences=24, sequence_length=256, strategy=fields)


def some_plan(config: Config) -> Plan:
    rng = np.random.default_rng(1)
    lengths = np.clip(rng.lognormal(3, 1, 2000), 1, 256).astype(int).tolist()
    media = [Sample(int(n) + 16, ((0, 16, 64),)) for n in rng.integers(1, 100, 500)]
    return PlanDriver(config, ScriptedSources({"a": [Sample(n) for n in lengths], "b": media}, block=50)).run(
        0
    )[0]


def counts(plan: Plan, placement: Placement, dp: int) -> list[int]:
    """Real sequences of each rank."""
    return np.bincount(placement.dp_rank[: plan.num_sequences], minlength=dp).tolist()


def check(plan: Plan, placement: Placement, dp: int, per_microbatch: int = 1) -> None:
    """Every rank has as many microbatches of as many sequences, whatever of them is real."""
    spots = list(zip(placement.dp_rank.tolist(), placement.microbatch.tolist(), strict=True))
    microbatches = int(placement.microbatch.max()) + 1
    expected = [(rank, number) for rank in range(dp) for number in range(microbatches)] * per_microbatch
    assert sorted(spots) == sorted(expected)
    assert len(spots) >= plan.num_sequences


def test_a_fast_rank_gets_more_and_one_at_zero_nothing():
    config = some_config(counts="any", ranks={"llm": [1, 2, 0, 1]})
    plan = some_plan(config)
    placement = place(plan, MeshSize(dp=4), Strategy.of(config))
    check(plan, placement, 4)
    got = counts(plan, placement, 4)
    assert got[2] == 0
    assert sum(got) == 24
    assert 11 <= got[1] <= 13
    assert placement.work[2].tolist() == [0.0] * placement.work.shape[1]
    assert placement.metrics["llm_imbalance"] < 1.1
    assert placement.metrics["llm_imbalance"] >= placement.metrics["llm_floor"] - 1e-9
    # In order of arrival the slow ranks have as much as the fast one.
    assert placement.metrics["llm_imbalance_arrival"] > 1.25


def test_equal_counts_are_those_of_ranks_that_work():
    config = some_config(ranks={"llm": [1, 0, 1, 1]})
    plan = some_plan(config)
    placement = place(plan, MeshSize(dp=4), Strategy.of(config))
    check(plan, placement, 4)
    assert counts(plan, placement, 4) == [8, 0, 8, 8]
    assert set_microbatches(config, MeshSize(dp=4)) == 8


def test_a_rank_has_no_more_than_it_has_memory_for():
    config = some_config(counts="any", ranks={"llm": [9, 1, 1, 1], "sequences": [7, 24, 24, 3]})
    plan = some_plan(config)
    placement = place(plan, MeshSize(dp=4), Strategy.of(config))
    check(plan, placement, 4)
    got = counts(plan, placement, 4)
    assert got[0] == 7
    assert got[3] <= 3
    assert set_microbatches(config, MeshSize(dp=4)) == 0


def test_a_rank_that_is_slow_with_pictures_gets_texts():
    config = some_config(counts="any", ranks={"llm": [1, 1, 1], "encoder": [1, 1, 0.05]})
    plan, strategy = some_plan(config), Strategy.of(config)
    alike = some_config(counts="any")
    slow, even = place(plan, MeshSize(dp=3), strategy), place(plan, MeshSize(dp=3), Strategy.of(alike))
    patches = np.add.reduceat(plan.pieces.patches, plan.sequence_offsets[:-1])
    on_last = [int(patches[p.dp_rank[: plan.num_sequences] == 2].sum()) for p in (slow, even)]
    assert on_last[0] < 0.5 * on_last[1]


def test_any_counts_without_speeds_fit_every_mesh():
    config = some_config(counts="any", balance="lpt")
    plan = some_plan(config)
    for dp in (1, 5, 7, 24, 40):
        check_mesh(config, MeshSize(dp=dp))
        check(plan, place(plan, MeshSize(dp=dp), Strategy.of(config)), dp)


@given(
    count=st.integers(1, 40),
    caps=st.lists(st.sampled_from([0, 0, 1, 2, 5, 40]), min_size=1, max_size=9),
    size=st.integers(1, 3),
    equal=st.booleans(),
)
@settings(max_examples=300)
def test_counts_hold_everything_and_no_more_than_memory(count, caps, size, equal):
    """Against counting one by one."""
    assume(sum(caps) >= count)
    unlike = Unlike((1.0,) * len(caps), (1.0,) * len(caps), tuple(caps))
    most = counts_allowed(count, len(caps), size, equal=equal, ranks=unlike)
    assert (most <= np.minimum(caps, count)).all()
    assert most.sum() >= min(count, sum(min(cap, count) for cap in caps))
    if equal and most.max() > size:  # one microbatch fewer would not do
        assert sum(min(cap, int(-(-most.max() // size) - 1) * size) for cap in caps) < count
    left, expected = list(most), []
    while len(expected) < count:
        for rank, room in enumerate(left):
            if room and len(expected) < count:
                left[rank] -= 1
                expected.append(rank)
    assert in_rounds(count, most).tolist() == expected


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ({"ranks": {}}, "it has no list"),
        ({"ranks": {"llm": [1, 2], "encoder": [1]}}, "llm has 2, encoder has 1"),
        ({"ranks": {"llm": [0, 0]}}, "all 2 ranks are at 0"),
        ({"ranks": {"llm": [1, -1]}}, "greater than or equal to 0"),
        ({"ranks": {"llm": [1, float("nan")]}}, "finite number"),
        ({"ranks": {"llm": [1, 1e-9]}}, "rank 1 has speed 1e-09 beside 1; write 0"),
        ({"ranks": {"llm": [1, 0], "encoder": [1, 1]}}, "rank 1 is at 0 in llm and at 1 in encoder"),
        ({"ranks": {"llm": [1, 0], "encoder": [1, 1]}}, "or encoder_placement: dispatch"),
        ({"ranks": {"llm": [1, 1]}, "balance": "lpt"}, "lpt knows no speeds of ranks: use balance: both"),
        ({"ranks": {"llm": [1, 1]}, "group_size": 2}, "leave one of the two out"),
        ({"ranks": {"llm": [1, 0], "sequences": [9, 40]}}, "room for 9 sequences.* and a step has 24"),
    ],
)
def test_what_ranks_can_not_be(strategy, said):
    with pytest.raises(ValidationError, match=said):
        some_config(**strategy)


def test_ranks_that_are_not_the_mesh_are_told_so():
    config = some_config(ranks={"llm": [1, 2, 1]})
    with pytest.raises(MeshError, match=r"strategy.ranks is of 3 dp ranks and the mesh has dp=4"):
        check_mesh(config, MeshSize(dp=4))
    check_mesh(config, MeshSize(dp=3))
    with pytest.raises(ValidationError, match=r"lists have 3 entries, and mesh.dp is 4"):
        plan_config(
            {"a": 1}, sequences=24, mesh={"dp": 4}, strategy={"balance": "both", "ranks": {"llm": [1, 2, 1]}}
        )
