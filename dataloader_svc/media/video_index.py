"""What a clip holds, from all its packets and its first frame: where each frame is, and whether it is plain.

Always by PyAV, whoever decodes. Packets are counted, because headers promise frames that files don't hold;
the first frame is decoded, because it alone knows how it is to be turned. `plain.py` says for which clips
decord can be trusted; frames are decoded in `video.py`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import av
import numpy as np
from av.container import InputContainer
from av.stream import Disposition
from av.video.stream import VideoStream
from numpy.typing import NDArray

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.media import plain
from dataloader_svc.media.base import check_size
from dataloader_svc.media.container import open_container

_FORMATS = "mov,matroska,webm,avi,mpegts,mpeg,flv,asf,ogg"

_UNSPECIFIED, _BT709, _SMPTE170M = 2, 1, 6  # ITU-T H.273 matrix coefficients
_FULL_RANGE = 2  # AVCOL_RANGE_JPEG


class _Packet(NamedTuple):
    stamp: int | None
    is_shown: bool
    is_key: bool
    is_plain: bool


@dataclass(frozen=True, slots=True)
class Clip:
    """A clip's shape and index, from all its packets and its first frame.

    stamps     int64 (N,) rising presentation times of all frames, in `time_base` units; or, where the
               container gives none (`stamped` False), their numbers
    key_frames int64 (K,) rising indices of the frames that decoding can start at; without stamps, by the
               order in which frames are stored
    rotation   degrees to turn a stored frame anticlockwise: -270 to 270, multiples of 90
    """

    codec: str
    height: int
    width: int
    rotation: int
    stamps: NDArray[np.int64]
    key_frames: NDArray[np.int64]
    stamped: bool
    time_base: Fraction
    duration_s: float
    plain: bool

    @property
    def turned(self) -> bool:
        return self.rotation % 180 != 0


def opened(source: bytes | str) -> AbstractContextManager[InputContainer]:
    """An open container; errors of FFmpeg, inside the block too, are BadSample."""
    return open_container(source, _FORMATS, "video")


def video_stream(container: InputContainer) -> VideoStream:
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


def read_index(source: bytes | str, max_source_pixels: int | None) -> Clip:
    """All packets and the first frame. Raises BadSample, also for fewer packets than promised."""
    with opened(source) as container:
        stream = video_stream(container)
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
            codec, is_key = stream.codec_context.name, packet.is_keyframe
            judge = plain.starts_afresh if is_key else plain.holds_picture
            packets.append(_Packet(packet.pts, not packet.is_discard, is_key, judge(codec, bytes(packet))))
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
) -> Clip:
    shown = [packet for packet in packets if packet.is_shown]
    is_key = np.array([packet.is_key for packet in shown], np.bool_)
    stamps = np.array([packet.stamp for packet in shown if packet.stamp is not None], np.int64)
    stamped = 0 < len(stamps) == len(shown)
    time_base = stream.time_base or Fraction(1, 1000)
    if not stamped:  # e.g. AVI: frames are counted instead
        stamps = np.arange(max(len(shown), 1))
        is_key = np.resize(is_key, len(stamps))
        time_base = 1 / (stream.average_rate or Fraction(25))
        last_duration = 1
    rising = np.unique(stamps)
    return Clip(
        codec=stream.codec_context.name,
        height=first.height,
        width=first.width,
        rotation=round(first.rotation / 90) * 90,
        stamps=rising,
        key_frames=np.searchsorted(rising, np.unique(stamps[is_key])),
        stamped=stamped,
        time_base=time_base,
        duration_s=float((rising[-1] - rising[0] + last_duration) * time_base),
        plain=(
            stamped
            and len(rising) == len(packets) == stream.frames
            and packets[0].is_key
            and all(packet.is_plain for packet in packets)
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
