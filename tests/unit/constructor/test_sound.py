"""Sound in batches: behind every placeholder stand its document's mel frames, on every mesh and slice."""

import numpy as np
import pytest

from dataloader_balancers.context_parallel import CUTS
from dataloader_client.batch import check_fields
from dataloader_svc.constructor import step as steps
from dataloader_svc.constructor.collate import Form, collate
from dataloader_svc.constructor.sizes import bytes_needed
from dataloader_svc.constructor.slice import slices
from dataloader_svc.errors import DataError, PeerError
from dataloader_svc.testing.scripted_roles import (
    BINS,
    FRAMES_PER_TOKEN,
    MEDIA_TOKENS,
    SOURCES,
    Script,
    fetch_frame,
)

AUDIO_TOKEN = MEDIA_TOKENS[2]


def script_of(layout="packed", **changes):
    return Script(num_steps=3, sequence_length=96, sound=True, layout=layout, **changes)


def form_of(script, cp):
    width = 3 * script.patch**2
    sizes = (script.layout, script.sequence_length, cp, width, script.merge)
    return Form(*sizes, mel_bins=BINS, frames_per_token=FRAMES_PER_TOKEN)


def fetched(script, plan):
    pieces = np.arange(plan.num_pieces)
    return pieces, fetch_frame(script, steps.fetch_request(plan, pieces, 0))


def gathered(script, number, dp):
    plan = steps.from_placed(script.place(script.records()[number], dp, 1, ["a"]))
    return plan, steps.gather(plan, [fetched(script, plan)], 3 * script.patch**2, BINS)


def expected_frames(script, arrays, total):
    """(total, frames_per_token, bins) of a whole microbatch, NaN where no sound is, from names alone."""
    frames = np.full((total, FRAMES_PER_TOKEN, BINS), np.nan, np.float32)
    spans = zip(
        *(arrays[f"span_{name}"].tolist() for name in ("source", "position", "start", "offset")), strict=True
    )
    for source, position, start, offset in spans:
        document = script.document(SOURCES[source], 0, position)
        for medium in document.media:
            if medium.kind == 2:
                grouped = medium.features.reshape(-1, FRAMES_PER_TOKEN, BINS) * document.ok
                first = offset + medium.start - start
                frames[first : first + len(grouped)] = grouped
    return frames


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize(("dp", "cp"), [(1, 1), (2, 1), (4, 2), (1, 4)])
def test_every_placeholder_has_its_frames(layout, dp, cp):
    script = script_of(layout)
    form = form_of(script, cp)
    heard = planned = 0
    for number in range(3):
        plan, samples = gathered(script, number, dp)
        assert samples.presence["audio"]
        planned += int(plan.frames.sum()) // FRAMES_PER_TOKEN
        kept = 0
        for rank in range(dp):
            for microbatch in collate(plan, samples, rank, form):
                expected = expected_frames(script, microbatch.arrays, int(microbatch.rows[-1]))
                for arrays in slices(microbatch, form, CUTS["per_document"]):
                    check_fields(arrays, layout)
                    kept += sum(array.nbytes for array in arrays.values())
                    heard += compare(arrays, expected)
        assert kept <= bytes_needed(plan, frozenset(range(dp)), form)[1]
    assert heard == planned > 30


def compare(arrays, expected):
    """Placeholders of a rank's arrays, each held against what is expected."""
    ids, lengths = arrays["input_ids"].reshape(-1), arrays["audio_lengths"]
    index, position = arrays["audio_index"], arrays["audio_position"]
    np.testing.assert_array_equal(position, np.flatnonzero(ids == AUDIO_TOKEN))
    assert (lengths % FRAMES_PER_TOKEN == 0).all()
    assert lengths.sum() == len(arrays["audio_features"])
    place = arrays["cp_index"].reshape(-1)[position] if "cp_index" in arrays else position
    embedded = arrays["audio_features"].reshape(-1, FRAMES_PER_TOKEN, BINS)[index]
    np.testing.assert_array_equal(embedded, expected[place])
    touched = np.searchsorted(np.cumsum(lengths), index * FRAMES_PER_TOKEN, side="right")
    assert set(touched.tolist()) == set(range(len(lengths))), "no clip that the rank has no token of"
    return len(position)


def test_a_step_without_sound_has_no_fields_of_it():
    script = script_of(media=False)
    plan, samples = gathered(script, 0, 1)
    assert samples.presence["audio"] is False
    assert not any(
        name.startswith("audio") for name in collate(plan, samples, 0, form_of(script, 1))[0].arrays
    )


def test_a_clip_of_another_length_than_planned_is_named():
    script = script_of()
    plan = steps.from_placed(script.place(script.records()[0], 1, 1, ["a"]))
    pieces, frame = fetched(script, plan)
    piece = int(np.flatnonzero(plan.frames)[0])
    plan.frames[piece] += 4
    with pytest.raises(DataError, match=f"was planned with {plan.frames[piece]} mel frames and now has"):
        steps.gather(plan, [(pieces, frame)], 3 * script.patch**2, BINS)
    plan.frames[piece] -= 4
    frame.arrays["features"] = frame.arrays["features"][:-1]
    with pytest.raises(PeerError, match="mel frames for clips of"):
        steps.gather(plan, [(pieces, frame)], 3 * script.patch**2, BINS)


def test_a_plan_of_before_there_was_sound():
    script = script_of(media=False)
    placed = script.place(script.records()[0], 1, 1, ["a"])
    del placed.record.frames[:]
    plan = steps.from_placed(placed)
    assert plan.frames.tolist() == [0] * plan.num_pieces
