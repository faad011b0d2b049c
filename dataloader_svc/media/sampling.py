"""Which frames of a clip are taken: pure, from the time stamps alone.

`video_index.py` reads the stamps, `video.py` decodes what is chosen here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class VideoSampling:
    """Which frames: a fixed number, so many a second, the key frames, or (none given) all; evenly spaced,
    and never more than `max_frames`.
    """

    fps: float | None = None
    frames: int | None = None
    keyframes: bool = False
    max_frames: int = 32

    def __post_init__(self) -> None:
        if sum([self.fps is not None, self.frames is not None, self.keyframes]) > 1:
            raise ValueError(
                f"fps {self.fps}, frames {self.frames}, keyframes {self.keyframes}: give one of them"
            )
        if any(value is not None and value <= 0 for value in (self.fps, self.frames, self.max_frames)):
            raise ValueError(f"all of {self} must be positive")

    def choose(
        self, stamps: NDArray[np.int64], key_frames: NDArray[np.int64], duration_s: float
    ) -> NDArray[np.int64]:
        """Indices, not falling, into the rising `stamps` of a clip's frames; at least one.

        key_frames   rising indices of the frames that decoding can start at; where there are none, as if all
                     were
        """
        if not self.keyframes or not len(key_frames):
            return evenly_spaced(stamps, self.num_frames(len(stamps), duration_s))
        if len(key_frames) <= self.max_frames:
            return key_frames
        return key_frames[evenly_spaced(stamps[key_frames], self.max_frames)]

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
