"""Placement gives every rank as much as any, and moves whole sequences only."""

from __future__ import annotations

import numpy as np
import pytest

from dataloader_svc.config.schema import Config
from dataloader_svc.errors import MeshError
from dataloader_svc.planner.place import MeshSize, Strategy, check_mesh, place
from dataloader_svc.testing.planning import PlanDriver, plan_config
from dataloader_svc.testing.scripted_loader import Sample, ScriptedSources


def some_config(**fields) -> Config:
    return plan_config({"a": 1, "b": 1}, sequences=24, sequence_length=256, **fields)


def some_plan(config: Config):
    rng = np.random.default_rng(1)
    lengths = np.clip(rng.lognormal(3, 1, 2000), 1, 256).astype(int).tolist()
    media = [Sample(int(n) + 16, ((0, 16, 64),)) for n in rng.integers(1, 100, 500)]
    sources = ScriptedSources({"a": [Sample(n) for n in lengths], "b": media}, block=50)
    return PlanDriver(config, sources).run(0)[0]


@pytest.mark.parametrize(
    ("dp", "per_microbatch"), [(1, 1), (2, 1), (3, 2), (4, 1), (4, 3), (12, 1), (12, 2), (24, 1)]
)
def test_equal_counts_everywhere(dp, per_microbatch):
    config = some_config(global_batch={"sequences": 24, "per_microbatch": per_microbatch})
    plan = some_plan(config)
    placement = place(plan, MeshSize(dp=dp), Strategy.of(config))
    places = list(zip(placement.dp_rank.tolist(), placement.microbatch.tolist(), strict=True))
    counts = {spot: places.count(spot) for spot in set(places)}
    assert set(counts) == {(rank, mb) for rank in range(dp) for mb in range(24 // dp // per_microbatch)}
    assert set(counts.values()) == {per_microbatch}


def test_balance_beats_arrival_and_reaches_the_floor():
    config = some_config()
    metrics = place(some_plan(config), MeshSize(dp=4), Strategy.of(config)).metrics
    assert metrics["llm_imbalance"] < 1.05
    assert metrics["llm_imbalance"] >= metrics["llm_floor"] - 1e-9
    assert metrics["llm_gap"] >= 0
    assert metrics["encoder_imbalance"] <= metrics["encoder_imbalance_arrival"]


def test_microbatches_fall_in_cost_on_every_rank():
    config = some_config()
    plan, strategy = some_plan(config), Strategy.of(config)
    placement = place(plan, MeshSize(dp=4), strategy)
    tokens, encoder = plan.pieces.length, strategy.encoder.of_pieces(plan.pieces)
    bounds = plan.sequence_offsets.tolist()
    cost = [
        strategy.llm.of_documents(tokens[low:high]).sum() + encoder[low:high].sum()
        for low, high in zip(bounds, bounds[1:], strict=False)
    ]
    for rank in range(4):
        mine = sorted(np.flatnonzero(placement.dp_rank == rank), key=lambda s: placement.microbatch[s])
        costs = [cost[sequence] for sequence in mine]
        assert costs == sorted(costs, reverse=True)


def test_with_a_pipeline_dear_microbatches_stand_in_the_middle():
    config = some_config()
    plan, strategy = some_plan(config), Strategy.of(config)
    falling, middle = (place(plan, MeshSize(dp=4, pp=pp), strategy) for pp in (1, 2))
    assert falling.dp_rank.tolist() == middle.dp_rank.tolist()
    turn = dict(zip(falling.microbatch.tolist(), middle.microbatch.tolist(), strict=True))
    assert turn == {0: 2, 1: 3, 2: 1, 3: 4, 4: 0, 5: 5}


def test_in_groups_sequences_stay_where_they_came():
    config = some_config(strategy={"group_size": 2})
    plan = some_plan(config)
    everywhere = place(plan, MeshSize(dp=4), Strategy.of(some_config())).metrics
    placement = place(plan, MeshSize(dp=4), Strategy.of(config))
    assert (placement.dp_rank // 2).tolist() == [n % 4 // 2 for n in range(24)]
    assert np.bincount(placement.dp_rank).tolist() == [6] * 4
    total = [m["llm_imbalance"] + m["encoder_imbalance"] for m in (placement.metrics, everywhere)]
    assert total[0] > total[1]
    assert placement.metrics["llm_imbalance"] <= placement.metrics["llm_imbalance_arrival"]


def test_groups_that_do_not_divide_dp_are_told_what_does():
    config = some_config(strategy={"group_size": 5})
    with pytest.raises(MeshError) as caught:
        check_mesh(config, MeshSize(dp=12))
    assert str(caught.value) == (
        "dp=12 does not divide into groups of strategy.group_size=5 ranks: use a group_size of 4 or 6, "
        "or a dp that is a multiple of 5"
    )


@pytest.mark.parametrize(("dp", "per_microbatch"), [(1, 1), (2, 3), (5, 2), (7, 1), (64, 1)])
def test_a_step_of_samples_is_filled_up_with_empty_sequences(dp, per_microbatch):
    """Any dp: the empty ones are fewer than a microbatch of each rank, and never in front of others."""
    config = some_config(global_batch={"samples": 100, "per_microbatch": per_microbatch})
    check_mesh(config, MeshSize(dp=dp))
    plan = some_plan(config)
    placement = place(plan, MeshSize(dp=dp), Strategy.of(config))
    microbatches = -(-plan.num_sequences // (dp * per_microbatch))
    places = list(zip(placement.dp_rank.tolist(), placement.microbatch.tolist(), strict=True))
    expected = [(rank, mb) for rank in range(dp) for mb in range(microbatches)]
    assert sorted(places) == sorted(expected * per_microbatch)
    real = places[: plan.num_sequences]
    assert len(places) - len(real) < dp * per_microbatch
    for rank in range(dp):
        mine = [mb for of, mb in real if of == rank]
        assert set(mine) == set(range(max(mine, default=-1) + 1))


def test_a_mesh_that_fits():
    config = some_config(global_batch={"sequences": 24, "per_microbatch": 2})
    check_mesh(config, MeshSize(dp=12, cp=8, tp=5, pp=3))
    check_mesh(config, MeshSize(dp=1, cp=1))


def test_a_dp_that_does_not_divide_is_told_what_does():
    config = some_config(global_batch={"sequences": 24, "per_microbatch": 2})
    with pytest.raises(MeshError) as caught:
        check_mesh(config, MeshSize(dp=5))
    assert str(caught.value) == (
        "dp=5 does not divide the 24 sequences of a step of 2 sequences a microbatch: use dp=4 or dp=6, "
        "or a global_batch that is a multiple of 10 sequences"
    )


def test_a_cp_that_does_not_divide_is_told_what_does():
    with pytest.raises(
        MeshError, match="cp=3 needs a sequence_length that is a multiple of 2 x cp = 6; it is 256"
    ):
        check_mesh(some_config(), MeshSize(dp=2, cp=3))


def test_too_many_ranks():
    with pytest.raises(MeshError, match="dp=48 does not divide the 24 sequences.*use dp=12 or dp=24"):
        check_mesh(some_config(), MeshSize(dp=48))
