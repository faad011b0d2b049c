"""Trouble cases 25 and 26: sound that broke other loaders. What is right stands beside each in data/."""

from pathlib import Path

import numpy as np
import pytest

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.media import sound
from dataloader_svc.media.audio import AudioReader
from dataloader_svc.media.mel import MelRule, log_mel

DATA = Path(__file__).parent / "data"
RATE = 8000
READER = AudioReader(MelRule(sample_rate=RATE), max_source_seconds=60)


def read(name):
    return (DATA / name).read_bytes()


def stored(name):
    """(channels, samples), as many as the packets say."""
    data = read(name)
    with sound.opened(data) as container:
        samples = np.concatenate(list(sound.decoded(container)), axis=1)
    assert sound.read_length(data) == sound.Sound("pcm_s16le", RATE, samples.shape[1])
    return samples


def mono(name):
    return np.concatenate(list(sound.mono(iter([stored(name)]))))


@pytest.mark.parametrize(
    ("name", "channels", "mixed"),
    [
        ("mono.wav", [0.25], 0.25),
        ("stereo.wav", [0.5, -0.5], 0.0),
        ("six.wav", [0.0, 0.1, 0.2, 0.3, 0.4, 0.5], 0.25),
    ],
)
def test_25_channel_counts(name, channels, mixed):
    name = f"25-audio-channel-counts/{name}"
    samples = stored(name)
    assert samples.shape == (len(channels), 4000)
    np.testing.assert_allclose(samples, np.repeat(np.array([channels]).T, 4000, axis=1), atol=0.001)
    np.testing.assert_allclose(mono(name), np.full(4000, mixed), atol=0.001)
    assert READER.probe(read(name)).frames == 28  # 4000 / 160 = 25, filled up to tokens of 4
    features = READER.features(read(name), [(0, 28)])
    np.testing.assert_array_equal(features, log_mel(np.pad(mono(name), (0, 480)), READER.rule))


@pytest.mark.parametrize(("name", "samples", "frames"), [("streamed.wav", 8000, 52), ("cut.wav", 4000, 28)])
def test_26_length_is_that_of_the_bytes_present(name, samples, frames):
    name = f"26-audio-broken-headers/{name}"
    np.testing.assert_array_equal(stored(name), np.full((1, samples), 0.125, np.float32))
    assert READER.probe(read(name)).frames == frames
    assert READER.features(read(name), [(0, frames)]).shape == (frames, 128)


def test_26_without_samples():
    with pytest.raises(BadSample, match="holds no samples") as bad:
        READER.probe(read("26-audio-broken-headers/zero.wav"))
    assert bad.value.reason is Reason.BAD_SHAPE
