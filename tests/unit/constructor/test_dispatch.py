"""Media encoded elsewhere come home row for row: an all-to-all brings what a rank would have encoded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader_balancers.context_parallel import CUTS
from dataloader_client.batch import check_fields
from dataloader_svc.constructor import step as steps
from dataloader_svc.constructor.build import build_step, step_bytes
from dataloader_svc.constructor.collate import Form
from dataloader_svc.constructor.segments import Segments
from dataloader_svc.constructor.sizes import bytes_needed
from dataloader_svc.errors import PeerError
from dataloader_svc.testing.scripted_roles import BINS, FRAMES_PER_TOKEN, Script, fetch_frame

PIXELS = {"image": "pixel_values", "video": "pixel_values_videos", "audio": "audio_features"}


def form_of(script: Script, dp: int, cp: int, *, dispatched: bool, **more) -> Form:
    ranks = dp * cp if dispatched else 0
    shape = (script.layout, script.sequence_length, cp, 3 * script.patch**2, script.merge, script.pairs)
    return Form(*shape, mel_bins=BINS, frames_per_token=FRAMES_PER_TOKEN, encoder_ranks=ranks, **more)


def made(
    script: Script, placed, dp: int, cp: int, cut, *, dispatched: bool, served=None, arenas=None, **more
):
    """By (dp, cp): arrays of each microbatch; built for all ranks or those `served`."""
    plan = steps.from_placed(placed)
    pieces = np.arange(plan.num_pieces)
    fetched = [(pieces, fetch_frame(script, steps.fetch_request(plan, pieces, 0)))]
    form = form_of(script, dp, cp, dispatched=dispatched, **more)
    return build_step(plan, fetched, served or range(dp), form, cut, arenas).batches


def embeddings(arrays, kind, script):
    """(E, bytes): what an encoder that changes nothing makes, a row for each token."""
    rows = FRAMES_PER_TOKEN if kind == "audio" else script.merge**2
    pixels = np.ascontiguousarray(arrays[PIXELS[kind]])
    return pixels.view(np.uint8).reshape(len(pixels) // rows, rows * pixels.shape[1] * pixels.itemsize)


def exchanged(batches, ranks, number, kind, script):
    """By rank: the rows that an all-to-all gives it, from what each says that it sends and gets."""
    sent = []
    for rank in ranks:
        arrays = batches[rank][number]
        made = embeddings(arrays, kind, script)
        counts = arrays[f"{kind}_send_counts"]
        order = arrays.get(f"{kind}_send_index", np.arange(counts.sum()))
        assert len(order) == counts.sum() <= len(made)
        sent.append(np.split(made[order], np.cumsum(counts)[:-1]))
    got = {}
    for to, rank in enumerate(ranks):
        expected = batches[rank][number][f"{kind}_receive_counts"]
        assert [len(each[to]) for each in sent] == expected.tolist()
        got[rank] = np.concatenate([each[to] for each in sent])
    return got


@settings(max_examples=80, deadline=None)
@given(
    data=st.data(),
    seed=st.integers(0, 10_000),
    dp=st.sampled_from([1, 2, 4]),
    cp=st.sampled_from([1, 2, 3]),
    layout=st.sampled_from(["packed", "padded"]),
    cut=st.sampled_from(
        [*CUTS.values(), lambda bounds, cp: [np.arange(r, bounds[-1], cp) for r in range(cp)]]
    ),
    pairs=st.booleans(),
    sound=st.booleans(),
    longest=st.booleans(),
    ensure=st.booleans(),
)
def test_what_comes_is_what_a_rank_would_have_encoded(
    data, seed, dp, cp, layout, cut, pairs, sound, longest, ensure
):
    script = Script(
        num_steps=1, sequence_length=96, layout=layout, media=True, pairs=pairs, sound=sound, seed=seed
    )
    placed = script.place(script.records()[0], dp, 1, ["a"])
    more = {"to_longest": longest, "ensure_modality": ensure}
    own = made(script, placed, dp, cp, cut, dispatched=False, **more)
    count, held = len(placed.record.source), np.array(placed.record.patches) + np.array(placed.record.frames)
    draws = data.draw(st.lists(st.integers(0, dp * cp - 1), min_size=count, max_size=count))
    placed.encoder_rank.extend(np.where(held > 0, draws, 0).tolist())
    there = made(script, placed, dp, cp, cut, dispatched=True, **more)
    ranks = sorted(own)
    plan = steps.from_placed(placed)
    for number in range(len(own[0, 0])):
        for rank in ranks:
            check_fields(there[rank][number], layout)
            media = ("image_", "video_", "audio_", "pixel_")
            for name, array in own[rank][number].items():
                if not name.startswith(media):
                    assert np.array_equal(array, there[rank][number][name]), name
        for kind, pixels in PIXELS.items():
            present = [pixels in own[rank][number] for rank in ranks]
            assert [pixels in there[rank][number] for rank in ranks] == present
            if not any(present):
                continue
            got = exchanged(there, ranks, number, kind, script)
            for rank in ranks:
                mine, theirs = there[rank][number], own[rank][number]
                assert mine[f"{kind}_position"].tolist() == theirs[f"{kind}_position"].tolist()
                expected = embeddings(theirs, kind, script)[theirs[f"{kind}_index"]]
                assert np.array_equal(got[rank][mine[f"{kind}_index"]], expected)
                assert ensure <= (len(mine[pixels]) > 0)
    # Each piece once, on the rank that the plan says: nothing comes twice, not even with cp.
    encoded = np.zeros(dp * cp, np.int64)
    for place, rank in enumerate(ranks):
        for arrays in there[rank]:
            for kind in PIXELS:
                encoded[place] += int(arrays.get(f"{kind}_send_counts", np.zeros(1)).sum())
    rows = plan.patches // script.merge**2 + plan.frames // FRAMES_PER_TOKEN
    assert encoded.tolist() == np.bincount(plan.encoder_rank, rows, dp * cp).tolist()
    form = form_of(script, dp, cp, dispatched=True, **more)
    kept = {id(array): array.nbytes for rank in ranks for part in there[rank] for array in part.values()}
    assert sum(kept.values()) <= bytes_needed(plan, frozenset(range(dp)), form)[1]


def scattered(script: Script, dp: int, cp: int):
    placed = script.place(script.records()[0], dp, 1, ["a"])
    held = np.array(placed.record.patches) > 0
    placed.encoder_rank.extend(np.where(held, np.arange(len(held)) % (dp * cp), 0).tolist())
    return placed


@pytest.mark.parametrize("cp", [1, 2])
def test_constructors_that_serve_some_ranks_agree_with_one_that_serves_all(cp):
    script = Script(num_steps=1, sequence_length=96, media=True, seed=5)
    placed, cut = scattered(script, 4, cp), CUTS["per_document"]
    whole = made(script, placed, 4, cp, cut, dispatched=True)
    for served in ([0, 2], [1, 3]):
        part = made(script, placed, 4, cp, cut, dispatched=True, served=served)
        assert sorted({dp for dp, _ in part}) == served
        for rank, microbatches in part.items():
            for one, other in zip(microbatches, whole[rank], strict=True):
                assert one.keys() == other.keys()
                assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("cp", [1, 2])
def test_in_shared_memory_all_of_a_rank_has_room(cp):
    script = Script(num_steps=1, sequence_length=96, media=True, seed=6)
    placed, cut = scattered(script, 2, cp), CUTS["per_document"]
    plan, segments = steps.from_placed(placed), Segments(1 << 26)
    pieces = np.arange(plan.num_pieces)
    fetched = [(pieces, fetch_frame(script, steps.fetch_request(plan, pieces, 0)))]
    form = form_of(script, 2, cp, dispatched=True)
    built = build_step(plan, fetched, range(2), form, cut, segments)
    assert all(built.shared(dp) is not None for dp in range(2))
    assert built.num_bytes <= step_bytes(plan, frozenset(range(2)), form)[1]
    plain = made(script, placed, 2, cp, cut, dispatched=True)
    for rank, parts in plain.items():
        for one, other in zip(parts, built.batches[rank], strict=True):
            assert all(np.array_equal(one[name], other[name]) for name in one)
    del built
    segments.close()


def test_a_plan_without_encoder_ranks_is_refused():
    script = Script(num_steps=1, sequence_length=96, media=True)
    placed = script.place(script.records()[0], 2, 1, ["a"])
    with pytest.raises(PeerError, match="its plan has no encoder ranks"):
        made(script, placed, 2, 1, CUTS["per_document"], dispatched=True)


def test_a_plan_with_too_few_is_refused():
    script = Script(num_steps=1, sequence_length=96, media=True)
    placed = script.place(script.records()[0], 2, 1, ["a"])
    placed.encoder_rank.append(1)
    with pytest.raises(PeerError, match="differ in length"):
        steps.from_placed(placed)
