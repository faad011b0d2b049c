"""What a rank needs, by numbers alone, against what the constructor builds; and that too much is noticed."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader_svc.constructor.core import Rank
from dataloader_svc.observe.needed import Received, Shape, check_needed
from dataloader_svc.testing.scripted_roles import BINS, FRAMES_PER_TOKEN, Script
from tests.unit.constructor.test_placeholders import both


def delivered(script: Script, dp: int, cp: int, tp: int, pp: int, *, ensured: bool) -> list[Received]:
    """What every rank of a mesh gets of a step, as its client would count it."""
    _, _, *built = both(script, 0, dp, cp)
    step = built[int(ensured)]
    ranks = []
    for place in np.ndindex(dp, cp, tp, pp):
        frame = step.frame(Rank(*map(int, place)), pp)
        parts: list[dict[str, np.ndarray]] = [{} for _ in range(frame.meta["microbatches"])]
        for name, array in frame.arrays.items():
            number, _, field = name.partition("/")
            parts[int(number)][field] = array
        ranks.append(Received(*map(int, place), parts, frame.num_bytes))
    return ranks


def shape_of(script: Script, *, ensured: bool = False) -> Shape:
    sizes = (script.layout == "padded", script.merge, 3 * script.patch**2)
    return Shape(*sizes, BINS, FRAMES_PER_TOKEN, ensured)


@given(
    seed=st.integers(0, 10_000),
    layout=st.sampled_from(["packed", "padded"]),
    dp=st.sampled_from([1, 2, 4]),
    cp=st.sampled_from([1, 2]),
    tp=st.sampled_from([1, 2]),
    pp=st.sampled_from([1, 2, 4]),
    media=st.booleans(),
    sound=st.booleans(),
    ensured=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_ranks_of_any_mesh_get_what_they_need(seed, layout, dp, cp, tp, pp, media, sound, ensured):
    script = Script(num_steps=1, sequence_length=96, seed=seed, layout=layout, media=media, sound=sound)
    ranks = delivered(script, dp, cp, tp, pp, ensured=ensured)
    findings, totals = check_needed(ranks, pp, cp, shape_of(script, ensured=ensured), 0, "m")
    assert findings == []
    assert totals.total() == sum(rank.num_bytes for rank in ranks)
    wanted = {1: {"only"}, 2: {"first", "last"}, 4: {"first", "middle", "last"}}[pp]
    assert totals.keys() == wanted


def test_pixels_cross_as_bytes_and_only_to_the_first_stage():
    ranks = delivered(Script(num_steps=1, sequence_length=96), 1, 1, 1, 3, ensured=False)
    pixels = [
        sum(part["pixel_values"].nbytes for part in r.microbatches if "pixel_values" in part) for r in ranks
    ]
    assert pixels[0] > 0
    assert pixels[1:] == [0, 0]
    assert {part["pixel_values"].itemsize for part in ranks[0].microbatches} == {1}


@pytest.mark.parametrize(
    ("pp", "field", "said"),
    [
        (1, "input_ids", r"dp=0 cp=0 tp=0 pp=1: \d+ bytes of input_ids, 0 needed"),
        (0, "labels", r"pp=0: \d+ bytes of labels, 0 needed"),
        (2, "pixel_values", r"pp=2: \d+ bytes of pixel_values, 0 needed"),
    ],
)
def test_what_a_stage_has_no_use_for_is_noticed(pp, field, said):
    script = Script(num_steps=1, sequence_length=96)
    ranks = delivered(script, 1, 1, 1, 3, ensured=False)
    donor = next(rank.microbatches[0][field] for rank in ranks if field in rank.microbatches[0])
    first, *rest = ranks[pp].microbatches
    ranks[pp] = replace(ranks[pp], microbatches=[{**first, field: donor}, *rest])
    (finding,), _ = check_needed(ranks, 3, 1, shape_of(script), 5, "pp=3")
    assert re.search(said, str(finding))


def test_a_picture_that_no_token_of_the_slice_stands_for_is_noticed():
    script = Script(num_steps=1, sequence_length=96)
    ranks = delivered(script, 1, 1, 1, 1, ensured=False)
    first, *rest = ranks[0].microbatches
    more = {
        "pixel_values": np.concatenate([first["pixel_values"], first["pixel_values"][: script.merge**2]]),
        "image_grid_thw": np.concatenate([first["image_grid_thw"], [[1, script.merge, script.merge]]]),
    }
    ranks[0] = replace(ranks[0], microbatches=[{**first, **more}, *rest])
    (finding,), _ = check_needed(ranks, 1, 1, shape_of(script), 0, "m")
    assert "bytes of image_grid_thw" in str(finding)


def test_bytes_that_came_and_are_in_no_array_are_noticed():
    script = Script(num_steps=1, sequence_length=96)
    ranks = delivered(script, 1, 1, 1, 1, ensured=False)
    ranks[0] = replace(ranks[0], num_bytes=ranks[0].num_bytes + 64)
    (finding,), _ = check_needed(ranks, 1, 1, shape_of(script), 0, "m")
    assert f"{ranks[0].num_bytes} bytes came, {ranks[0].num_bytes - 64} needed" in str(finding)
