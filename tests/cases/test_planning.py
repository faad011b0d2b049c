"""Trouble cases 52, 54, 55, 57 and 60 as the planner meets them: sources smaller than a batch, uneven shards,
resumes, documents and pictures longer than a sequence. What is right stands beside each in data/."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dataloader_svc.config.schema import Config
from dataloader_svc.planner.pieces import Room, cut
from dataloader_svc.planner.place import MeshSize, Strategy, check_mesh, place
from dataloader_svc.planner.plan import Plan
from dataloader_svc.planner.state import State
from dataloader_svc.sample import BlockId
from dataloader_svc.testing.planning import PlanDriver, plan_config
from dataloader_svc.testing.scripted_loader import Sample, ScriptedSources, probe_columns

DATA = Path(__file__).parent / "data"
TOKENS = 8
"""Of each document where only ids count: a sequence is one document, a step is a batch of so many."""


def ids_of(case: str, *names: str) -> list[int]:
    lines = [line for name in names for line in (DATA / case / name).read_text().splitlines()]
    return [json.loads(line)["id"] for line in lines]


def batches(ids: dict[str, list[int]], size: int, **fields: Any) -> tuple[Config, ScriptedSources]:
    config = plan_config(dict.fromkeys(ids, 1), sequences=size, sequence_length=TOKENS, **fields)
    return config, ScriptedSources.of_lengths({name: [TOKENS] * len(rows) for name, rows in ids.items()})


def delivered(plan: Plan, ids: dict[str, list[int]]) -> list[int]:
    rows = zip(plan.pieces.source.tolist(), plan.pieces.position.tolist(), strict=True)
    return [ids[plan.sources[source]][position] for source, position in rows]


def by_rank(plan: Plan, config: Config, dp: int, ids: dict[str, list[int]]) -> dict[int, list[list[int]]]:
    """dp rank -> the ids of each of its sequences."""
    mesh = MeshSize(dp=dp)
    check_mesh(config, mesh)
    rank = place(plan, mesh, Strategy.of(config)).dp_rank.tolist()
    all_ids, bounds = delivered(plan, ids), plan.sequence_offsets.tolist()
    bounds += [bounds[-1]] * (len(rank) + 1 - len(bounds))  # empty sequences, so that ranks have as many
    result: dict[int, list[list[int]]] = {number: [] for number in range(dp)}
    for number, (low, high) in enumerate(itertools.pairwise(bounds)):
        result[rank[number]].append(all_ids[low:high])
    return result


STOP = {"exhausted": "stop"}


def test_a_source_smaller_than_a_batch_is_delivered_once():
    ids = {"tiny": ids_of("52-source-smaller-than-batch", "tiny.jsonl")}
    config, sources = batches(ids, 8, mixture=STOP)
    (plan,) = PlanDriver(config, sources).run(99)
    assert plan.last
    ranks = by_rank(plan, config, 4, ids)
    assert [len(sequences) for sequences in ranks.values()] == [2, 2, 2, 2]
    assert sorted(i for sequences in ranks.values() for s in sequences for i in s) == [0, 1, 2]


def test_a_source_smaller_than_a_batch_that_may_be_dropped_ends_at_once():
    ids = {"tiny": ids_of("52-source-smaller-than-batch", "tiny.jsonl")}
    config, sources = batches(ids, 8, mixture=STOP, last_batch="drop")
    driver = PlanDriver(config, sources)
    assert driver.run(99) == []
    assert driver.ended is not None
    assert driver.ended.left_tokens == 3 * TOKENS  # which the service warns of


def test_a_tiny_source_repeats_beside_a_big_one():
    names = ("tiny", "big")
    ids = {name: ids_of("52-source-smaller-than-batch", f"{name}.jsonl") for name in names}
    config, sources = batches(ids, 8, strategy={"overdraw": 0})
    counts = Counter(i for plan in PlanDriver(config, sources).run(24) for i in delivered(plan, ids))
    assert counts.total() == 200
    tiny = [counts[i] for i in ids["tiny"]]
    assert 70 <= sum(tiny) <= 130
    assert max(tiny) - min(tiny) <= 2
    assert all(counts[i] <= 1 for i in ids["big"])


@pytest.mark.parametrize(("rule", "steps", "left"), [("pad", 5, 0), ("drop", 4, 1)])
@pytest.mark.parametrize("dp", [4, 8])
def test_uneven_shards_end_at_one_step_for_all_ranks(rule, steps, left, dp):
    """33 ids, 8 a step, in 4 shards: shards say nothing about ranks."""
    ids = {"r": ids_of("54-uneven-rank-data", *(f"s{n}.jsonl" for n in range(4)))}
    config, sources = batches(ids, 8, mixture=STOP, last_batch=rule)
    driver = PlanDriver(config, sources)
    plans = driver.run(99)
    assert [plan.last for plan in plans] == [False] * (steps - 1) + [True]
    per_rank = [by_rank(plan, config, dp, ids) for plan in plans]
    assert all(len(ranks[r]) == 8 // dp for ranks in per_rank for r in range(dp))
    got = [i for ranks in per_rank for sequences in ranks.values() for s in sequences for i in s]
    assert len(got) == len(set(got)) == len(ids["r"]) - left
    assert driver.ended is not None
    assert driver.ended.step == steps


# A step of 8 in each unit that the user may mean it in, and documents of so many tokens: what each step
# delivers, and what `drop` leaves out. A sequence has room for 8 tokens: one document of 5 to 8, two of 3.
UNITS = [
    ({"sequences": 8}, 8, [8, 8, 8, 8], 1),
    ({"sequences": 8}, 5, [8, 8, 8, 8], 1),
    ({"sequences": 8}, 3, [16, 16], 1),
    ({"sequences": 8, "per_microbatch": 2}, 5, [8, 8, 8, 8], 1),
    ({"samples": 8}, 8, [8, 8, 8, 8], 1),
    ({"samples": 8}, 5, [8, 8, 8, 8], 1),
    ({"samples": 8}, 3, [8, 8, 8, 8], 1),
    ({"samples": 8, "per_microbatch": 2}, 3, [8, 8, 8, 8], 1),
    ({"tokens": 64}, 8, [8, 8, 8, 8], 1),
    ({"tokens": 64}, 3, [16], 17),  # 51 tokens are left, and no step of 64
]


@pytest.mark.parametrize(("size", "tokens", "full", "left"), UNITS, ids=str)
@pytest.mark.parametrize("rule", ["pad", "drop"])
def test_a_last_step_is_full_in_the_unit_that_the_user_gave(size, tokens, full, left, rule):
    ids = {"r": ids_of("54-uneven-rank-data", *(f"s{n}.jsonl" for n in range(4)))}
    config = plan_config({"r": 1}, sequence_length=8, global_batch=size, mixture=STOP, last_batch=rule)
    driver = PlanDriver(config, ScriptedSources.of_lengths({"r": [tokens] * 33}))
    plans = driver.run(99)
    if rule == "drop":
        assert [len(plan.pieces) for plan in plans] == full
    else:
        assert [len(plan.pieces) for plan in plans][: len(full)] == full
        assert sorted(i for plan in plans for i in delivered(plan, ids)) == list(range(33))
    assert [plan.last for plan in plans] == [False] * (len(plans) - 1) + [True]
    assert driver.ended is not None
    dropped = left if rule == "drop" else 0
    assert (driver.ended.left_samples, driver.ended.left_tokens) == (dropped, dropped * tokens)
    for dp in (1, 2, 4):
        for plan in plans:
            per_rank = by_rank(plan, config, dp, ids)
            assert len({len(sequences) for sequences in per_rank.values()}) == 1
            got = [i for sequences in per_rank.values() for s in sequences for i in s]
            assert sorted(got) == sorted(delivered(plan, ids))


RESUMED = {"r": [n for f in range(3) for n in ids_of("55-resume-id-stream", f"part{f}.jsonl")]}


def test_a_resume_at_any_step_is_the_unbroken_run():
    config, sources = batches(RESUMED, 4, mixture=STOP)
    reference = PlanDriver(config, sources).run(999)
    assert [i for plan in reference for i in delivered(plan, RESUMED)] == list(range(101))
    for step in (0, 1, 5, len(reference) - 1):
        state = State.from_json(reference[step].state_json)
        again = PlanDriver(config, sources, state=state).run(999)
        assert [plan.to_bytes() for plan in again] == [plan.to_bytes() for plan in reference[step + 1 :]]


@pytest.mark.parametrize("ranks", [1, 3, 4, 5])
@pytest.mark.parametrize("step", [0, 1, 5, 24, 25])
def test_a_resume_on_other_ranks_and_batches_loses_and_repeats_nothing(ranks, step):
    config, sources = batches(RESUMED, 4, mixture=STOP)
    before = PlanDriver(config, sources).run(999)[: step + 1]
    other, _ = batches(RESUMED, ranks, mixture=STOP)
    state = State.from_json(before[-1].state_json).adapted(("r",), {}, TOKENS)
    after = PlanDriver(other, sources, state=state).run(999)
    got = [i for plan in [*before, *after] for i in delivered(plan, RESUMED)]
    assert sorted(got) == list(range(101))
    for plan in after:
        assert all(len(sequences) == 1 for sequences in by_rank(plan, other, ranks, RESUMED).values())


def test_a_second_resume_and_the_next_epoch():
    config, sources = batches(RESUMED, 4)
    reference = PlanDriver(config, sources).run(60)
    plans, state = [], None
    for length in (3, 2, 24, 10):
        plans += PlanDriver(config, sources, state=state).run(len(plans) + length - 1)
        state = State.from_json(plans[-1].state_json)
    assert [plan.to_bytes() for plan in plans] == [plan.to_bytes() for plan in reference[:39]]
    by_epoch = Counter(epoch for plan in reference for epoch in plan.pieces.epoch.tolist())
    assert by_epoch[0] == by_epoch[1] == 101
    sizes = [len(plan.state_json) for plan in reference]
    assert max(sizes) - min(sizes) < 80  # digits and a piece or two that wait
    assert state is not None
    assert state.to_json() == state.to_json()


PACK = json.loads((DATA / "57-pack-too-long-and-empty" / "lengths.json").read_text())


@pytest.mark.parametrize(
    ("rule", "kept", "reasons"),
    [
        ("drop", 44, {"too_long": 3, "empty_text": 1}),
        ("truncate", 140, {"empty_text": 1}),
        ("split", 1_000_117, {"empty_text": 1}),
    ],
)
def test_documents_longer_than_a_sequence(rule, kept, reasons):
    config = plan_config(
        {"a": 1},
        sequences=64 if rule == "split" else 4,
        sequence_length=PACK["seq_len"],
        source={"too_long": rule, "max_bad_fraction": 1.0},
        mixture=STOP,
    )
    plans = PlanDriver(config, ScriptedSources.of_lengths({"a": PACK["lengths"]}, block=8)).run(10_000)
    assert sum(plan.pieces.tokens for plan in plans) == kept
    assert max(int(plan.pieces.length.max(initial=0)) for plan in plans) <= PACK["seq_len"]
    assert Counter(row.reason for plan in plans for _, _, row in plan.skipped) == reasons
    assert plans[-1].last
    assert max(len(plan.state_json) for plan in plans) < 1000  # a million tokens that wait are one entry


def layout_sample(spans: list[list[Any]]) -> Sample:
    media, at = [], 0
    for kind, length in spans:
        if kind == "image":
            media.append((at, length, 4 * length))
        at += length
    return Sample(at, tuple(media))


LAYOUT = json.loads((DATA / "60-image-span-at-cutoff" / "layout.json").read_text())


@pytest.mark.parametrize(
    ("layout", "truncated"),
    [
        (LAYOUT, [(36, 64)]),  # 58 tokens: cut before the second picture
        (LAYOUT["also"][0], [(40, 160)]),  # a picture of 40: kept whole
        (LAYOUT["also"][1], []),  # of 41: dropped
        (LAYOUT["also"][2], [(39, 0)]),  # text of 39 and a picture of 2: the text
    ],
)
@pytest.mark.parametrize("rule", ["truncate", "split", "drop"])
def test_a_picture_is_all_in_or_all_out(layout, truncated, rule):
    sample, length = layout_sample(layout["spans"]), layout["seq_len"]
    block = cut(probe_columns(BlockId("a", 0, 0), 0, [sample]), rule, Room(length))
    pieces = list(zip(block.piece_length.tolist(), block.piece_patches.tolist(), strict=True))
    if rule == "truncate":
        assert pieces == truncated
    elif rule == "drop":
        assert pieces == (truncated if sample.tokens <= length else [])
    if rule == "split" and truncated:
        assert pieces[0] == truncated[0]
        assert sum(tokens for tokens, _ in pieces) == sample.tokens
        assert sum(patches for _, patches in pieces) == sum(span[2] for span in sample.media)
    ends = (block.piece_start + block.piece_length).tolist()
    assert not any(start < end < start + size for end in ends for start, size, _ in sample.media)
