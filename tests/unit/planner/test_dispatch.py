"""Encoder work on other ranks: each piece once, level, at home where that is level, in groups and hosts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader_svc.config.schema import Config
from dataloader_svc.planner.place import MeshSize, Strategy, place
from dataloader_svc.planner.plan import Plan
from dataloader_svc.testing.planning import PlanDriver, plan_config
from dataloader_svc.testing.scripted_loader import Sample, ScriptedSources


def config_of(strategy: dict | None = None, **fields) -> Config:
    given = {"encoder_placement": "dispatch"} | (strategy or {})
    return plan_config({"a": 1, "b": 1}, sequences=24, sequence_length=256, strategy=given, **fields)


def plan_of(config: Config, seed: int = 1) -> Plan:
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(3, 1, 2000), 1, 256).astype(int).tolist()
    media = [Sample(int(16 * k) + 8, ((0, int(16 * k), int(64 * k)),)) for k in rng.integers(1, 9, 500)]
    sources = ScriptedSources({"a": [Sample(n) for n in lengths], "b": media}, block=50)
    return PlanDriver(config, sources).run(0)[0]


def by_piece(plan: Plan, column: np.ndarray) -> np.ndarray:
    return np.repeat(column[: plan.num_sequences], np.diff(plan.sequence_offsets))


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 50),
    mesh=st.sampled_from([(1, 1), (2, 1), (4, 1), (2, 2), (4, 3), (12, 1)]),
    group=st.sampled_from([None, 1, 2]),
    node=st.sampled_from([None, 1, 2, 5]),
    counts=st.sampled_from(["equal", "any"]),
)
def test_each_piece_is_encoded_once_and_each_microbatch_is_level(seed, mesh, group, node, counts):
    dp, cp = mesh
    group = group if group and dp % group == 0 else None
    config = config_of({"group_size": group, "ranks_per_node": node, "counts": counts})
    plan, strategy = plan_of(config, seed), Strategy.of(config)
    placed = place(plan, MeshSize(dp=dp, cp=cp), strategy)
    rank = placed.encoder_rank
    assert rank is not None
    assert rank.shape == (len(plan.pieces),)
    assert ((rank >= 0) & (rank < dp * cp)).all()
    assert (rank[~plan.pieces.has_media] == 0).all()
    home, turn = by_piece(plan, placed.dp_rank), by_piece(plan, placed.microbatch)
    media = plan.pieces.has_media
    if group is not None:
        assert (rank // cp // group == home // group)[media].all()
    cost = strategy.encoder.of_pieces(plan.pieces)
    size = (group or dp) * cp
    for number in range(int(placed.microbatch.max()) + 1):
        for first in range(0, dp, group or dp):
            mine = media & (turn == number) & (home // (group or dp) * (group or dp) == first)
            load = np.bincount(rank[mine], cost[mine], dp * cp)
            equal, dearest = cost[mine].sum() / size, cost[mine].max(initial=0)
            assert load.max() <= max(1.05 * equal, dearest, equal + dearest) + 1e-6
            own = np.bincount(home[mine], cost[mine], dp)
            if cp == 1 and own.max() <= 1.05 * equal:
                assert (rank[mine] == home[mine]).all()
    assert placed.metrics["dispatched"] == (plan.pieces.patches // 4)[media & (rank // cp != home)].sum()
    assert placed.metrics["dispatched_nodes"] <= placed.metrics["dispatched"] <= placed.metrics["embeddings"]
    if cp == 1 and counts == "equal":
        assert placed.metrics["encoder_waits"] <= placed.metrics["encoder_waits_own"] + 0.06
    again = place(plan, MeshSize(dp=dp, cp=cp), strategy)
    assert again.encoder_rank is not None
    assert again.encoder_rank.tolist() == rank.tolist()


def test_both_phases_come_nearer_to_their_floor_than_with_one_placement():
    batch = {"sequences": 24, "per_microbatch": 6}  # some 20 documents with media in a microbatch
    own = config_of({"encoder_placement": "own"}, global_batch=batch)
    plan = plan_of(own)
    one = place(plan, MeshSize(dp=4), Strategy.of(own))
    two = place(plan, MeshSize(dp=4), Strategy.of(config_of(global_batch=batch)))
    assert one.encoder_rank is None
    assert "dispatched" not in one.metrics
    assert two.metrics["llm_imbalance"] <= one.metrics["llm_imbalance"] * 1.01
    assert two.metrics["encoder_waits"] <= min(two.metrics["encoder_waits_own"], 1.06)
    assert two.metrics["encoder_imbalance"] < 1.06
    coarse = config_of()  # microbatches of four sequences
    few = place(plan_of(coarse), MeshSize(dp=4), Strategy.of(coarse)).metrics
    assert few["encoder_waits"] < 0.9 * few["encoder_waits_own"]
    assert two.work[:, -1].max() / two.work[:, -1].mean() < 1.1


def test_what_a_step_is_made_of_does_not_change():
    """The digest is of the record, which knows no ranks; it is read again from the log and placed anew."""
    own, dispatched = config_of({"encoder_placement": "own"}), config_of()
    plans = [plan_of(own), plan_of(dispatched)]
    assert plans[0].to_bytes() == plans[1].to_bytes()
    read = Plan.from_bytes(plans[1].to_bytes(), 256)
    strategy = Strategy.of(dispatched)
    for mesh in (MeshSize(dp=2), MeshSize(dp=4, cp=2)):
        ranks = [place(plan, mesh, strategy).encoder_rank for plan in (plans[1], read)]
        assert ranks[0].tolist() == ranks[1].tolist()


def test_ranks_for_the_encoder_alone_and_for_the_language_model_alone():
    """Encoder ranks get pixels and no documents, the others documents and no pixels."""
    config = config_of(
        {"balance": "both", "counts": "any", "ranks": {"llm": [1, 1, 0], "encoder": [0, 0, 1]}}
    )
    plan = plan_of(config)
    placed = place(plan, MeshSize(dp=3), Strategy.of(config))
    assert set(placed.dp_rank[: plan.num_sequences].tolist()) == {0, 1}
    assert set(placed.encoder_rank[plan.pieces.has_media].tolist()) == {2}
    assert placed.metrics["encoder_imbalance"] == pytest.approx(1)
    assert placed.metrics["dispatched"] == placed.metrics["embeddings"]


def test_of_placements_about_as_long_the_one_that_sends_least_is_taken():
    config = config_of()
    plan, strategy = plan_of(config), Strategy.of(config)
    assert strategy.dispatch is not None
    free = replace(strategy, dispatch=replace(strategy.dispatch, ranks_per_node=2))
    placed = place(plan, MeshSize(dp=4), free)
    assert placed.metrics["dispatched_nodes"] < placed.metrics["dispatched"] < placed.metrics["embeddings"]
