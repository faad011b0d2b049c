"""What the loader knows of a medium before decoding it, and the two questions a kind of medium answers.

A medium is probed once from its header (cheap: its tokens are counted by that), and decoded when a plan
names it, to exactly the size the plan was made for. Whatever is wrong with the bytes is a `BadSample`
with its reason; nothing else may come out of a reader, because the bytes are a stranger's.
Knows no decoder: `image.py` and `video.py` do. How a size is chosen is `transforms/vision.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.errors import BadSample, Reason


@dataclass(frozen=True, slots=True)
class MediaProbe:
    """What the header says.

    height, width  as shown: after EXIF orientation or the display matrix, which `decode` applies too
    frames         1 for a picture (also an animated one: its first frame); of a video, the number chosen
    format         the picture's format or the video's codec, lower case: "jpeg", "png", "h264"
    has_alpha      something of it is composited on white
    timestamps     of the chosen frames, in seconds after the clip's first; empty for a picture
    """

    kind: Literal["image", "video"]
    height: int
    width: int
    frames: int = 1
    format: str = ""
    has_alpha: bool = False
    timestamps: tuple[float, ...] = ()


class MediaReader(Protocol):
    """One kind of medium. Stateless, so any number of threads may share one."""

    def probe(self, data: bytes) -> MediaProbe:
        """Read the header only. Raises BadSample."""

    def decode(self, data: bytes, size_hw: tuple[int, int]) -> NDArray[np.uint8]:
        """All chosen frames, uint8 RGB (T, height, width, 3) with (height, width) = `size_hw`.

        T is the probe's `frames`: fewer is an error (TRUNCATED), never a shorter array. Raises BadSample.
        """


def check_size(height: int, width: int, max_source_pixels: int | None) -> None:
    """Refuse a picture from its header, before any memory is taken for it. Raises BadSample."""
    if height < 1 or width < 1:
        raise BadSample(Reason.BAD_SHAPE, f"{width}x{height}: both sides must be at least 1")
    if max_source_pixels is not None and height * width > max_source_pixels:
        raise BadSample(
            Reason.TOO_MANY_PIXELS,
            f"{width}x{height} = {height * width} pixels; max_source_pixels is {max_source_pixels}",
        )
