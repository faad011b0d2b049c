"""Which clips decord decodes rightly, judged from their packets: pure.

decord seeks by counting frames from a key frame on. That is right where every group of pictures is closed
and starts afresh, and silently wrong elsewhere (found by comparing it with a decode of every frame, on
clips with open groups, recovery points and intra refresh). `video.py` asks; the rest goes to PyAV.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# codec -> types of network-abstraction-layer units that forget all before (ITU-T H.264 table 7-1, H.265
# table 7-1), and how the type stands in a unit's first byte: shift, mask
_FRESH_UNITS = {"h264": ({5}, 0, 31), "hevc": ({19, 20}, 1, 63)}
# What decord's FFmpeg (4.1) decodes and converts exactly as today's does.
CODECS = frozenset({*_FRESH_UNITS, "mpeg4"})


def has_constant_rate(stamps: NDArray[np.int64]) -> bool:
    """Whether rising `stamps` are evenly spaced, to the tick."""
    return len(np.unique(np.diff(stamps))) <= 1


def has_closed_groups(stamps: NDArray[np.int64], is_key: NDArray[np.bool_]) -> bool:
    """Whether nothing stored after a key frame is shown before it; both arrays in stored order."""
    earliest_from = np.minimum.accumulate(stamps[::-1])[::-1]
    return bool((stamps == earliest_from)[is_key].all())


def starts_afresh(codec: str, packet: bytes) -> bool:
    """Whether a key packet, as MP4 holds it, refers to nothing before it.

    Units are taken to have 4-byte lengths, as nearly all have; of others the answer is False.
    """
    if codec not in _FRESH_UNITS:
        return codec in CODECS  # MPEG-4 part 2 has no other kind of key frame
    fresh, shift, mask = _FRESH_UNITS[codec]
    position = 0
    while position + 4 < len(packet):
        if packet[position + 4] >> shift & mask in fresh:
            return True
        position += 4 + int.from_bytes(packet[position : position + 4])
    return False
