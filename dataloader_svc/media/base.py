"""What the loader knows of a medium before decoding it, and the two questions a kind of medium answers.

A medium is probed once from its header (cheap: its tokens are counted by that), and decoded when a plan
names it, to exactly the size the plan was made for. Whatever is wrong with the bytes is a `BadSample`
with its reason; nothing else may come out of a reader, because the bytes are a stranger's.
Knows no decoder: `image.py`, `video.py` and `audio.py` do. How a size is chosen is `transforms/vision.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.errors import BadSample, Reason


@dataclass(frozen=True, slots=True)
class MediaProbe:
    """What the header says.

    height, width  as shown: after EXIF orientation or the display matrix, which `decode` applies too;
                   0 of audio
    frames         1 for a picture (also an animated one: its first frame); of a video, the number chosen; of
                   audio, mel frames
    format         the picture's format or the codec, lower case: "jpeg", "png", "h264", "flac"
    has_alpha      something of it is composited on white
    timestamps     of the chosen frames, in seconds after the clip's first; empty for a picture
    """

    kind: Literal["image", "video", "audio"]
    height: int
    width: int
    frames: int = 1
    format: str = ""
    has_alpha: bool = False
    timestamps: tuple[float, ...] = ()


Stretch = tuple[int, int]
"""(first mel frame, mel frames) of a clip of sound."""


class Prober(Protocol):
    """One kind of medium. Stateless, so any number of threads may share one."""

    def probe(self, data: bytes) -> MediaProbe:
        """Read the header only. Raises BadSample."""


class MediaReader(Prober, Protocol):
    """Of pictures or videos."""

    def decode(self, data: bytes, size_hw: tuple[int, int]) -> NDArray[np.uint8]:
        """All chosen frames, uint8 RGB (T, height, width, 3) with (height, width) = `size_hw`.

        T is the probe's `frames`: fewer is an error (TRUNCATED), never a shorter array. Raises BadSample.
        """


class SoundReader(Prober, Protocol):
    """Of sound."""

    def features(self, data: bytes, stretches: Sequence[Stretch]) -> NDArray[np.float32]:
        """Log-mel features of ascending stretches within the probe's `frames`, one after the other: float32
        (frames, bins), each as if it were a clip alone. Raises BadSample.
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
