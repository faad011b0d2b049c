"""Scaling and turning decoded pixels: the one resize that pictures and video frames share.

Both JPEG paths and both video libraries end here, so that which of them decoded a picture can't be seen
in its pixels. Knows no format.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

# OpenCV has no thread count per call. Loaders decode many pictures side by side, one core each; its own
# pool inside every one of them would only oversubscribe the cores.
cv2.setNumThreads(1)

# EXIF orientation -> (flip up-down, flip left-right, then swap the axes), by CIPA DC-008, tag 0x0112.
_EXIF_TURNS = {
    1: (False, False, False),
    2: (False, True, False),
    3: (True, True, False),
    4: (True, False, False),
    5: (False, False, True),
    6: (True, False, True),
    7: (True, True, True),
    8: (False, True, True),
}


def resize(pixels: NDArray[np.uint8], size_hw: tuple[int, int]) -> NDArray[np.uint8]:
    """Scale (H, W, 3) to `size_hw`: area average where a side shrinks, bicubic where it grows."""
    height, width = size_hw
    smaller = min(height, pixels.shape[0]), min(width, pixels.shape[1])
    if smaller != pixels.shape[:2]:
        # A bicubic kernel of fixed width would skip pixels here; the average uses every one.
        pixels = _scale(pixels, smaller, cv2.INTER_AREA)
    if size_hw != pixels.shape[:2]:
        pixels = _scale(pixels, size_hw, cv2.INTER_CUBIC)
    return pixels


def _scale(pixels: NDArray[np.uint8], size_hw: tuple[int, int], kernel: int) -> NDArray[np.uint8]:
    return np.asarray(cv2.resize(pixels, size_hw[::-1], interpolation=kernel), np.uint8)


def stored_size(size_hw: tuple[int, int], orientation: int) -> tuple[int, int]:
    """The size as stored of a picture that is shown as `size_hw` (and the other way round)."""
    height, width = size_hw
    return (width, height) if _EXIF_TURNS[orientation][2] else size_hw


def upright(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Turn (H, W, 3) from stored to shown by its EXIF orientation, 1 to 8. Contiguous."""
    flip_y, flip_x, swap = _EXIF_TURNS[orientation]
    turned = pixels[:: -1 if flip_y else 1, :: -1 if flip_x else 1]
    return np.ascontiguousarray(turned.swapaxes(0, 1) if swap else turned)
