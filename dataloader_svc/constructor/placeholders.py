"""The smallest medium of no weight, for a rank that has none of a kind which the step has elsewhere.

Pure. Such a rank runs its encoder like all others, so that none waits in a collective for one that skipped
it (`ensure_modality`). No token of the batch is given the placeholder's embedding, so neither loss nor
gradient can come from it: `{kind}_index` and `{kind}_position` stay empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dataloader_svc.constructor.collate import Form


def with_placeholders(arrays: dict[str, NDArray[Any]], form: Form) -> dict[str, NDArray[Any]]:
    """The fields of a slice, with a placeholder of each kind that has fields and no rows.

    A picture or clip is zeros uint8 (merge^2, pixel_width) with grid (1, merge, merge): one token. Sound is
    zeros float32 (frames_per_token, mel_bins): one token.
    """
    for kind, pixels in (("image", "pixel_values"), ("video", "pixel_values_videos")):
        if pixels in arrays and not len(arrays[f"{kind}_grid_thw"]):
            arrays = arrays | {
                pixels: np.zeros((form.merge**2, form.pixel_width), np.uint8),
                f"{kind}_grid_thw": np.array([[1, form.merge, form.merge]], np.int64),
            }
            if kind == "video":
                arrays["video_timestamps"] = np.zeros(1, np.float32)
    if "audio_features" in arrays and not len(arrays["audio_lengths"]):
        arrays = arrays | {
            "audio_features": np.zeros((form.frames_per_token, form.mel_bins), np.float32),
            "audio_lengths": np.array([form.frames_per_token], np.int64),
        }
    return arrays


def placeholder_bytes(form: Form) -> int:
    """Bytes of one placeholder of each kind: what a slice of a microbatch may grow by."""
    visual = form.merge**2 * form.pixel_width + 3 * 8
    sound = form.frames_per_token * form.mel_bins * 4 + 8
    return 2 * visual + 4 + sound
