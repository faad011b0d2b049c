"""Trouble cases 16 to 23: clips that broke other loaders. What is right stands beside each in data/."""

from pathlib import Path

import numpy as np
import pytest

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.media import video
from dataloader_svc.media.sampling import VideoSampling

DATA = Path(__file__).parent / "data"
ALL = VideoSampling(max_frames=100)
RED, GREEN, BLUE, WHITE = (220, 30, 30), (30, 180, 30), (30, 30, 220), (240, 240, 240)


def read(name):
    return (DATA / name).read_bytes()


def shown(name, sampling=ALL, backend="auto"):
    """At its own size, which the probe must have said, as it must the number of frames."""
    found = video.probe(read(name), sampling)
    frames = video.decode(read(name), (found.height, found.width), sampling, backend=backend)
    assert frames.shape == (found.frames, found.height, found.width, 3)
    assert frames.dtype == np.uint8
    return frames, found


def refused(call, *args):
    with pytest.raises(BadSample) as bad:
        call(*args)
    return bad.value.reason


def assert_near(found, expected, tolerance):
    assert np.abs(np.asarray(found, int) - expected).max() <= tolerance, f"{found} is not near {expected}"


def grey(i):
    return round((4 + 3 * i) * 255 / 219)


def test_16_rotation():
    frames, _ = shown("16-video-rotation/rot90.mp4")
    assert frames.shape == (6, 64, 32, 3)
    for frame in frames:
        for place, colour in (((4, 4), BLUE), ((4, -4), RED), ((-4, 4), WHITE), ((-4, -4), GREEN)):
            assert_near(frame[place], colour, 10)


def test_17_without_video_stream():
    assert refused(video.probe, read("17-video-without-video-stream/sound_only.mp4"), ALL) is Reason.NO_STREAM


@pytest.mark.parametrize("backend", ["auto", "pyav"])
def test_19_odd_sizes(backend):
    frames, _ = shown("19-video-odd-size/w50_h34.mp4", backend=backend)
    assert frames.shape == (3, 34, 50, 3)
    assert_near(frames[0, 4, 49], GREEN, 12)
    assert_near(frames[0, 30, 49], WHITE, 12)
    frames, _ = shown("19-video-odd-size/odd_33x17.mkv", backend=backend)
    assert frames.shape == (3, 17, 33, 3)
    assert_near(frames[0, 2, 2], RED, 0)
    assert_near(frames[0, 14, 30], WHITE, 0)
    frames, _ = shown("19-video-odd-size/odd_35x19.mp4", backend=backend)
    assert frames.shape == (3, 19, 35, 3)
    assert_near(frames[0, 2, 2], RED, 12)


@pytest.mark.parametrize("name", ["moov_last_cut.mp4", "moov_first_cut.mp4"])
def test_20_truncated(name):
    data = read(f"20-video-truncated/{name}")
    assert refused(video.probe, data, ALL) is Reason.TRUNCATED
    assert refused(video.decode, data, (48, 64), ALL) is Reason.TRUNCATED


@pytest.mark.parametrize("backend", ["auto", "pyav"])
def test_22_single_key_frame(backend):
    name = "22-video-single-keyframe/one_key.mp4"
    frames, found = shown(name, backend=backend)
    assert found.frames == 60
    for i, frame in enumerate(frames):
        assert_near(frame, grey(i), 4)
    some, found = shown(name, VideoSampling(frames=8), backend=backend)
    wanted = [0, 8, 17, 25, 34, 42, 51, 59]
    np.testing.assert_array_equal(some, frames[wanted])
    assert found.timestamps == pytest.approx([i / 10 for i in wanted])


def test_23_reordered_late_start():
    frames, found = shown("23-video-reordered-late-start/bframes_from_5s.mkv")
    assert found.timestamps == pytest.approx([i / 10 for i in range(24)])
    for i, frame in enumerate(frames):
        assert_near(frame, grey(i), 4)
    ends, found = shown("23-video-reordered-late-start/bframes_from_5s.mkv", VideoSampling(frames=2))
    assert found.timestamps == pytest.approx([0, 2.3])
    assert_near(ends[0], grey(0), 4)
    assert_near(ends[1], grey(23), 4)
