"""Features against the formula written out: a Fourier transform by its sum, filters by a loop."""

import math

import numpy as np
import pytest

from dataloader_svc.media.mel import MelRule, log_mel, mel_filters
from tests.sounds import tone


def slaney_hertz(mel):
    return 200 / 3 * mel if mel < 15 else 1000 * 6.4 ** ((mel - 15) / 27)


def slaney_filter(number, bins, n_fft, rate):
    """The weight of each frequency in filter `number`, one by one."""
    top = 15 + 27 * math.log(rate / 2 / 1000, 6.4)
    low, middle, high = (slaney_hertz(top * k / (bins + 1)) for k in range(number, number + 3))
    weights = []
    for k in range(n_fft // 2 + 1):
        hertz = k * rate / n_fft
        up = (hertz - low) / (middle - low) if hertz <= middle else (high - hertz) / (high - middle)
        weights.append(max(0.0, up) * 2 / (high - low))
    return weights


def expected(samples, bins, n_fft=400, hop=160, rate=16000):
    """(frames, bins), as whisper/audio.py has it, without its library."""
    half = n_fft // 2
    reflected = [*samples[half:0:-1], *samples, *samples[-2 : -half - 2 : -1]]
    k, n = np.arange(half + 1)[:, None], np.arange(n_fft)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * n / n_fft)
    transform = np.exp(-2j * np.pi * k * n / n_fft) * hann
    filters = np.array([slaney_filter(number, bins, n_fft, rate) for number in range(bins)])
    columns = []
    for first in range(0, len(samples) // hop * hop, hop):
        power = np.abs(transform @ np.array(reflected[first : first + n_fft], float)) ** 2
        columns.append([math.log10(max(value, 1e-10)) for value in filters @ power])
    loudest = max(max(column) for column in columns)
    return np.array([[(max(value, loudest - 8) + 4) / 4 for value in column] for column in columns])


@pytest.mark.parametrize("bins", [80, 128])
def test_the_formula(bins):
    rng = np.random.default_rng(bins)
    samples = tone(4807, 16000) * np.linspace(0, 1, 4807, dtype=np.float32)
    samples += rng.normal(0, 1e-4, 4807).astype(np.float32)
    features = log_mel(samples, MelRule(bins=bins))
    assert features.dtype == np.float32
    assert features.shape == (30, bins)
    np.testing.assert_allclose(features, expected(samples.tolist(), bins), atol=2e-6)


def test_in_blocks_as_at_once(monkeypatch):
    samples = np.random.default_rng(1).normal(0, 0.1, 16000).astype(np.float32)
    whole = log_mel(samples, MelRule())
    monkeypatch.setattr("dataloader_svc.media.mel._BLOCK", 7)
    np.testing.assert_allclose(log_mel(samples, MelRule()), whole, atol=1e-6)


def test_a_tone_is_in_its_filter():
    rule = MelRule(bins=80)
    features = log_mel(tone(16000, 16000, hertz=1000), rule)
    # 1 kHz is mel 15; the scale ends at 15 + 27 log(8) / log(6.4) mel, in 81 steps.
    number = 15 / ((15 + 27 * math.log(8, 6.4)) / 81) - 1
    assert abs(features[50].argmax() - number) < 1
    assert features.max() - features.min() == 2.0, "80 dB are 8 decades, divided by 4"


def test_silence_is_one_value():
    np.testing.assert_array_equal(log_mel(np.zeros(1600, np.float32), MelRule()), np.full((10, 128), -1.5))


@pytest.mark.parametrize(("samples", "frames"), [(1, 0), (159, 0), (160, 1), (200, 1), (640, 4)])
def test_the_shortest_clips(samples, frames):
    assert log_mel(tone(samples, 16000), MelRule()).shape == (frames, 128)


def test_every_filter_but_the_lowest_hears_something():
    assert (mel_filters(128, 400, 16000).sum(axis=0) > 0).sum() >= 127
    with pytest.raises(ValueError, match="read-only"):
        mel_filters(80, 400, 16000)[0, 0] = 1


def test_whole_tokens():
    rule = MelRule(frames_per_token=4)
    assert [rule.num_frames(n) for n in (1, 640, 641, 480_000)] == [4, 4, 8, 3000]
    assert rule.num_tokens(3000) == 750
    with pytest.raises(ValueError, match="must be positive"):
        MelRule(bins=0)
