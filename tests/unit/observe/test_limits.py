"""Limits recounted from what ranks got and from the log: a breach is named, whoever has which slice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dataloader_svc.observe.audit import RankBatch, StepDelivery
from dataloader_svc.observe.audit_log import Entry
from dataloader_svc.observe.limits import check_limits, log_findings

MERGE, FRAMES = 4, 2


def delivery(cp: int) -> StepDelivery:
    """Two sequences, of 12 and 10 tokens: pictures of 3 and of 2 tokens, then sound of 2 and a clip of 3."""
    arrays = {
        "span_source": np.zeros(3, int),
        "span_epoch": np.zeros(3, int),
        "span_position": np.arange(3),
        "span_start": np.zeros(3, int),
        "span_length": np.array([7, 5, 10]),
        "span_sequence": np.array([0, 0, 1]),
        "span_offset": np.array([0, 7, 12]),
    }
    media = {"image": ((1, 3), (8, 2)), "audio": ((13, 2),), "video": ((17, 3),)}
    batches = []
    for rank in range(cp):
        index = np.arange(rank, 22, cp)
        mine: dict[str, Any] = {**arrays, "cp_index": index}
        for kind, spans in media.items():
            place = np.concatenate([np.arange(start, start + tokens) for start, tokens in spans])
            local = np.searchsorted(index, place)
            local_there = (local < len(index)) & (index[np.minimum(local, len(index) - 1)] == place)
            tokens = [tokens for _, tokens in spans]
            mine[f"{kind}_index"] = np.flatnonzero(local_there)
            mine[f"{kind}_position"] = local[local_there]
            if kind == "audio":
                mine["audio_lengths"] = FRAMES * np.array(tokens)
            else:
                mine[f"{kind}_grid_thw"] = np.array([(1, MERGE, n) for n in tokens])
        if cp == 1:
            del mine["cp_index"]
        batches.append(RankBatch(0, rank, 0, mine, ["a"], MERGE, FRAMES))
    return StepDelivery(7, "digest", batches, {})


@pytest.mark.parametrize("cp", [1, 2, 3, 5])
def test_each_medium_counts_once_on_any_mesh(cp):
    fits = {"patches": 20, "frames": 4, "media": 2}
    assert check_limits(delivery(cp), "m", fits) == []
    assert check_limits(delivery(cp), "m", {}) == []
    said = [str(each) for name in fits for each in check_limits(delivery(cp), "m", {name: fits[name] - 1})]
    where = "limits: mesh m step 7: dp=0 microbatch=0 sequence="
    assert said == [
        f"{where}0: 20 patches, cap 19",
        f"{where}1: 4 frames, cap 3",
        f"{where}0: 2 media, cap 1",
        f"{where}1: 2 media, cap 1",
    ]


def test_a_medium_outside_of_all_pieces_is_no_medium_of_theirs():
    step = delivery(1)
    (batch,) = step.batches
    moved = {**batch.arrays, "span_offset": np.array([0, 7, 15])}
    with pytest.raises(ValueError, match="token 13 of a medium is in no piece"):
        check_limits(replace(step, batches=[replace(batch, arrays=moved)]), "m", {"media": 9})


def test_a_log_is_counted_by_its_columns():
    column = np.array([5, 4, 3, 2])
    held = {"tokens": column, "patches": 2 * column, "frames": 0 * column, "media": column - 2}
    entry = Entry(3, ("a",), np.zeros((5, 4), int), (), (), {}, np.array([0, 2, 2, 4]), held)
    fits = {"tokens": 9, "patches": 18, "media": 5}
    assert log_findings([entry], fits) == []
    for name, most in fits.items():
        (found,) = log_findings([entry], {name: most - 1})
        assert str(found) == f"limits: mesh log step 3: sequence=0: {most} {name}, cap {most - 1}"
    (last,) = log_findings([replace(entry, sequence_offsets=np.array([0, 0, 1, 4]))], {"tokens": 8})
    assert "sequence=2: 9 tokens, cap 8" in str(last)
