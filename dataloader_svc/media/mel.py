"""Sound to log-mel features in the layout of Whisper: pure, from mono samples alone.

What Whisper's encoder was trained on (Radford et al. 2022, arXiv 2212.04356, section 2.2;
`log_mel_spectrogram` in openai/whisper, whisper/audio.py), and what Qwen2-Audio and others took over:

    samples, reflected by n_fft/2 at both ends -> windows of n_fft, `hop` apart, times a periodic Hann window
    -> squared magnitude of the Fourier transform; the last window is left out
    -> mel filters -> log10 of at least 1e-10 -> no less than the clip's loudest value minus 8 -> (x + 4) / 4

The filters are Slaney's (Auditory Toolbox, 1998; `librosa.filters.mel` with its defaults): linear below
1 kHz, logarithmic above, triangles of unit area. A clip isn't padded to 30 s here but to a whole token.

Computed in double precision, whatever a numpy version does with single: the same clip is the same features.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_FLOOR = 1e-10
_RANGE = 8.0  # decades below the loudest: 80 dB
_BLOCK = 3000  # windows transformed at a time: 10 MB


@dataclass(frozen=True, slots=True)
class MelRule:
    """The audio encoder's geometry; defaults are those of `config.schema.Audio` (a test compares them).

    bins             mel filters, from 0 Hz to half the sample rate: 80 for Whisper up to large-v2, 128 after
    sample_rate      in Hz, that every clip is brought to
    n_fft, hop       samples of a window, and between two
    frames_per_token a clip is padded with silence to whole tokens. Whisper's encoder halves the frames;
                     Qwen2-Audio's halves them again
    """

    bins: int = 128
    sample_rate: int = 16_000
    n_fft: int = 400
    hop: int = 160
    frames_per_token: int = 4

    def __post_init__(self) -> None:
        if min(self.bins, self.sample_rate, self.n_fft, self.hop, self.frames_per_token) < 1:
            raise ValueError(f"all of {self} must be positive")

    @property
    def samples_per_token(self) -> int:
        """At `sample_rate`."""
        return self.hop * self.frames_per_token

    def num_frames(self, samples: int) -> int:
        """Frames of a clip of so many samples: a multiple of `frames_per_token`."""
        return -(-samples // self.samples_per_token) * self.frames_per_token

    def num_tokens(self, frames: int) -> int:
        """Tokens of a clip of so many frames."""
        return frames // self.frames_per_token


def log_mel(samples: NDArray[np.float32], rule: MelRule) -> NDArray[np.float32]:
    """float32 (frames, bins) of mono samples (n,) in -1 to 1, n >= 1: one frame for each whole `hop`."""
    frames = len(samples) // rule.hop
    padded = np.pad(samples.astype(np.float64), rule.n_fft // 2, mode="reflect")
    # axes: window, sample
    windows = np.lib.stride_tricks.sliding_window_view(padded, rule.n_fft)[:: rule.hop][:frames]
    hann = np.hanning(rule.n_fft + 1)[:-1]
    filters = mel_filters(rule.bins, rule.n_fft, rule.sample_rate)
    features = np.empty((frames, rule.bins), np.float32)
    for first in range(0, frames, _BLOCK):
        spectrum = np.fft.rfft(windows[first : first + _BLOCK] * hann)
        power = spectrum.real**2 + spectrum.imag**2
        features[first : first + _BLOCK] = np.log10(np.maximum(power @ filters, _FLOOR))
    if frames:
        np.maximum(features, features.max() - np.float32(_RANGE), out=features)
    features += 4
    features /= 4
    return features


@functools.cache
def mel_filters(bins: int, n_fft: int, sample_rate: int) -> NDArray[np.float64]:
    """(n_fft // 2 + 1, bins): the weight of each frequency in each filter. Read-only."""
    edges = _hertz(np.linspace(0, _mel(sample_rate / 2), bins + 2))
    frequencies = np.fft.rfftfreq(n_fft, 1 / sample_rate)[:, None]
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
    filters = np.maximum(0, np.minimum(rising, falling)) * (2 / (high - low))
    filters.setflags(write=False)
    return filters


_BREAK_HZ, _HZ_A_MEL = 1000.0, 200 / 3
_BREAK_MEL, _LOG_STEP = _BREAK_HZ / _HZ_A_MEL, np.log(6.4) / 27
"""Slaney's scale: 27 steps from 1 kHz to 6.4 kHz."""


def _mel(hertz: float) -> float:
    """Of a frequency, which is mostly above the break."""
    if hertz < _BREAK_HZ:
        return hertz / _HZ_A_MEL
    return float(_BREAK_MEL + np.log(hertz / _BREAK_HZ) / _LOG_STEP)


def _hertz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    above = _BREAK_HZ * np.exp(_LOG_STEP * (np.maximum(mels, _BREAK_MEL) - _BREAK_MEL))
    return np.where(mels < _BREAK_MEL, mels * _HZ_A_MEL, above)
