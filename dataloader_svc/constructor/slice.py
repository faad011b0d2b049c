"""A microbatch -> what one rank needs: its cp slice, the pictures that touch it, its stage's fields.

Pure. The cut itself is `dataloader_balancers.context_parallel`; it is made sequence by sequence, so that
every cp rank gets the same number of tokens of each. tp ranks need the same arrays and share them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataloader_client.batch import FIELDS
from dataloader_svc.constructor.collate import Form, Microbatch
from dataloader_svc.constructor.dispatch import PIXELS, received
from dataloader_svc.constructor.placeholders import with_placeholders
from dataloader_svc.constructor.ragged import ragged
from dataloader_svc.constructor.sound import sound_of_slice

Cut = Callable[[NDArray[np.int32], int], Sequence[NDArray[Any]]]
"""(document bounds, cp) -> for each cp rank, indices of its tokens: a value of CUTS."""

_TOKEN_FIELDS = (
    *("input_ids", "labels", "loss_weight", "position_ids", "attention_mask", "document_ids"),
    "pair_ids",
)
_STAGES = {field.name: field.stages for field in FIELDS}


def slices(
    microbatch: Microbatch, form: Form, cut: Cut, encoded: Sequence[dict[str, NDArray[Any]]] | None = None
) -> list[dict[str, NDArray[Any]]]:
    """Arrays by cp rank. With cp = 1 they are views; else cu_seqlens and spans are shared, the rest copied.

    In the padded layout token fields become (B, L). `encoded`: by cp rank, what media are encoded there,
    where they need not be those of its tokens (`dispatch.py`).
    """
    rows = len(microbatch.rows) - 1
    if encoded is not None:
        indices = [None] if form.cp == 1 else _indices(microbatch, form.cp, cut)
        return [
            _shaped(_awaiting(microbatch, index, form) | there, form, rows)
            for index, there in zip(indices, encoded, strict=True)
        ]
    if form.cp == 1:
        return [_shaped(dict(microbatch.arrays), form, rows)]
    return [
        _shaped(_cut_to(microbatch, index, form), form, rows) for index in _indices(microbatch, form.cp, cut)
    ]


def _shaped(arrays: dict[str, NDArray[Any]], form: Form, rows: int) -> dict[str, NDArray[Any]]:
    if form.ensure_modality:
        arrays = with_placeholders(arrays, form)
    if form.layout == "padded":
        for name in (*_TOKEN_FIELDS, "cp_index"):
            if name in arrays:
                arrays[name] = arrays[name].reshape(rows, -1)
    return arrays


def _indices(microbatch: Microbatch, cp: int, cut: Cut) -> list[NDArray[np.int64]]:
    """For each cp rank, the places of its tokens in the microbatch, sequence after sequence."""
    parts: list[list[NDArray[np.int64]]] = [[] for _ in range(cp)]
    bounds = microbatch.cu_seqlens
    for low, high in zip(microbatch.rows[:-1].tolist(), microbatch.rows[1:].tolist(), strict=True):
        inside = bounds[np.searchsorted(bounds, low) : np.searchsorted(bounds, high) + 1]
        for rank, index in enumerate(cut(inside - np.int32(low), cp)):
            parts[rank].append(np.asarray(index, np.int64) + low)
    return [np.concatenate(part) for part in parts]


def _cut_to(microbatch: Microbatch, index: NDArray[np.int64], form: Form) -> dict[str, NDArray[Any]]:
    whole = microbatch.arrays
    arrays = {name: whole[name][index] if name in _TOKEN_FIELDS else array for name, array in whole.items()}
    arrays["cp_index"] = index.astype(np.int32)
    total = int(microbatch.rows[-1])
    for kind, pixels in PIXELS.items():
        if pixels in whole:
            arrays |= _media_of(kind, whole, index, total, form.merge**2)
    if "audio_features" in whole:
        arrays |= sound_of_slice(whole, index, total, form.frames_per_token)
    return arrays


def _awaiting(microbatch: Microbatch, index: NDArray[np.int64] | None, form: Form) -> dict[str, NDArray[Any]]:
    """Of a cp rank, with the tokens at `index`, where embeddings come from the ranks that encode."""
    whole, total = microbatch.arrays, int(microbatch.rows[-1])
    kinds = [name.removesuffix("_sender") for name in whole if name.endswith("_sender")]
    media = {f"{kind}_{part}" for kind in kinds for part in ("sender", "position")}
    arrays = {
        name: array if index is None or name not in _TOKEN_FIELDS else array[index]
        for name, array in whole.items()
        if name not in media
    }
    if index is not None:
        arrays["cp_index"] = index.astype(np.int32)
    for kind in kinds:
        arrays |= received(kind, whole, index, total, form.encoder_ranks)
    return arrays


def _media_of(
    kind: str, whole: dict[str, NDArray[Any]], index: NDArray[np.int64], total: int, merged: int
) -> dict[str, NDArray[Any]]:
    """The media with a token in the slice, whole (an encoder needs a picture at once), and the slice's own
    placeholders numbered among them.
    """
    row_of_token = np.full(total, -1, np.int64)
    row_of_token[whole[f"{kind}_position"]] = whole[f"{kind}_index"]
    rows = row_of_token[index]
    position = np.flatnonzero(rows >= 0)
    rows = rows[position]
    grid, pixels = whole[f"{kind}_grid_thw"], whole[PIXELS[kind]]
    patches = grid.prod(axis=1)
    ends = np.cumsum(patches)  # of each medium, in patches of the whole microbatch
    medium_of_row = np.searchsorted(ends, rows * merged, side="right")
    touched, renumbered = np.unique(medium_of_row, return_inverse=True)
    counts = patches[touched]
    old, new = (ends - patches)[touched], np.cumsum(counts) - counts
    arrays = {
        PIXELS[kind]: pixels[ragged(old, counts)],
        f"{kind}_grid_thw": grid[touched],
        f"{kind}_index": rows + ((new - old) // merged)[renumbered],
        f"{kind}_position": position,
    }
    if kind == "video":
        frames = grid[:, 0]
        first = np.cumsum(frames) - frames
        arrays["video_timestamps"] = whole["video_timestamps"][ragged(first[touched], frames[touched])]
    return arrays


def fields_of_stage(arrays: dict[str, NDArray[Any]], *, first: bool, last: bool) -> dict[str, NDArray[Any]]:
    """The arrays that a pipeline stage needs: tokens and pixels at the first, labels and weights at the
    last, shapes everywhere.
    """
    wanted = {"all"} | ({"first"} if first else set()) | ({"last"} if last else set())
    return {name: array for name, array in arrays.items() if _STAGES[name] in wanted}
