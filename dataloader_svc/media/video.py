"""Videos: the chosen frames, each decoded once, at exactly the size that was planned.

A plain clip goes to decord, every other one to PyAV, and all to PyAV where decord isn't installed (it has
no wheel for Arm). Both give the same frames, bit for bit (tested). "Plain" is strict (`plain.py`), and
packets are counted (`video_index.py`) before a clip is handed over: for a frame that a header promises and
the file doesn't hold, decord waits for ever without an error. Loaders call this in worker processes that can
be killed (`worker_reader.py`).

One codec thread a clip: more of them buy latency with CPU; clips are decoded side by side instead.
Which frames are taken is `sampling.py`; what becomes of them `transforms/vision.py`.
"""

from __future__ import annotations

import functools
import importlib
import io
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import av
import numpy as np
from av.container import InputContainer
from av.video.frame import PictureType
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream
from numpy.typing import NDArray

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.media.base import MediaProbe
from dataloader_svc.media.pixels import resize
from dataloader_svc.media.sampling import VideoSampling
from dataloader_svc.media.video_index import Clip, opened, read_index, video_stream

Backend = Literal["auto", "decord", "pyav"]
_Stamped = tuple[int, av.VideoFrame]  # presentation time in the stream's units, or the frame's number


@dataclass(frozen=True, slots=True)
class VideoReader:
    """`MediaReader` of videos."""

    sampling: VideoSampling
    max_source_pixels: int
    backend: Backend = "auto"

    def probe(self, data: bytes | str) -> MediaProbe:
        return probe(data, self.sampling, max_source_pixels=self.max_source_pixels)

    def decode(self, data: bytes | str, size_hw: tuple[int, int]) -> NDArray[np.uint8]:
        return decode(data, size_hw, self.sampling, backend=self.backend)


def reader_of(settings: Mapping[str, Any]) -> VideoReader:
    """Of what a worker is told: the fields of VideoReader, `sampling` as a mapping of its own."""
    return VideoReader(**{**settings, "sampling": VideoSampling(**settings["sampling"])})


def probe(
    source: bytes | str, sampling: VideoSampling, *, max_source_pixels: int | None = None
) -> MediaProbe:
    """Shape, number and times of the frames that `sampling` takes; `source` is the file's bytes or path.

    Reads every packet (2 us each) and decodes the first frame, which alone knows how it is to be turned.
    Raises BadSample NOT_MEDIA, NO_STREAM, TRUNCATED, TOO_MANY_PIXELS, BAD_SHAPE, DECODE_FAILED,
    MISSING_FILE.
    """
    clip = read_index(source, max_source_pixels)
    chosen = sampling.choose(clip.stamps, clip.key_frames, clip.duration_s)
    since_start = (clip.stamps[chosen] - clip.stamps[0]) * float(clip.time_base)
    height, width = (clip.width, clip.height) if clip.turned else (clip.height, clip.width)
    return MediaProbe(
        "video",
        height,
        width,
        frames=len(chosen),
        format=clip.codec,
        timestamps=tuple(since_start.tolist()),
    )


def decode(
    source: bytes | str, size_hw: tuple[int, int], sampling: VideoSampling, *, backend: Backend = "auto"
) -> NDArray[np.uint8]:
    """The frames of `probe`, uint8 RGB (T, height, width, 3), upright, with (height, width) = `size_hw`.

    Raises BadSample as `probe` does; TRUNCATED where a frame of the index doesn't come out.
    """
    clip = read_index(source, None)
    chosen = sampling.choose(clip.stamps, clip.key_frames, clip.duration_s)
    if backend == "decord" or (backend == "auto" and clip.plain and _decord() is not None):
        try:
            return _gather(_by_decord(source, clip, np.unique(chosen)), clip, chosen, size_hw)
        except BadSample:
            if backend == "decord":
                raise  # otherwise: its FFmpeg is of 2018, let today's judge
    return _gather(_by_pyav(source, clip, clip.stamps[np.unique(chosen)]), clip, chosen, size_hw)


def _gather(
    decoded: Iterator[NDArray[np.uint8]], clip: Clip, chosen: NDArray[np.int64], size_hw: tuple[int, int]
) -> NDArray[np.uint8]:
    """Scale and turn each distinct frame of `chosen` and put it wherever it was chosen."""
    frames = np.empty((len(chosen), *size_hw, 3), np.uint8)
    stored_hw = size_hw[::-1] if clip.turned else size_hw
    _, copies = np.unique(chosen, return_counts=True)
    ends = np.cumsum(copies)
    for rgb, start, end in zip(decoded, ends - copies, ends, strict=True):
        frames[start:end] = np.rot90(resize(rgb, stored_hw), clip.rotation // 90)
    return frames


def _by_pyav(source: bytes | str, clip: Clip, wanted: NDArray[np.int64]) -> Iterator[NDArray[np.uint8]]:
    """Frames at the rising stamps `wanted`; seeks only where that skips a key frame or more."""
    converter = VideoReformatter()
    may_seek = clip.stamped
    with opened(source) as container:
        stream = video_stream(container)
        frames = _stamped_frames(container, stream, clip)
        current = next(frames, None)
        for stamp in wanted.tolist():
            if may_seek and current is not None and current[0] < _last_key(clip, stamp):
                frames, may_seek = _seek(container, stream, clip, stamp)
                current = next(frames, None)
            while current is not None and current[0] < stamp:
                current = next(frames, None)
            if current is None:
                seconds = float((stamp - clip.stamps[0]) * clip.time_base)
                raise BadSample(Reason.TRUNCATED, f"no frame comes out at {seconds:.3f} s")
            yield _rgb(converter, current[1])


def _seek(
    container: InputContainer, stream: VideoStream, clip: Clip, stamp: int
) -> tuple[Iterator[_Stamped], bool]:
    """Frames from a key frame on that is not after `stamp`; whether seeking can be trusted again.

    If it can't, the frames are those from the clip's start, so that a clip is decoded at most twice.
    """
    # To the frame's own stamp: that of an index entry is a decoding time, a group of pictures too early.
    container.seek(stamp, stream=stream, backward=True)
    frames = _stamped_frames(container, stream, clip)
    first = next(frames, None)
    # Not so where the key frame is shown after the frame (open groups), and where what the container calls
    # a key frame is only the start of a gradual refresh: the picture would be whole some frames later.
    if first is not None and first[0] <= stamp and first[1].pict_type == PictureType.I:
        return itertools.chain([first], frames), True
    container.seek(int(clip.stamps[0]), stream=stream, backward=True)
    return _stamped_frames(container, stream, clip), False


def _stamped_frames(container: InputContainer, stream: VideoStream, clip: Clip) -> Iterator[_Stamped]:
    for number, frame in enumerate(container.decode(stream)):
        if not clip.stamped:
            yield number, frame
        elif frame.pts is not None:
            yield frame.pts, frame


def _last_key(clip: Clip, stamp: int) -> int:
    """Stamp of the last key frame that is not after `stamp`."""
    key_stamps = clip.stamps[clip.key_frames]
    before = int(np.searchsorted(key_stamps, stamp, side="right"))
    return int(key_stamps[before - 1]) if before else int(clip.stamps[0])


def _rgb(converter: VideoReformatter, frame: av.VideoFrame) -> NDArray[np.uint8]:
    # One thread: the default is as many as there are cores, for every clip that is being decoded.
    return np.asarray(converter.reformat(frame, format="rgb24", threads=1).to_ndarray(), np.uint8)


@functools.cache
def _decord() -> ModuleType | None:
    """The decord module, or None where it isn't installed or can't be loaded."""
    try:
        decord = importlib.import_module("decord")
    except (ImportError, OSError):
        return None
    decord.logging.set_level(decord.logging.QUIET)  # its FFmpeg writes to stderr otherwise
    return decord


def _by_decord(source: bytes | str, clip: Clip, wanted: NDArray[np.int64]) -> Iterator[NDArray[np.uint8]]:
    """Frames at the rising indices `wanted`, one at a time: a batch would hold all at full size."""
    decord = _decord()
    assert decord is not None, "decord isn't installed"
    try:
        file = io.BytesIO(source) if isinstance(source, bytes) else str(Path(source).absolute())
        reader = decord.VideoReader(file, ctx=decord.cpu(0), num_threads=1)
        if len(reader) != len(clip.stamps):
            raise BadSample(Reason.TRUNCATED, f"{len(clip.stamps)} packets, {len(reader)} frames")
        for index in wanted.tolist():
            yield reader[index].asnumpy()
    except (decord.DECORDError, RuntimeError) as error:
        raise BadSample(Reason.DECODE_FAILED, f"decord: {str(error).splitlines()[0]}") from error
