"""How many patches and tokens a picture becomes, and the patches themselves.

The geometry is Qwen2-VL's: sides are multiples of `patch * merge`, the area lies between two bounds, and
merge x merge patches become one token. The count follows from height and width alone, so the planner
knows a picture's cost before anybody has decoded it. Pure: knows no file, no decoder and no model; pixels
stay uint8 (the trainer scales them on its device, at a quarter of the bytes).
Sizes come from `media/` (probe), pixels too (decode); patches go on to `constructor/collate.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.errors import BadSample, Reason

MAX_ASPECT = 200  # as in Qwen2-VL: beyond it a picture is a line, and one side can't be kept


@dataclass(frozen=True, slots=True)
class VisionRule:
    """The encoder's geometry; defaults are those of `config.schema.Images` (a test compares them).

    patch, merge       side of a patch in pixels; side of the block of patches that makes one token
    min_pixels         smaller pictures are scaled up, at least to one token
    max_pixels         larger ones are scaled down; never exceeded
    max_source_pixels  larger ones are refused before they are decoded; used by `media/`
    """

    patch: int = 14
    merge: int = 2
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280
    max_source_pixels: int = 100_000_000

    def __post_init__(self) -> None:
        if min(self.patch, self.merge, self.min_pixels, self.max_source_pixels) < 1:
            raise ValueError(f"all of {self} must be positive")
        if self.max_pixels < max(self.min_pixels, self.side**2):
            raise ValueError(
                f"max_pixels {self.max_pixels} is below min_pixels {self.min_pixels} or below one token's "
                f"{self.side**2} pixels"
            )

    @property
    def side(self) -> int:
        """Side in pixels of the square that becomes one token."""
        return self.patch * self.merge


def smart_resize(height: int, width: int, rule: VisionRule) -> tuple[int, int]:
    """The (height, width) that a picture of this size is given, both multiples of `rule.side`.

    Qwen2-VL's "smart resize" (arXiv 2409.12191, section 2.1; `smart_resize` in QwenLM/Qwen2-VL,
    qwen-vl-utils `vision_process.py`): round each side to the nearest multiple (ties to even, never
    below one), then scale by the square root of the area's excess, rounding down, or lack, rounding up.
    One addition: there, keeping a thin picture's short side at one multiple can exceed `max_pixels`; here
    the long side gives way, because caps are hard.

    Raises BadSample BAD_SHAPE for an empty side or an aspect ratio above 200.
    """
    if height < 1 or width < 1:
        raise BadSample(Reason.BAD_SHAPE, f"{width}x{height}: both sides must be at least 1")
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise BadSample(Reason.BAD_SHAPE, f"{width}x{height}: aspect ratio above {MAX_ASPECT}")
    side = rule.side
    new_height = max(side, round(height / side) * side)
    new_width = max(side, round(width / side) * side)
    if new_height * new_width > rule.max_pixels:
        shrink = math.sqrt(height * width / rule.max_pixels)
        new_height = max(side, math.floor(height / shrink / side) * side)
        new_width = max(side, math.floor(width / shrink / side) * side)
    elif new_height * new_width < rule.min_pixels:
        grow = math.sqrt(rule.min_pixels / (height * width))
        new_height = math.ceil(height * grow / side) * side
        new_width = math.ceil(width * grow / side) * side
    return _within_cap(new_height, new_width, rule)


def _within_cap(height: int, width: int, rule: VisionRule) -> tuple[int, int]:
    if height * width <= rule.max_pixels:
        return height, width
    short = min(height, width)
    room = max(rule.side, rule.max_pixels // short // rule.side * rule.side)
    # A short side of several multiples can still be too much, e.g. where min_pixels == max_pixels.
    short = min(short, rule.max_pixels // room // rule.side * rule.side)
    return (short, room) if height <= width else (room, short)


def grid(height: int, width: int, rule: VisionRule) -> tuple[int, int]:
    """Patches (down, across) of a picture of a size that `smart_resize` gave."""
    assert height % rule.side == 0, f"height {height} is no multiple of {rule.side}"
    assert width % rule.side == 0, f"width {width} is no multiple of {rule.side}"
    return height // rule.patch, width // rule.patch


def num_tokens(grid_t: int, grid_h: int, grid_w: int, rule: VisionRule) -> int:
    """Tokens of a medium with grid (frames, patches down, patches across)."""
    return grid_t * grid_h * grid_w // rule.merge**2


def to_patches(
    frames: NDArray[np.uint8], rule: VisionRule, out: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8]:
    """Cut frames (T, H, W, 3) into patches (T*grid_h*grid_w, 3*patch*patch), both uint8.

    Row order: frames, then merge x merge blocks row by row, then the patches inside a block row by row, so
    that merge^2 consecutive rows are one token. Inside a row: channel, then y, then x. The order is that
    of Qwen2-VL's image processor with a temporal patch of one frame.
    Writes into `out` (same shape, contiguous) where given and returns it: one copy, no temporary.
    """
    blocks = _blocks(frames.shape[0], *grid(frames.shape[1], frames.shape[2], rule), rule)
    # axes: frame, block y, patch y, pixel y, block x, patch x, pixel x, channel
    view = frames.reshape(blocks)
    # axes: frame, block y, block x, patch y, patch x, channel, pixel y, pixel x
    view = view.transpose(0, 1, 4, 2, 5, 7, 3, 6)
    shape = (view.size // (3 * rule.patch**2), 3 * rule.patch**2)
    if out is None:
        out = np.empty(shape, np.uint8)
    assert out.shape == shape, f"out is {out.shape}, expected {shape}"
    assert out.flags.c_contiguous, "out must be contiguous: a reshape of it would be a copy"
    np.copyto(out.reshape(view.shape), view)
    return out


def from_patches(
    patches: NDArray[np.uint8], grid_thw: tuple[int, int, int], rule: VisionRule
) -> NDArray[np.uint8]:
    """Inverse of `to_patches`: patches (N, 3*patch*patch) with grid (t, h, w) -> frames (T, H, W, 3)."""
    frames, grid_h, grid_w = grid_thw
    t, block_y, m, p, block_x, _, _, channels = _blocks(frames, grid_h, grid_w, rule)
    # axes: frame, block y, block x, patch y, patch x, channel, pixel y, pixel x
    view = patches.reshape(t, block_y, block_x, m, m, channels, p, p)
    # axes: frame, block y, patch y, pixel y, block x, patch x, pixel x, channel
    view = view.transpose(0, 1, 3, 6, 2, 4, 7, 5)
    return view.reshape(frames, grid_h * p, grid_w * p, channels)


def _blocks(
    frames: int, grid_h: int, grid_w: int, rule: VisionRule
) -> tuple[int, int, int, int, int, int, int, int]:
    m, p = rule.merge, rule.patch
    return frames, grid_h // m, m, p, grid_w // m, m, p, 3
