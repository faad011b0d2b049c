"""Which clips decord decodes rightly, judged from their packets: pure.

decord seeks by counting frames from a key frame on. That is right where every group of pictures is closed
and starts afresh, and silently wrong elsewhere (found by comparing it with a decode of every frame, on
clips with open groups, recovery points and intra refresh). `video.py` asks; the rest goes to PyAV.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

# Types of network-abstraction-layer units (ITU-T H.264 table 7-1, H.265 table 7-1) that forget all before,
# and that hold a picture or a part of one; and how the type stands in a unit's first byte: shift, mask.
_UNITS = {
    "h264": (frozenset({5}), frozenset(range(1, 6)), 0, 31),
    "hevc": (frozenset({19, 20}), frozenset({*range(10), *range(16, 22)}), 1, 63),
}
# What decord's FFmpeg (4.1) decodes and converts exactly as today's does.
CODECS = frozenset({*_UNITS, "mpeg4"})


def has_constant_rate(stamps: NDArray[np.int64]) -> bool:
    """Whether rising `stamps` are evenly spaced, to the tick."""
    return len(np.unique(np.diff(stamps))) <= 1


def has_closed_groups(stamps: NDArray[np.int64], is_key: NDArray[np.bool_]) -> bool:
    """Whether nothing stored after a key frame is shown before it; both arrays in stored order."""
    earliest_from = np.minimum.accumulate(stamps[::-1])[::-1]
    return bool((stamps == earliest_from)[is_key].all())


def starts_afresh(codec: str, packet: bytes) -> bool:
    """Whether a key packet, as MP4 holds it, refers to nothing before it."""
    if codec not in _UNITS:
        return codec in CODECS  # MPEG-4 part 2 has no other kind of key frame
    fresh, _, shift, mask = _UNITS[codec]
    return any(first >> shift & mask in fresh for first in _first_bytes(packet))


def holds_picture(codec: str, packet: bytes) -> bool:
    """Whether a packet, as MP4 holds it, can give a frame: for one that doesn't, decord invents one."""
    if codec not in _UNITS:
        return codec in CODECS
    _, pictures, shift, mask = _UNITS[codec]
    return any(first >> shift & mask in pictures for first in _first_bytes(packet))


def _first_bytes(packet: bytes) -> Iterator[int]:
    """Of each unit. They are taken to have 4-byte lengths, as nearly all have; others look like nonsense."""
    position = 0
    while position + 4 < len(packet):
        yield packet[position + 4]
        position += 4 + int.from_bytes(packet[position : position + 4])
