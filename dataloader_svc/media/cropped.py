"""Pictures cut to one size, around any reader of pictures.

Says at the probe that every picture has that size, and at the decode makes it so: scaled until both sides
cover it, then cut. So the grid that was planned is the one that is decoded. Knows no source and no seed:
whoever decodes says which part is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.media.base import MediaProbe, MediaReader

_MAX_ASPECT = 200  # as of pictures that are not cropped (Qwen2-VL); it also bounds the scaled picture


@dataclass(frozen=True, slots=True)
class CroppedReader:
    """`MediaReader` whose pictures all have `height` x `width` pixels.

    at_y, at_x   which part is kept, each 0 (top, left) to 1 (bottom, right)
    """

    pictures: MediaReader
    height: int
    width: int
    at_y: float = 0.5
    at_x: float = 0.5

    def probe(self, data: bytes) -> MediaProbe:
        found = self.pictures.probe(data)
        if max(found.height, found.width) > _MAX_ASPECT * min(found.height, found.width):
            raise BadSample(
                Reason.BAD_SHAPE, f"{found.width}x{found.height}: aspect ratio above {_MAX_ASPECT}"
            )
        return replace(found, height=self.height, width=self.width)

    def decode(self, data: bytes, size_hw: tuple[int, int]) -> NDArray[np.uint8]:
        assert size_hw == (self.height, self.width), "the size that the probe promised"
        found = self.pictures.probe(data)
        height, width = covering(found.height, found.width, self.height, self.width)
        frames = self.pictures.decode(data, (height, width))
        top, left = round(self.at_y * (height - self.height)), round(self.at_x * (width - self.width))
        return frames[:, top : top + self.height, left : left + self.width]


def covering(height: int, width: int, least_height: int, least_width: int) -> tuple[int, int]:
    """The smallest (height, width) of the same shape that covers both; one side is met exactly.

    Integers throughout, so that it is the same on every machine: the longer side is rounded to nearest.
    """
    if height * least_width <= width * least_height:  # flatter than what is wanted
        return least_height, max(least_width, (2 * width * least_height + height) // (2 * height))
    return max(least_height, (2 * height * least_width + width) // (2 * width)), least_width
