"""A step built in shared memory: the same arrays, all of them there, in no more memory than was reserved."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader_balancers.context_parallel import CUTS
from dataloader_svc.constructor import step as steps
from dataloader_svc.constructor.build import build_step, step_bytes
from dataloader_svc.constructor.collate import Form
from dataloader_svc.constructor.core import Rank
from dataloader_svc.constructor.segments import Segments
from dataloader_svc.constructor.sizes import bytes_by_rank, bytes_needed
from dataloader_svc.testing.scripted_roles import BINS, FRAMES_PER_TOKEN, Script, fetch_frame


def fetched_step(script: Script, number: int, dp: int):
    plan = steps.from_placed(script.place(script.records()[number], dp, 1, ["a", "b"]))
    fetched = []
    for loader in range(2):
        pieces = np.flatnonzero(plan.loader == loader)
        fetched.append((pieces, fetch_frame(script, steps.fetch_request(plan, pieces, 0))))
    return plan, fetched


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    dp=st.sampled_from([1, 2, 4]),
    cp=st.sampled_from([1, 2, 3]),
    layout=st.sampled_from(["packed", "padded"]),
    media=st.booleans(),
    sound=st.booleans(),
    pairs=st.booleans(),
    per_microbatch=st.sampled_from([1, 2]),
    number=st.integers(0, 2),
)
def test_a_step_is_the_same_in_shared_memory_and_within_its_bound(
    seed, dp, cp, layout, media, sound, pairs, per_microbatch, number
):
    script = Script(
        num_steps=3,
        seed=seed,
        layout=layout,
        media=media,
        sound=sound,
        pairs=pairs,
        per_microbatch=per_microbatch,
    )
    form = Form(
        *(script.layout, script.sequence_length, cp, 3 * script.patch**2, script.merge, script.pairs),
        mel_bins=BINS,
        frames_per_token=FRAMES_PER_TOKEN,
    )
    plan, fetched = fetched_step(script, number, dp)
    ranks = frozenset(range(dp))
    for rank, kept in bytes_by_rank(plan, ranks, form)[2].items():
        assert kept == bytes_needed(plan, frozenset([rank]), form)[1]
    cut = CUTS["per_sequence"]
    segments = Segments(2**30)
    for _ in range(2):  # the second time in pages that hold the first one's bytes
        expected = build_step(plan, fetched, ranks, form, cut)
        found = build_step(plan, fetched, ranks, form, cut, segments)
        assert expected.arenas == {}
        assert found.num_bytes <= step_bytes(plan, ranks, form)[1]
        for place in range(dp * cp):
            rank = Rank(place // cp, place % cp, 0, 0)
            ours, theirs = found.frame(rank, 1), expected.frame(rank, 1)
            shared = found.shared(rank.dp)
            assert shared is not None
            assert ours.arrays.keys() == theirs.arrays.keys()
            for name, array in ours.arrays.items():
                other = theirs.arrays[name]
                assert (array.dtype, array.shape) == (other.dtype, other.shape)
                assert np.array_equal(array, other), name
                assert array.base is shared
            assert ours.meta == theirs.meta
        held = segments.resident_bytes
        del found, ours, shared, array
    assert segments.resident_bytes == held  # the same memory, twice
