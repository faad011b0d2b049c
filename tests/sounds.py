"""Clips of sound made for tests, in any container, and what they must sound like."""

import io
from fractions import Fraction

import av
import numpy as np


def tone(samples, rate, hertz=440.0, amplitude=0.5):
    """float32 (samples,) of a sine."""
    return (amplitude * np.sin(2 * np.pi * hertz * np.arange(samples) / rate)).astype(np.float32)


def encoded(channels, rate, container="wav", codec="pcm_s16le", **options):
    """A file that holds `channels`, float32 (c, n) in -1 to 1."""
    layout = {1: "mono", 2: "stereo", 6: "5.1"}[len(channels)]
    file = io.BytesIO()
    with av.open(file, "w", format=container, options=options) as output:
        stream = output.add_stream(codec, rate=rate)
        stream.layout = layout
        convert = av.AudioResampler(format=stream.format.name, layout=layout, rate=rate)
        for first in range(0, channels.shape[1], 4000):
            part = np.ascontiguousarray(channels[:, first : first + 4000])
            frame = av.AudioFrame.from_ndarray(part, format="fltp", layout=layout)
            frame.sample_rate, frame.pts, frame.time_base = rate, first, Fraction(1, rate)
            for converted in convert.resample(frame):
                output.mux(stream.encode(converted))
        for converted in convert.resample(None):
            output.mux(stream.encode(converted))
        output.mux(stream.encode(None))
    return file.getvalue()
