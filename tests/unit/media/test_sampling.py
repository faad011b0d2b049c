"""Choosing frames, against a slow search for the nearest."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataloader_svc.media.sampling import VideoSampling, evenly_spaced


def _nearest(stamps, count):
    """For each moment the nearest stamp, the earlier on a tie: exact fractions."""
    first, last = stamps[0], stamps[-1]
    chosen = []
    for i in range(count):
        share = Fraction(i, count - 1) if count > 1 else Fraction(1, 2)
        moment = first + share * (last - first)
        chosen.append(min(range(len(stamps)), key=lambda j: (abs(stamps[j] - moment), j)))
    return chosen


@given(st.sets(st.integers(-(10**12), 10**12), min_size=1, max_size=40), st.integers(1, 50))
def test_the_nearest_frame_to_each_moment(stamps, count):
    rising = sorted(stamps)
    assert evenly_spaced(np.array(rising), count).tolist() == _nearest(rising, count)


def test_first_and_last_of_a_constant_rate():
    assert evenly_spaced(np.arange(60) * 1024, 8).tolist() == [0, 8, 17, 25, 34, 42, 51, 59]
    assert evenly_spaced(np.arange(5), 5).tolist() == [0, 1, 2, 3, 4]
    assert evenly_spaced(np.arange(5), 1).tolist() == [2]
    assert evenly_spaced(np.array([77]), 1).tolist() == [0]


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (VideoSampling(frames=8), 8),
        (VideoSampling(frames=8, max_frames=4), 4),
        (VideoSampling(frames=80, max_frames=100), 60),  # no more than there are
        (VideoSampling(fps=2), 12),
        (VideoSampling(fps=0.01), 1),
        (VideoSampling(fps=30), 32),
        (VideoSampling(), 32),
        (VideoSampling(max_frames=100), 60),
    ],
)
def test_number_of_frames(sampling, expected):
    assert sampling.num_frames(available=60, duration_s=6.0) == expected


def test_key_frames():
    stamps, keys = np.arange(60) * 512, np.array([0, 12, 24, 50])
    every = VideoSampling(keyframes=True)
    assert every.choose(stamps, keys, 6.0).tolist() == [0, 12, 24, 50]
    assert VideoSampling(keyframes=True, max_frames=3).choose(stamps, keys, 6.0).tolist() == [0, 24, 50]
    assert VideoSampling(keyframes=True, max_frames=1).choose(stamps, keys, 6.0).tolist() == [24]
    none = np.empty(0, np.int64)
    assert every.choose(stamps, none, 6.0).tolist() == evenly_spaced(stamps, 32).tolist()
    assert VideoSampling(fps=1).choose(stamps, keys, 6.0).tolist() == evenly_spaced(stamps, 6).tolist()


@pytest.mark.parametrize(
    "bad",
    [{"fps": 1, "frames": 1}, {"fps": 1, "keyframes": True}, {"fps": 0}, {"frames": -1}, {"max_frames": 0}],
)
def test_impossible_sampling(bad):
    with pytest.raises(ValueError):
        VideoSampling(**bad)
