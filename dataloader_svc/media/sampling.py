"""Which frames of a clip are taken: pure, from the time stamps alone.

`video.py` reads the stamps and decodes what is chosen here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class VideoSampling:
    """How many frames: a fixed number, so many a second, or (neither given) up to `max_frames`."""

    fps: float | None = None
    frames: int | None = None
    max_frames: int = 32

    def __post_init__(self) -> None:
        if self.fps is not None and self.frames is not None:
            raise ValueError(f"fps {self.fps} and frames {self.frames}: give one of them")
        if any(value is not None and value <= 0 for value in (self.fps, self.frames, self.max_frames)):
            raise ValueError(f"all of {self} must be positive")

    def num_frames(self, available: int, duration_s: float) -> int:
        """Frames to take of a clip of `available` >= 1 frames: at least 1, at most what there is."""
        wanted = available
        if self.frames is not None:
            wanted = self.frames
        elif self.fps is not None:
            wanted = round(duration_s * self.fps)
        return max(1, min(wanted, self.max_frames, available))


def evenly_spaced(stamps: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Indices (count,) into rising `stamps` of the frames nearest to `count` evenly spaced moments.

    The first and the last frame are among them; a single one is the middle. Spaced in time, not in
    number: of a clip with a variable rate a long-lasting frame may be taken twice. Ties go to the earlier
    frame. Integers only, so every machine chooses alike.
    """
    since_start = stamps - stamps[0]
    steps = max(count - 1, 1)
    moments = np.arange(count) if count > 1 else np.array([0.5])
    # Frame j is nearest from the middle between j-1 and j on; both sides are doubled, times `steps`.
    middles = (since_start[:-1] + since_start[1:]) * steps
    doubled = (2 * moments).astype(np.int64) * since_start[-1]
    return np.asarray(np.searchsorted(middles, doubled, side="left"), np.int64)
