"""All ranks' batches put together are the step that was planned, on every mesh and in both layouts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader_balancers.context_parallel import CUTS
from dataloader_client._pb import plan_pb2
from dataloader_client.batch import FIELDS, check_fields
from dataloader_svc.constructor import step as steps
from dataloader_svc.constructor.collate import Form, collate, ragged
from dataloader_svc.constructor.sizes import bytes_needed
from dataloader_svc.constructor.slice import fields_of_stage, slices
from dataloader_svc.errors import DataError, PeerError
from dataloader_svc.testing.scripted_roles import Script, fetch_frame
from tests.unit.constructor.naive_batch import naive_microbatch

KINDS = (("image", "pixel_values"), ("video", "pixel_values_videos"))


def round_robin(cu_seqlens, cp):
    """A cut that scatters everything: nothing may depend on slices being contiguous."""
    return [np.arange(rank, cu_seqlens[-1], cp) for rank in range(cp)]


def form_of(script: Script, cp: int = 1) -> Form:
    width = 3 * script.patch**2
    return Form(script.layout, script.sequence_length, cp, width, script.merge, script.pairs)


def built(script: Script, placed: plan_pb2.PlacedPlan, loaders: int = 2):
    plan = steps.from_placed(placed)
    fetched = []
    for loader in range(loaders):
        pieces = np.flatnonzero(plan.loader == loader)
        fetched.append((pieces, fetch_frame(script, steps.fetch_request(plan, pieces, 0))))
    return plan, steps.gather(plan, fetched, 3 * script.patch**2)


def placed_step(script: Script, number: int, dp: int) -> plan_pb2.PlacedPlan:
    return script.place(script.records()[number], dp, 1, ["a", "b"])


def shaped(script: Script, tokens: list, cp: int) -> tuple[int, ...]:
    return (
        (len(tokens), len(tokens[0]) // cp) if script.layout == "padded" else (sum(map(len, tokens)) // cp,)
    )


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    dp=st.sampled_from([1, 2, 4]),
    cp=st.sampled_from([1, 2, 3, 4]),
    per_microbatch=st.sampled_from([1, 2]),
    layout=st.sampled_from(["packed", "padded"]),
    media=st.booleans(),
    number=st.integers(0, 2),
    cut=st.sampled_from([*CUTS.values(), round_robin]),
    uneven=st.booleans(),
    pairs=st.booleans(),
)
def test_all_slices_together_are_the_planned_step(
    seed, dp, cp, per_microbatch, layout, media, number, cut, uneven, pairs
):
    script = Script(
        num_steps=3,
        sequence_length=96,
        per_microbatch=per_microbatch,
        layout=layout,
        media=media,
        uneven=uneven,
        pairs=pairs,
        seed=seed,
    )
    dp = 3 if uneven and dp == 4 else dp
    placed = placed_step(script, number, dp)
    plan, samples = built(script, placed)
    form = form_of(script, cp)
    weights = 0.0
    kept = found_pairs = 0
    for dp_rank in range(dp):
        microbatches = collate(plan, samples, dp_rank, form)
        sequences = len(script.records()[number].sequence_offsets) - 1
        assert len(microbatches) == -(-sequences // (dp * per_microbatch))
        for index, microbatch in enumerate(microbatches):
            expected = naive_microbatch(script, placed, dp_rank, index, 1 if cp == 1 else 2 * cp)
            parts = slices(microbatch, form, cut)
            assert len(parts) == cp
            for arrays in parts:
                check_fields(arrays, layout)
                kept += sum(array.nbytes for array in arrays.values())
            weights += sum(float(arrays["loss_weight"].sum()) for arrays in parts)
            _compare(script, expected, parts, samples.presence)
            found_pairs += _compare_pairs(script, expected, parts)
            documents = [n for row in expected for n in _lengths(row, layout)]
            assert microbatch.max_seqlen == max(documents)
            assert microbatch.num_tokens == sum(bool(token.span) for row in expected for token in row)
    assert weights == samples.targets_sum
    assert found_pairs == samples.num_pairs
    assert kept <= bytes_needed(plan, frozenset(range(dp)), form)[1]


def _compare_pairs(script, expected, parts):
    """Number of pairs of a microbatch, every rank of which must have the same table of them."""
    flat = [token for row in expected for token in row]
    count = max((token.pair + 1) // 2 for token in flat)
    assert all(("pair_ids" in arrays) == ("pair_bounds" in arrays) == script.pairs for arrays in parts)
    for arrays in parts if script.pairs else ():
        index = arrays["cp_index"].reshape(-1).tolist() if len(parts) > 1 else range(len(flat))
        assert arrays["pair_ids"].shape == arrays["input_ids"].shape
        assert arrays["pair_ids"].reshape(-1).tolist() == [flat[i].pair for i in index]
        for pair, (chosen, rejected, end) in enumerate(arrays["pair_bounds"].tolist()):
            assert {token.pair for token in flat[chosen:rejected]} == {2 * pair + 1}
            assert {token.pair for token in flat[rejected:end]} == {2 * pair + 2}
        assert sum(end - start for start, _, end in arrays["pair_bounds"].tolist()) == sum(
            token.pair > 0 for token in flat
        )
        assert len(arrays["pair_bounds"]) == count
    return count


def _lengths(row, layout):
    numbers = [token.document for token in row if token.document or layout == "packed"]
    return [numbers.count(number) for number in set(numbers)]


def _compare(script, expected, parts, presence):
    cp = len(parts)
    flat = [token for row in expected for token in row]
    seen = [None] * len(flat)
    for arrays in parts:
        shape = shaped(script, expected, cp)
        index = arrays["cp_index"].reshape(-1).tolist() if cp > 1 else range(len(flat))
        for name, attribute in (
            ("input_ids", "id"),
            ("labels", "label"),
            ("loss_weight", "weight"),
            ("position_ids", "position"),
        ):
            assert arrays[name].shape == shape
            assert arrays[name].reshape(-1).tolist() == [getattr(flat[i], attribute) for i in index], name
        if script.layout == "padded":
            assert arrays["document_ids"].reshape(-1).tolist() == [flat[i].document for i in index]
            mask = [int(flat[i].document > 0) for i in index]
            assert arrays["attention_mask"].reshape(-1).tolist() == mask
            assert "cu_seqlens" not in arrays
        else:
            bounds, keys = [], [(r, t.document) for r, row in enumerate(expected) for t in row]
            for place, key in enumerate(keys):
                if place == 0 or key != keys[place - 1]:
                    bounds.append(place)
            assert arrays["cu_seqlens"].tolist() == [*bounds, len(flat)]
        for place in index:
            assert seen[place] is None, "two cp ranks hold one token"
            seen[place] = True
        _compare_media(script, flat, list(index), arrays, presence)
        _compare_spans(expected, arrays)
    assert all(seen)
    assert len({arrays["input_ids"].size for arrays in parts}) == 1


def _compare_media(script, flat, index, arrays, presence):
    for kind, (name, pixels) in enumerate(KINDS):
        assert (pixels in arrays) == presence[name]
        if pixels not in arrays:
            continue
        wanted = [(place, flat[i]) for place, i in enumerate(index) if flat[i].kind == kind]
        assert arrays[f"{name}_position"].tolist() == [place for place, _ in wanted]
        merged = arrays[pixels].reshape(-1, script.merge**2 * 3 * script.patch**2)
        got = [merged[row].tobytes() for row in arrays[f"{name}_index"].tolist()]
        assert got == [token.patches for _, token in wanted]
        # Only the media that this slice touches, each once, each whole.
        grid = arrays[f"{name}_grid_thw"]
        assert len(grid) == len({token.medium for _, token in wanted})
        assert int(grid.prod(axis=1).sum()) == len(arrays[pixels])
        if name == "video":
            times = {token.medium: token.times for _, token in wanted}  # in the order of the tokens
            assert arrays["video_timestamps"].tolist() == [time for one in times.values() for time in one]
            assert len(arrays["video_timestamps"]) == grid[:, 0].sum()


def _compare_spans(expected, arrays):
    spans = []
    offset, before = 0, ()
    for number, row in enumerate(expected):
        for place, token in enumerate(row):
            if token.span and token.span != before:
                spans.append((*token.span, number, offset + place))
            before = token.span
        offset += len(row)
    names = ("source", "epoch", "position", "start", "length", "sequence", "offset")
    rows = list(zip(*(arrays[f"span_{name}"].tolist() for name in names), strict=True))
    assert rows == [(("web", "captions").index(source), *rest) for source, *rest in spans]


def test_without_cp_nothing_is_copied_after_collation():
    script = Script()
    plan, samples = built(script, placed_step(script, 0, 2))
    microbatch = collate(plan, samples, 0, form_of(script))[1]
    (arrays,) = slices(microbatch, form_of(script), round_robin)
    assert all(
        np.shares_memory(arrays[name], microbatch.arrays[name]) for name in arrays if arrays[name].size
    )


def test_a_field_is_allocated_once_for_all_microbatches():
    script = Script()
    plan, samples = built(script, placed_step(script, 0, 1))
    microbatches = collate(plan, samples, 0, form_of(script))
    for name in ("input_ids", "labels", "pixel_values", "image_grid_thw"):
        assert len({id(m.arrays[name].base) for m in microbatches}) == 1, name


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("cp", [1, 2])
def test_a_rank_without_documents_gets_one_padding_document(layout, cp):
    script = Script(num_steps=1, layout=layout)
    plan, samples = built(script, placed_step(script, 0, 8))
    (microbatch,) = collate(plan, samples, 7, form_of(script, cp))
    for arrays in slices(microbatch, form_of(script, cp), round_robin):
        assert arrays["input_ids"].size >= 1
        assert arrays["loss_weight"].sum() == 0
        assert (arrays["labels"] == -100).all()
        assert arrays["pixel_values"].shape == (0, 12)
        assert arrays["image_grid_thw"].shape == (0, 3)
    assert microbatch.num_tokens == 0


def test_a_dp_rank_that_no_sequence_went_to_still_runs_every_microbatch():
    script = Script()
    placed = placed_step(script, 0, 2)
    placed.dp_rank[:] = [0] * 8
    plan, samples = built(script, placed)
    assert [m.num_tokens for m in collate(plan, samples, 1, form_of(script))] == [0] * 4


def test_undecodable_samples_keep_their_tokens_and_lose_their_targets():
    script = Script(bad_every=1)
    plan, samples = built(script, placed_step(script, 0, 1))
    assert {bad.source for bad in samples.bad} == {"captions"}
    assert len(samples.bad) == int((plan.source == 1).sum())
    for microbatch in collate(plan, samples, 0, form_of(script)):
        arrays = microbatch.arrays
        for source, offset, length in zip(
            arrays["span_source"], arrays["span_offset"], arrays["span_length"], strict=True
        ):
            if source == 1:
                assert (arrays["labels"][offset : offset + length] == -100).all()
        assert len(arrays["image_position"]) == len(arrays["image_index"])


def test_stages_get_what_they_need():
    script = Script()
    plan, samples = built(script, placed_step(script, 0, 1))
    arrays = collate(plan, samples, 0, form_of(script))[0].arrays
    names = {field.name: field.stages for field in FIELDS}
    first = set(fields_of_stage(arrays, first=True, last=False))
    middle = set(fields_of_stage(arrays, first=False, last=False))
    last = set(fields_of_stage(arrays, first=False, last=True))
    assert {"input_ids", "pixel_values"} <= first
    assert "labels" not in first
    assert last - middle == {"labels", "loss_weight"}
    assert middle == {name for name in arrays if names[name] == "all"}
    assert set(fields_of_stage(arrays, first=True, last=True)) == set(arrays)


def test_a_sample_that_changed_since_it_was_planned_is_named():
    script = Script()
    placed = placed_step(script, 0, 1)
    placed.record.length[3] += 1
    with pytest.raises(DataError, match=r"(web|captions)/0/\d+ was planned with \d+ tokens .* changed"):
        built(script, placed)
    placed = placed_step(script, 0, 1)
    placed.record.patches[1] += 4
    with pytest.raises(DataError, match="captions/0/0 was planned with .* patches"):
        built(script, placed)


def test_answers_that_are_none_are_the_peers_fault():
    script = Script()
    plan = steps.from_placed(placed_step(script, 0, 1))
    pieces = np.arange(plan.num_pieces)
    frame = fetch_frame(script, steps.fetch_request(plan, pieces, 0))
    for broken in (
        {name: array for name, array in frame.arrays.items() if name != "ok"},
        {**frame.arrays, "ok": frame.arrays["ok"][1:]},
        {**frame.arrays, "pixels": frame.arrays["pixels"][1:]},
        {**frame.arrays, "pixels": frame.arrays["pixels"].reshape(-1)[1:]},
        {**frame.arrays, "frame_times": frame.arrays["frame_times"][1:]},
    ):
        with pytest.raises(PeerError):
            steps.gather(plan, [(pieces, replace(frame, arrays=broken))], 12)
    placed = placed_step(script, 0, 1)
    placed.piece_loader.pop()
    with pytest.raises(PeerError, match="differ in length"):
        steps.from_placed(placed)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=8))
def test_ragged_lists_the_runs(runs):
    expected = [start + i for start, count in runs for i in range(count)]
    starts = np.array([start for start, _ in runs], np.int64)
    counts = np.array([count for _, count in runs], np.int64)
    assert ragged(starts, counts).tolist() == expected


def test_a_masked_piece_is_asked_for_as_such_and_may_have_lost_its_pictures():
    script = Script(media=True)
    placed = placed_step(script, 0, 1)
    number = next(i for i, patches in enumerate(placed.record.patches) if patches)
    placed.masked.append(number)
    plan = steps.from_placed(placed)
    pieces = np.arange(plan.num_pieces)
    request = steps.fetch_request(plan, pieces[::-1], 0)
    assert list(request.masked) == [plan.num_pieces - 1 - number]
    frame = fetch_frame(script, steps.fetch_request(plan, pieces, 0))
    low, high = frame.arrays["media_offsets"][number : number + 2].tolist()
    kept = np.ones(int(frame.arrays["media_offsets"][-1]), np.bool_)
    kept[low:high] = False
    patches = frame.arrays["grid_thw"].prod(axis=1)
    frame.arrays["pixels"] = frame.arrays["pixels"][np.repeat(kept, patches)]
    for name in ("media_kind", "media_start", "grid_thw"):
        frame.arrays[name] = frame.arrays[name][kept]
    frame.arrays["media_offsets"][number + 1 :] -= high - low
    frame.arrays["ok"][number] = 0
    samples = steps.gather(plan, [(pieces, frame)], 3 * script.patch**2)
    assert not samples.targets[number].any()
    assert not samples.usable[number]
    placed.masked.pop()
    with pytest.raises(DataError, match="was planned with"):
        steps.gather(steps.from_placed(placed), [(pieces, frame)], 3 * script.patch**2)


def test_a_mask_beyond_the_plan():
    placed = placed_step(Script(), 0, 1)
    placed.masked.append(10_000)
    with pytest.raises(PeerError, match="masks piece 10000"):
        steps.from_placed(placed)


@given(
    seed=st.integers(0, 10_000),
    dp=st.sampled_from([1, 2]),
    cp=st.sampled_from([1, 2]),
    per_microbatch=st.sampled_from([1, 3]),
    media=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_rows_end_with_the_longest_of_their_microbatch(seed, dp, cp, per_microbatch, media):
    """What rows lack beside those of sequence_length is padding, and no row could be shorter."""
    script = Script(
        num_steps=1,
        sequence_length=96,
        per_microbatch=per_microbatch,
        layout="padded",
        media=media,
        uneven=True,
        seed=seed,
    )
    plan, samples = built(script, placed_step(script, 0, dp))
    full = form_of(script, cp)
    form, kept = replace(full, to_longest=True), 0
    multiple = 1 if cp == 1 else 2 * cp
    for dp_rank in range(dp):
        both = zip(collate(plan, samples, dp_rank, form), collate(plan, samples, dp_rank, full), strict=True)
        for short, long in both:
            (one,), (other,) = (slices(each, replace(form, cp=1), round_robin) for each in (short, long))
            check_fields(one, "padded")
            width = one["input_ids"].shape[1]
            used = int((one["attention_mask"] != 0).sum(axis=1).max())
            assert width == -(-used // multiple) * multiple
            for name in ("input_ids", "labels", "loss_weight", "attention_mask", "position_ids"):
                np.testing.assert_array_equal(one[name], other[name][:, :width], err_msg=name)
            assert not other["attention_mask"][:, width:].any()
            parts = slices(short, form, round_robin)
            kept += sum(array.nbytes for arrays in parts for array in arrays.values())
    ranks = frozenset(range(dp))
    assert kept <= bytes_needed(plan, ranks, form)[1] <= bytes_needed(plan, ranks, full)[1]
