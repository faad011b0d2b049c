"""The sound of a rank's step: clips in token order, and what a microbatch or a cp slice gets of them.

Pure. Pictures and videos have patches and a grid (`collate.py`, `slice.py`); clips have mel frames.
A clip goes whole to each rank that has a token of it, since an encoder needs it at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.constructor.ragged import ragged


class Clips:
    """All clips of a rank's step in token order; `between` cuts out a microbatch's.

    token      int64 (c,) first placeholder of each clip
    features   by clip: float32 (mel frames, bins)
    """

    def __init__(
        self, token: NDArray[np.int64], features: list[NDArray[np.float32]], bins: int, frames_per_token: int
    ) -> None:
        self._token, self._per_token = token, frames_per_token
        self._lengths = np.array([len(frames) for frames in features], np.int64)
        self._ends = np.concatenate(([0], np.cumsum(self._lengths)))
        self._features = np.concatenate([np.empty((0, bins), np.float32), *features])
        self._position = ragged(token, self._lengths // frames_per_token)

    def between(self, first: int, last: int) -> dict[str, NDArray[Any]]:
        """The fields of the clips whose tokens lie in [first, last)."""
        low, high = np.searchsorted(self._token, (first, last)).tolist()
        begin, end = int(self._ends[low]), int(self._ends[high])
        position = self._position[begin // self._per_token : end // self._per_token] - first
        return {
            "audio_features": self._features[begin:end],
            "audio_lengths": self._lengths[low:high],
            "audio_index": np.arange(len(position), dtype=np.int64),
            "audio_position": position,
        }


def sound_of_slice(
    whole: dict[str, NDArray[Any]], index: NDArray[np.int64], total: int, frames_per_token: int
) -> dict[str, NDArray[Any]]:
    """The clips with a token at `index`, whole, and the slice's own placeholders numbered among them.

    whole   the fields of a microbatch of `total` tokens, of which a cp rank has those at `index`
    """
    row_of_token = np.full(total, -1, np.int64)
    row_of_token[whole["audio_position"]] = whole["audio_index"]
    rows = row_of_token[index]
    position = np.flatnonzero(rows >= 0)
    rows = rows[position]
    lengths = whole["audio_lengths"]
    ends = np.cumsum(lengths)  # of each clip, in frames of the whole microbatch
    touched, renumbered = np.unique(
        np.searchsorted(ends, rows * frames_per_token, side="right"), return_inverse=True
    )
    counts = lengths[touched]
    old, new = (ends - lengths)[touched], np.cumsum(counts) - counts
    return {
        "audio_features": whole["audio_features"][ragged(old, counts)],
        "audio_lengths": counts,
        "audio_index": rows + ((new - old) // frames_per_token)[renumbered],
        "audio_position": position,
    }
