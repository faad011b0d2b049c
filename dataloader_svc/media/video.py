"""Videos: a set number of evenly spaced frames, each decoded once, at exactly the size that was planned.

A plain clip goes to decord, every other one to PyAV, and all to PyAV where decord isn't installed (it has
no wheel for Arm). Both give the same frames, bit for bit (tested). "Plain" is strict (`plain.py`), and
packets are counted before a clip is handed over: for a frame that a header promises and the file doesn't
hold, decord waits for ever without an error. All quirks of FFmpeg and decord stay in this file.

One codec thread a clip: more of them buy latency with CPU; clips are decoded side by side instead.
Which frames are taken is `sampling.py`; what becomes of them `transforms/vision.py`.
"""

from __future__ import annotations

import functools
import importlib
import io
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Literal, NamedTuple

import av
import numpy as np
from av.container import InputContainer
from av.stream import Disposition
from av.video.frame import PictureType
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream
from numpy.typing import NDArray

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.media import plain
from dataloader_svc.media.base import MediaProbe, check_size
from dataloader_svc.media.pixels import resize
from dataloader_svc.media.sampling import VideoSampling, evenly_spaced

Backend = Literal["auto", "decord", "pyav"]
_Stamped = tuple[int, av.VideoFrame]  # presentation time in the stream's units, or the frame's number

# FFmpeg may try these only: others (hls, concat, ...) would open further files and addresses that a
# stranger's bytes name. Paths get the protocol spelled out for the same reason.
_OPTIONS = {
    "format_whitelist": "mov,matroska,webm,avi,mpegts,mpeg,flv,asf,ogg",
    "protocol_whitelist": "file",
}
# First bytes of containers: where these are followed by nonsense, the file is cut or damaged.
_ISO_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide")
_OTHER_CONTAINERS = (b"\x1aE\xdf\xa3", b"OggS", b"FLV", b"\x30\x26\xb2\x75", b"\0\0\x01\xba")

_UNSPECIFIED, _BT709, _SMPTE170M = 2, 1, 6  # ITU-T H.273 matrix coefficients
_FULL_RANGE = 2  # AVCOL_RANGE_JPEG


class _Packet(NamedTuple):
    stamp: int | None
    is_shown: bool
    is_key: bool
    is_fresh: bool  # a key packet of which decord is right


@dataclass(frozen=True, slots=True)
class _Clip:
    """A clip's shape and index, from all its packets and its first frame.

    stamps     int64 (N,) rising presentation times of all frames, in `time_base` units; or, where the
               container gives none (`stamped` False), their numbers
    key_stamps int64 (K,) of those that decoding can start at
    rotation   degrees to turn a stored frame anticlockwise: -270 to 270, multiples of 90
    """

    codec: str
    height: int
    width: int
    rotation: int
    stamps: NDArray[np.int64]
    key_stamps: NDArray[np.int64]
    stamped: bool
    time_base: Fraction
    duration_s: float
    plain: bool

    @property
    def turned(self) -> bool:
        return self.rotation % 180 != 0


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


def probe(
    source: bytes | str, sampling: VideoSampling, *, max_source_pixels: int | None = None
) -> MediaProbe:
    """Shape, number and times of the frames that `sampling` takes; `source` is the file's bytes or path.

    Reads every packet (2 us each) and decodes the first frame, which alone knows how it is to be turned.
    Raises BadSample NOT_MEDIA, NO_STREAM, TRUNCATED, TOO_MANY_PIXELS, BAD_SHAPE, DECODE_FAILED,
    MISSING_FILE.
    """
    clip = _read_index(source, max_source_pixels)
    chosen = _choose(clip, sampling)
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
    clip = _read_index(source, None)
    chosen = _choose(clip, sampling)
    if backend == "decord" or (backend == "auto" and clip.plain and _decord() is not None):
        try:
            return _gather(_by_decord(source, clip, np.unique(chosen)), clip, chosen, size_hw)
        except BadSample:
            if backend == "decord":
                raise  # otherwise: its FFmpeg is of 2018, let today's judge
    return _gather(_by_pyav(source, clip, clip.stamps[np.unique(chosen)]), clip, chosen, size_hw)


def _gather(
    decoded: Iterator[NDArray[np.uint8]], clip: _Clip, chosen: NDArray[np.int64], size_hw: tuple[int, int]
) -> NDArray[np.uint8]:
    """Scale and turn each distinct frame of `chosen` and put it wherever it was chosen."""
    frames = np.empty((len(chosen), *size_hw, 3), np.uint8)
    stored_hw = size_hw[::-1] if clip.turned else size_hw
    _, copies = np.unique(chosen, return_counts=True)
    ends = np.cumsum(copies)
    for rgb, start, end in zip(decoded, ends - copies, ends, strict=True):
        frames[start:end] = np.rot90(resize(rgb, stored_hw), clip.rotation // 90)
    return frames


def _choose(clip: _Clip, sampling: VideoSampling) -> NDArray[np.int64]:
    return evenly_spaced(clip.stamps, sampling.num_frames(len(clip.stamps), clip.duration_s))


# ---- opening and indexing, always by PyAV


@contextmanager
def _opened(source: bytes | str) -> Iterator[InputContainer]:
    """An open container; errors of FFmpeg, inside the block too, are BadSample."""
    try:
        # Metadata is free text in any encoding, and nothing of it is used.
        container = av.open(
            io.BytesIO(source) if isinstance(source, bytes) else f"file:{Path(source).absolute()}",
            mode="r",
            container_options=_OPTIONS,
            metadata_errors="ignore",
        )
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise BadSample(Reason.MISSING_FILE, f"{source!r}: {error.strerror}") from error
    except (av.error.FFmpegError, ValueError) as error:
        raise _not_a_clip(source) from error
    with container:
        try:
            yield container
        except (av.error.FFmpegError, ValueError) as error:
            raise BadSample(Reason.DECODE_FAILED, f"{type(error).__name__}: {error}") from error


def _not_a_clip(source: bytes | str) -> BadSample:
    if isinstance(source, bytes):
        head, size = source[:16], len(source)
    else:
        with Path(source).open("rb") as file:
            head, size = file.read(16), Path(source).stat().st_size
    if head[4:8] in _ISO_BOXES:
        return BadSample(Reason.TRUNCATED, f"MP4 of {size} bytes without a whole index (moov)")
    if head.startswith(_OTHER_CONTAINERS) or (head[:4] == b"RIFF" and head[8:12] == b"AVI "):
        return BadSample(Reason.TRUNCATED, f"container of {size} bytes without a whole header")
    return BadSample(Reason.NOT_MEDIA, f"no video container: {size} bytes that begin with {head!r}")


def _video_stream(container: InputContainer) -> VideoStream:
    for stream in container.streams.video:
        if not stream.disposition & Disposition.attached_pic:  # the cover of a piece of music
            # A codec that this FFmpeg doesn't have leaves None here, whatever the type says.
            if getattr(stream, "codec_context", None) is None:
                raise BadSample(Reason.DECODE_FAILED, "no decoder for this video's codec")
            stream.codec_context.thread_count = 1
            stream.codec_context.thread_type = "NONE"
            return stream
    kinds = ", ".join(stream.type for stream in container.streams) or "none"
    raise BadSample(Reason.NO_STREAM, f"no video stream; streams: {kinds}")


def _read_index(source: bytes | str, max_source_pixels: int | None) -> _Clip:
    """All packets and the first frame. Raises BadSample, also for fewer packets than promised."""
    with _opened(source) as container:
        stream = _video_stream(container)
        check_size(stream.codec_context.height, stream.codec_context.width, max_source_pixels)
        first: av.VideoFrame | None = None
        packets: list[_Packet] = []
        last_duration = 0
        for packet in container.demux(stream):
            if packet.size == 0 and packet.dts is None:  # the marker at the end
                if first is None:
                    first = next(iter(packet.decode()), None)
                continue
            if packet.is_corrupt:
                raise BadSample(Reason.TRUNCATED, f"packet {len(packets)} is cut short")
            is_key = packet.is_keyframe
            is_fresh = is_key and plain.starts_afresh(stream.codec_context.name, bytes(packet))
            packets.append(_Packet(packet.pts, not packet.is_discard, is_key, is_fresh))
            last_duration = packet.duration or last_duration
            if first is None:
                first = next(iter(packet.decode()), None)
        if stream.frames > len(packets):
            raise BadSample(
                Reason.TRUNCATED, f"the header promises {stream.frames} frames, the file holds {len(packets)}"
            )
        if first is None:
            raise BadSample(Reason.DECODE_FAILED, f"none of {len(packets)} packets gives a frame")
        check_size(first.height, first.width, max_source_pixels)
        return _clip(container, stream, first, packets, last_duration)


def _clip(
    container: InputContainer,
    stream: VideoStream,
    first: av.VideoFrame,
    packets: list[_Packet],
    last_duration: int,
) -> _Clip:
    shown = [packet for packet in packets if packet.is_shown]
    is_key = np.array([packet.is_key for packet in shown], np.bool_)
    stamps = np.array([packet.stamp for packet in shown if packet.stamp is not None], np.int64)
    stamped = 0 < len(stamps) == len(shown)
    time_base = stream.time_base or Fraction(1, 1000)
    if stamped:
        keys = stamps[is_key]
    else:  # e.g. AVI: frames are counted instead
        stamps = np.arange(max(len(shown), 1))
        keys = stamps[:1]
        time_base = 1 / (stream.average_rate or Fraction(25))
        last_duration = 1
    rising = np.unique(stamps)
    return _Clip(
        codec=stream.codec_context.name,
        height=first.height,
        width=first.width,
        rotation=round(first.rotation / 90) * 90,
        stamps=rising,
        key_stamps=np.sort(keys),
        stamped=stamped,
        time_base=time_base,
        duration_s=float((rising[-1] - rising[0] + last_duration) * time_base),
        plain=(
            stamped
            and len(rising) == len(packets) == stream.frames
            and packets[0].is_key
            and all(packet.is_fresh for packet in packets if packet.is_key)
            and plain.has_constant_rate(rising)
            and plain.has_closed_groups(stamps, is_key)
            and _is_plain_picture(container, stream, first)
        ),
    )


def _is_plain_picture(container: InputContainer, stream: VideoStream, first: av.VideoFrame) -> bool:
    return (
        "mp4" in container.format.name
        and stream.codec_context.name in plain.CODECS
        and first.format.name == "yuv420p"
        and first.colorspace in (_UNSPECIFIED, _BT709, _SMPTE170M)
        and first.color_range != _FULL_RANGE
        and first.rotation == 0
        and not first.interlaced_frame  # its colours are converted by fields today, weren't then
        and first.height % 2 == 0
        and first.width % 2 == 0
    )


# ---- decoding


def _by_pyav(source: bytes | str, clip: _Clip, wanted: NDArray[np.int64]) -> Iterator[NDArray[np.uint8]]:
    """Frames at the rising stamps `wanted`; seeks only where that skips a key frame or more."""
    converter = VideoReformatter()
    may_seek = clip.stamped
    with _opened(source) as container:
        stream = _video_stream(container)
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
    container: InputContainer, stream: VideoStream, clip: _Clip, stamp: int
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


def _stamped_frames(container: InputContainer, stream: VideoStream, clip: _Clip) -> Iterator[_Stamped]:
    for number, frame in enumerate(container.decode(stream)):
        if not clip.stamped:
            yield number, frame
        elif frame.pts is not None:
            yield frame.pts, frame


def _last_key(clip: _Clip, stamp: int) -> int:
    """Stamp of the last key frame that is not after `stamp`."""
    before = int(np.searchsorted(clip.key_stamps, stamp, side="right"))
    return int(clip.key_stamps[before - 1]) if before else int(clip.stamps[0])


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


def _by_decord(source: bytes | str, clip: _Clip, wanted: NDArray[np.int64]) -> Iterator[NDArray[np.uint8]]:
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
