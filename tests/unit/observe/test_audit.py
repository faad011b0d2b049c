"""The audit finds what it is there to find: each test breaks one thing in a right delivery."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from dataloader_svc.observe.audit import (
    Finding,
    RankBatch,
    StepDelivery,
    check_caps,
    check_mixture,
    check_once,
    check_size,
    compare,
    reassemble,
    weights_at,
)

DOCS = {("web", 0, 0): 5, ("web", 0, 1): 3, ("cap", 0, 0): 8}
IMAGE = 99


def document(key: tuple[str, int, int]) -> np.ndarray:
    ids = np.arange(DOCS[key]) + 10 * (1 + list(DOCS).index(key))
    if key[0] == "cap":
        ids[2:4] = IMAGE
    return ids


def delivery(groups: list[list[tuple[str, int, int]]], cp: int = 1) -> StepDelivery:
    """One microbatch a dp rank, holding the documents of its group; round-robin cut over cp."""
    batches = []
    for dp, group in enumerate(groups):
        ids = np.concatenate([document(key) for key in group])
        lengths = [DOCS[key] for key in group]
        spans = {
            "span_source": np.array([["web", "cap"].index(key[0]) for key in group]),
            "span_epoch": np.array([key[1] for key in group]),
            "span_position": np.array([key[2] for key in group]),
            "span_start": np.zeros(len(group), int),
            "span_length": np.array(lengths),
            "span_sequence": np.zeros(len(group), int),
            "span_offset": np.cumsum([0, *lengths[:-1]]),
        }
        placeholder = np.cumsum(ids == IMAGE) - 1
        for rank in range(cp):
            index = np.arange(rank, len(ids), cp)
            local = ids[index]
            arrays: dict[str, Any] = {
                "input_ids": local,
                "labels": local + 1,
                "position_ids": index,
                "loss_weight": np.ones(len(index), np.float32),
                "cu_seqlens": np.cumsum([0, *lengths]),
                "cp_index": index,
                **spans,
            }
            position = np.concatenate([np.arange(length) for length in lengths])
            arrays["position_ids"] = position[index]
            if (local == IMAGE).any():
                arrays["pixel_values"] = np.arange(8 * 6, dtype=np.uint8).reshape(8, 6)
                arrays["image_index"] = placeholder[index][local == IMAGE]
                arrays["image_position"] = np.flatnonzero(local == IMAGE)
            batches.append(RankBatch(dp, rank, 0, arrays, ["web", "cap"], 4))
    state = {
        "sources": {
            "web": {"epoch": 0, "position": 2, "samples": 2, "tokens": 8},
            "cap": {"epoch": 0, "position": 1, "samples": 1, "tokens": 8},
        }
    }
    return StepDelivery(0, "d1", batches, state)


ONE = [[("web", 0, 0), ("cap", 0, 0), ("web", 0, 1)]]
TWO = [[("cap", 0, 0)], [("web", 0, 1), ("web", 0, 0)]]
ROWS = {"web": 2, "cap": 1}


@pytest.mark.parametrize("groups", [ONE, TWO])
@pytest.mark.parametrize("cp", [1, 2, 3])
def test_the_same_step_on_any_mesh_is_equal(groups: list, cp: int) -> None:
    assert compare(delivery(ONE), delivery(groups, cp), "m") == []
    step = delivery(groups, cp)
    assert check_once([step], [], [], step.state, ROWS, "m") == []


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("input_ids", "field input_ids"),
        ("labels", "field labels"),
        ("loss_weight", "field loss_weight"),
        ("pixel_values", "field pixel_values"),
        ("image_index", "field pixel_values"),
    ],
)
def test_one_wrong_byte_is_named(field: str, said: str) -> None:
    wrong = copy.deepcopy(delivery(TWO))
    batch = next(batch for batch in wrong.batches if field in batch.arrays)
    batch.arrays[field].flat[0] += 1
    (finding,) = compare(delivery(ONE), wrong, "dp=2")
    assert finding.contract == "bytes"
    assert said in str(finding)
    assert "mesh dp=2 step 0" in str(finding)


def test_digests_pieces_and_holes() -> None:
    good = delivery(ONE)
    other = StepDelivery(0, "d2", good.batches, good.state)
    assert compare(good, other, "m")[0].contract == "digest"
    assert "missing piece ('web', 0, 1" in str(compare(good, delivery([ONE[0][:2]]), "m")[0])
    cut = delivery(ONE, cp=2)
    hole = StepDelivery(0, "d1", cut.batches[:1], cut.state)
    with pytest.raises(ValueError, match="token 1 is on no cp rank"):
        reassemble(hole)
    assert "on no cp rank" in str(compare(good, hole, "m")[0])


def test_lost_repeated_and_split_samples() -> None:
    step = delivery(ONE)

    def findings(**changes: Any) -> list[Finding]:
        given: dict[str, Any] = {"skipped": [], "waiting": [], "state": step.state, "rows": ROWS, **changes}
        return check_once([step], given["skipped"], given["waiting"], given["state"], given["rows"], "m")

    ahead = copy.deepcopy(step.state)
    ahead["sources"]["web"]["position"] = 3
    assert "sample ('web', 0, 2) is lost" in str(findings(state=ahead, rows={"web": 9, "cap": 1})[0])
    assert findings(state=ahead, rows={"web": 9, "cap": 1}, skipped=[("web", 0, 2)]) == []
    assert findings(state=ahead, rows={"web": 9, "cap": 1}, waiting=[("web", 0, 2, 0, 4)]) == []
    assert "sample ('web', 0, 2) is in pieces" in str(
        findings(state=ahead, rows={"web": 9, "cap": 1}, waiting=[("web", 0, 2, 3, 4)])[0]
    )
    assert "comes 2 times" in str(findings(waiting=[("web", 0, 1, 0, 3)])[0])
    assert "beyond the state" in str(findings(waiting=[("cap", 0, 7, 0, 1)])[0])
    next_epoch = copy.deepcopy(step.state)
    next_epoch["sources"]["cap"] = {"epoch": 1, "position": 0}
    assert findings(state=next_epoch) == []


def test_readmitted_positions_come_once_more() -> None:
    step = delivery(ONE)
    web = ("web", 0, 1)

    def findings(
        again: list[Any], *, skipped: list[Any] | None = None, times: int = 1, steps: int = 1
    ) -> list[str]:
        found = check_once([step] * steps, skipped or [], again, step.state, ROWS, "m", [web] * times)
        return [str(finding) for finding in found]

    # Skipped, then delivered; delivered without loss, then delivered, of another length, in two pieces.
    assert findings([], skipped=[web]) == []
    assert findings([(*web, 0, 9)]) == []
    assert findings([(*web, 4, 2), (*web, 0, 4)]) == []
    assert findings([(*web, 0, 3)]) == []
    assert findings([], skipped=[web, web], times=2) == []
    # Lost, twice, with a hole; and never more than what was asked for.
    assert "readmitted 1 times, skipped 0, delivered 1" in findings([])[0]
    assert "readmitted 1 times, skipped 1, delivered 2" in findings([(*web, 0, 9)], skipped=[web])[0]
    assert "is in pieces [(0, 3), (4, 5)]" in findings([(*web, 4, 5)])[0]
    assert "piece ('web', 0, 0, 0, 5) comes 2 times" in findings([], steps=2)[0]


def test_caps() -> None:
    assert check_caps(delivery(ONE), "m", 16) == []
    assert "16 tokens, cap 15" in str(check_caps(delivery(ONE), "m", 15)[0])
    uneven = delivery(TWO)
    doubled = StepDelivery(0, "d", [*uneven.batches, uneven.batches[0]], uneven.state)
    assert "unequal microbatch counts" in str(check_caps(doubled, "m", 16)[0])


def test_the_size_of_a_step_in_samples() -> None:
    step = delivery(TWO, cp=2)
    assert check_size(step, "m", 3) == []
    assert str(check_size(step, "m", 2)[0]) == "size: mesh m step 0: 3 samples; global_batch is 2"
    assert "3 samples; global_batch is 4" in str(check_size(step, "m", 4)[0])
    ended = StepDelivery(0, "d", step.batches, {**step.state, "ended": True})
    assert check_size(ended, "m", 4) == []
    assert len(check_size(ended, "m", 2)) == 1
    assert len(check_size(StepDelivery(0, "d", [], ended.state), "m", 4)) == 1


SCHEDULE = [
    {"step": 0, "ramp": "none", "weights": {"web": 3.0, "cap": 1.0}},
    {"step": 4, "ramp": "linear", "weights": {"web": 1.0, "cap": 1.0}},
    {"step": 9, "ramp": "none", "weights": {"cap": 2.0}},
]


def test_weights() -> None:
    assert weights_at(SCHEDULE, 0) == {"web": 0.75, "cap": 0.25}
    assert weights_at(SCHEDULE, 2) == {"web": 0.625, "cap": 0.375}
    assert weights_at(SCHEDULE, 4) == weights_at(SCHEDULE, 8) == {"web": 0.5, "cap": 0.5}
    assert weights_at(SCHEDULE, 9) == {"cap": 1.0}


def test_a_source_that_falls_behind_is_named() -> None:
    def steps(*totals: tuple[int, int]) -> list[StepDelivery]:
        return [
            StepDelivery(number, "", [], {"sources": {"web": {"tokens": web}, "cap": {"tokens": cap}}})
            for number, (web, cap) in enumerate(totals)
        ]

    flat = [{"step": 0, "ramp": "none", "weights": {"web": 3.0, "cap": 1.0}}]
    findings, worst = check_mixture(steps((80, 20), (150, 50)), flat, "tokens", 10, "m")
    assert findings == []
    assert worst == pytest.approx(0.5)
    findings, _ = check_mixture(steps((80, 20), (170, 30)), flat, "tokens", 10, "m")
    assert "step 1" in str(findings[0])
    assert "target" in str(findings[0])
