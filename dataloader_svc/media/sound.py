"""The sound of a file as samples: how many there are, before any is decoded, and then the samples themselves.

All by PyAV, whatever the container, so that a sound track of a video is read as a WAV is. What a header says
of the length is never believed, nor is memory taken for it: packets are counted, which are there or aren't.
`audio.py` makes features of the samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.container import InputContainer
from numpy.typing import NDArray

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.media.container import open_container

_FORMATS = "wav,w64,flac,mp3,ogg,aac,aiff,au,caf,amr,mov,matroska,webm,avi,mpegts,mpeg,flv,asf"
_MOST_RATE = 1_000_000  # Hz; the fastest in use is 768 kHz
_LOUDEST = 2.0**32  # floating-point files that hold whole numbers as they were recorded reach half of it


@dataclass(frozen=True, slots=True)
class Sound:
    """A file's first sound track. `samples`: of each channel, by its packets, less what a decoder drops."""

    codec: str
    rate: int
    samples: int


def opened(source: bytes | str) -> AbstractContextManager[InputContainer]:
    """An open container; errors of FFmpeg, inside the block too, are BadSample."""
    return open_container(source, _FORMATS, "audio")


def sound_stream(container: InputContainer) -> AudioStream:
    """The first sound track. Raises BadSample NO_STREAM, DECODE_FAILED."""
    for stream in container.streams.audio:
        # A codec that this FFmpeg doesn't have leaves None here, whatever the type says.
        if getattr(stream, "codec_context", None) is None:
            raise BadSample(Reason.DECODE_FAILED, "no decoder for this track's codec")
        stream.codec_context.thread_count = 1
        return stream
    kinds = ", ".join(stream.type for stream in container.streams) or "none"
    raise BadSample(Reason.NO_STREAM, f"no sound track; streams: {kinds}")


def read_length(source: bytes | str) -> Sound:
    """All packets, 3 us each, none decoded. Raises BadSample, BAD_SHAPE where there is not one sample."""
    with opened(source) as container:
        stream = sound_stream(container)
        rate = _checked_rate(stream.codec_context.sample_rate)
        ticks = (stream.time_base or Fraction(1, rate)) * rate  # samples a unit of time
        # Only Ogg has the last packet's duration already without what is dropped of it.
        drops_end = container.format.name != "ogg"
        total, start, end = 0, None, 0
        for packet in container.demux(stream):
            if packet.size == 0:  # the marker at the end
                continue
            # Half a packet of plain samples is so many samples: a WAV written to a pipe always claims more.
            if packet.is_corrupt and not stream.codec_context.name.startswith("pcm_"):
                raise BadSample(Reason.TRUNCATED, f"a packet is cut short, {total} samples from the start")
            duration = packet.duration or 0
            first, last = _dropped(packet)
            total += -int(-duration * ticks // 1) - first - (last if drops_end else 0)
            if packet.pts is not None:
                start = max(packet.pts, 0) if start is None else start
                end = max(end, packet.pts + duration)
        if ticks > 1 and start is not None:  # too coarse to add up: the milliseconds of Matroska
            total = int((end - start) * ticks)
        if total < 1:
            raise BadSample(Reason.BAD_SHAPE, "the sound track holds no samples")
        return Sound(stream.codec_context.codec.canonical_name, rate, total)


def _dropped(packet: Any) -> tuple[int, int]:
    """Samples that the decoder drops at a packet's start and end: an encoder's own delay, and its filling."""
    if not packet.has_sidedata("skip_samples"):
        return 0, 0
    data = bytes(packet.get_sidedata("skip_samples"))
    return int.from_bytes(data[:4], "little"), int.from_bytes(data[4:8], "little")


def _checked_rate(rate: int) -> int:
    if not 1 <= rate <= _MOST_RATE:
        raise BadSample(Reason.BAD_SHAPE, f"a sample rate of {rate} Hz; 1 to {_MOST_RATE} can be read")
    return rate


def decoded(container: InputContainer) -> Iterator[NDArray[np.float32]]:
    """Stretches of samples as they are stored, float32 (channels, n), mostly in -1 to 1.

    Raises BadSample DECODE_FAILED for a value that is no sound, and where the rate changes midway.
    """
    stream = sound_stream(container)
    rate = _checked_rate(stream.codec_context.sample_rate)
    for frame in container.decode(stream):
        if frame.sample_rate != rate:
            raise BadSample(
                Reason.DECODE_FAILED, f"the rate changes from {rate} to {frame.sample_rate} Hz midway"
            )
        samples = _samples(frame)
        if not (np.abs(samples) <= _LOUDEST).all():  # not so of what is no number, either
            raise BadSample(Reason.DECODE_FAILED, "a sample is infinite, absurdly loud or no number")
        yield samples


def _samples(frame: AudioFrame) -> NDArray[np.float32]:
    """float32 (channels, n)."""
    values = frame.to_ndarray()
    if not frame.format.is_planar:
        values = values.reshape(-1, frame.layout.nb_channels).T
    if values.dtype.kind == "u":
        return (values.astype(np.float32) - 128) / np.float32(128)
    if values.dtype.kind == "i":
        return np.asarray(values / 2.0 ** (8 * values.dtype.itemsize - 1), np.float32)
    return np.asarray(values, np.float32)


def mono(stretches: Iterator[NDArray[np.float32]]) -> Iterator[NDArray[np.float32]]:
    """(n,) each: the plain mean over the channels, whatever they are called. Of stereo, what everybody does;
    5.1 is mixed by others with weights of each speaker, which differ from library to library.
    """
    return (samples.mean(axis=0, dtype=np.float32) for samples in stretches)


def resampled(
    stretches: Iterator[NDArray[np.float32]], rate: int, wanted: int
) -> Iterator[NDArray[np.float32]]:
    """Mono stretches (n,) at `rate` -> at `wanted`, by FFmpeg's polyphase filter (libswresample)."""
    if rate == wanted:
        yield from stretches
        return
    resampler = av.AudioResampler(format="fltp", layout="mono", rate=wanted)
    for samples in stretches:
        frame = AudioFrame.from_ndarray(np.ascontiguousarray(samples[None]), format="fltp", layout="mono")
        frame.sample_rate = rate
        for out in resampler.resample(frame):
            yield out.to_ndarray()[0]
    for out in resampler.resample(None):
        yield out.to_ndarray()[0]
