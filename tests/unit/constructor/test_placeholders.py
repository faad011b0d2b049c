"""`ensure_modality`: a rank without media gets one of no weight; nothing else of its batch changes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader_client.batch import check_fields
from dataloader_svc.constructor import step as steps
from dataloader_svc.constructor.build import build_step, step_bytes
from dataloader_svc.constructor.collate import Form
from dataloader_svc.constructor.core import Rank
from dataloader_svc.constructor.segments import Segments
from dataloader_svc.testing.scripted_roles import BINS, FRAMES_PER_TOKEN, Script, fetch_frame
from tests.unit.constructor.test_collate import round_robin

ROWS = {"image": "image_grid_thw", "video": "video_grid_thw", "audio": "audio_lengths"}
PAYLOAD = {"image": "pixel_values", "video": "pixel_values_videos", "audio": "audio_features"}


def both(script, number, dp, cp, segments=None):
    """(plan, form, the step without placeholders, the step with them)."""
    sizes = (script.layout, script.sequence_length, cp, 3 * script.patch**2, script.merge)
    form = Form(*sizes, mel_bins=BINS, frames_per_token=FRAMES_PER_TOKEN)
    plan = steps.from_placed(script.place(script.records()[number], dp, 1, ["a"]))
    pieces = np.arange(plan.num_pieces)
    fetched = [(pieces, fetch_frame(script, steps.fetch_request(plan, pieces, 0)))]
    ensured = replace(form, ensure_modality=True)
    ranks = range(dp)
    plain = build_step(plan, fetched, ranks, form, round_robin)
    return plan, ensured, plain, build_step(plan, fetched, ranks, ensured, round_robin, segments)


@given(
    seed=st.integers(0, 10_000),
    layout=st.sampled_from(["packed", "padded"]),
    dp=st.sampled_from([1, 2, 4]),
    cp=st.sampled_from([1, 2]),
    media=st.booleans(),
    sound=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_only_empty_kinds_change(seed, layout, dp, cp, media, sound):
    script = Script(num_steps=1, sequence_length=96, seed=seed, layout=layout, media=media, sound=sound)
    plan, form, plain, ensured = both(script, 0, dp, cp)
    assert ensured.meta == plain.meta  # presence stays what the step really has
    assert ensured.num_bytes <= step_bytes(plan, frozenset(range(dp)), form)[1]
    for place, parts in plain.batches.items():
        for before, after in zip(parts, ensured.batches[place], strict=True):
            check_fields(after, layout)
            assert before.keys() == after.keys()
            changed = {name for name in before if not np.array_equal(before[name], after[name])}
            for kind, present in plain.meta["presence"].items():
                assert (ROWS[kind] in after) == present
                if present and not len(before[ROWS[kind]]):
                    names = {ROWS[kind], PAYLOAD[kind]} | ({"video_timestamps"} if kind == "video" else set())
                    assert names <= changed
                    changed -= names
                    assert len(after[ROWS[kind]]) == 1
                    assert not after[PAYLOAD[kind]].any()
                    assert not len(after[f"{kind}_index"]) + len(after[f"{kind}_position"])
                    tokens = FRAMES_PER_TOKEN if kind == "audio" else script.merge**2
                    assert len(after[PAYLOAD[kind]]) == after[ROWS[kind]].prod() == tokens
            assert not changed


@pytest.mark.parametrize("cp", [1, 2])
def test_placeholders_lie_in_shared_memory_and_are_needed(cp):
    """Some rank of these steps has none: the property above is not empty."""
    given_one = 0
    script = Script(num_steps=3, sequence_length=96, sound=True)
    for number in range(3):
        _, _, plain, ensured = both(script, number, 4, cp, Segments(2**30))
        for dp in range(4):
            frame = ensured.frame(Rank(dp, 0, 0, 0), 1)
            shared = ensured.shared(dp)
            assert shared is not None
            assert all(array.base is shared for array in frame.arrays.values())
            for part in plain.batches[dp, 0]:
                given_one += sum(not len(part[rows]) for rows in ROWS.values() if rows in part)
    assert given_one
