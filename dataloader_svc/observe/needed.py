"""Proof that no rank gets a byte that its stage and its slice do not need, from what all ranks got.

What is needed is worked out from numbers alone: tokens of the slice, documents, samples, and the media that a
token of the slice stands for, each whole since an encoder needs a picture at once. The table of bytes here is
the contract written down a second time; nothing is shared with the constructor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.observe.audit import Finding

Arrays = Mapping[str, NDArray[Any]]

_SPAN = {
    "span_source": 4,
    "span_epoch": 4,
    "span_position": 8,
    "span_start": 4,
    "span_length": 4,
    "span_sequence": 4,
    "span_offset": 4,
}
_PIXELS = {"image": "pixel_values", "video": "pixel_values_videos"}


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a job, as far as bytes depend on it.

    merge             patches of a token are its square
    pixel_width       bytes of a patch
    frames_per_token  mel frames of a token, each of `mel_bins` float32
    ensure_modality   whether a rank without media of a kind gets one of a token
    """

    padded: bool
    merge: int
    pixel_width: int
    mel_bins: int
    frames_per_token: int
    ensure_modality: bool = False


@dataclass(frozen=True, slots=True)
class Received:
    """What one rank got in a step: arrays of each microbatch by field, and the bytes its client counted."""

    dp: int
    cp: int
    tp: int
    pp: int
    microbatches: Sequence[Arrays]
    num_bytes: int

    def __str__(self) -> str:
        return f"dp={self.dp} cp={self.cp} tp={self.tp} pp={self.pp}"


def check_needed(
    ranks: Iterable[Received], stages: int, cp: int, shape: Shape, step: int, mesh: str
) -> tuple[list[Finding], Counter[str]]:
    """The first rank that got more or less than it needs, and the bytes that all need, by kind of stage:
    `only` (of one), `first`, `middle`, `last`.
    """
    by_place = {(rank.dp, rank.cp, rank.pp): rank for rank in ranks if rank.tp == 0}
    findings: list[Finding] = []
    totals: Counter[str] = Counter()
    for rank in ranks:
        ends = [by_place[rank.dp, rank.cp, pp].microbatches for pp in (0, stages - 1)]
        first, last = rank.pp == 0, rank.pp == stages - 1
        needed: Counter[str] = Counter()
        for head, tail in zip(*ends, strict=True):
            needed.update(fields_needed(head, tail, shape, cp=cp, first=first, last=last))
        totals[_stage(first=first, last=last)] += needed.total()
        got: Counter[str] = Counter()
        for arrays in rank.microbatches:
            got.update({name: array.nbytes for name, array in arrays.items()})
        what = next((name for name in sorted(got | needed) if got[name] != needed[name]), None)
        if what is not None:
            detail = f"{got[what]} bytes of {what}, {needed[what]} needed"
            findings.append(Finding("needed", mesh, step, str(rank), detail))
        elif rank.num_bytes != needed.total():
            detail = f"{rank.num_bytes} bytes came, {needed.total()} needed"
            findings.append(Finding("needed", mesh, step, str(rank), detail))
    return findings[:1], totals


def _stage(*, first: bool, last: bool) -> str:
    return {(True, True): "only", (True, False): "first", (False, True): "last"}.get((first, last), "middle")


def fields_needed(
    head: Arrays, tail: Arrays, shape: Shape, *, cp: int, first: bool, last: bool
) -> dict[str, int]:
    """Bytes of each field of a microbatch that a rank of such a stage needs.

    `head`, `tail`   what the first and the last stage got of the same slice: read for numbers of things only
    """
    tokens, spans = head["input_ids"].size, len(head["span_source"])
    needed = {"position_ids": 8 * tokens}
    needed |= {name: width * spans for name, width in _SPAN.items()}
    if cp > 1:
        needed["cp_index"] = 4 * tokens
    if shape.padded:
        needed |= {"attention_mask": 8 * tokens, "document_ids": 4 * tokens}
    else:
        needed["cu_seqlens"] = 4 * len(head["cu_seqlens"])
    if first:
        needed |= {"input_ids": 8 * tokens} | _media(head, shape)
    if last:
        needed |= {"labels": 8 * tokens, "loss_weight": 4 * tokens}
        if "pair_bounds" in tail:
            needed |= {"pair_ids": 4 * tokens, "pair_bounds": 12 * len(tail["pair_bounds"])}
    return needed


def _media(head: Arrays, shape: Shape) -> dict[str, int]:
    needed: dict[str, int] = {}
    for kind, pixels in _PIXELS.items():
        if f"{kind}_index" not in head:
            continue
        grid = head[f"{kind}_grid_thw"]
        touched = _touched(head[f"{kind}_index"], grid.prod(axis=1) // shape.merge**2)
        # One that no token stands for is of a token, where there is one for the encoder's sake.
        count = len(touched) or int(shape.ensure_modality)
        patches = int(grid[touched].prod(axis=1).sum()) or count * shape.merge**2
        needed |= {pixels: patches * shape.pixel_width, f"{kind}_grid_thw": 24 * count}
        needed |= _places(head, kind)
        if kind == "video":
            needed["video_timestamps"] = 4 * (int(grid[touched, 0].sum()) or count)
    if "audio_index" in head:
        lengths = head["audio_lengths"]
        touched = _touched(head["audio_index"], lengths // shape.frames_per_token)
        count = len(touched) or int(shape.ensure_modality)
        frames = int(lengths[touched].sum()) or count * shape.frames_per_token
        needed |= {"audio_features": 4 * frames * shape.mel_bins, "audio_lengths": 8 * count}
        needed |= _places(head, "audio")
    return needed


def _places(head: Arrays, kind: str) -> dict[str, int]:
    return {f"{kind}_{name}": 8 * len(head[f"{kind}_position"]) for name in ("index", "position")}


def _touched(index: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.intp]:
    """Which media the embeddings `index` are of, where medium i has the next `rows[i]` of them."""
    touched: NDArray[np.intp] = np.unique(np.searchsorted(np.cumsum(rows), index, side="right"))
    return touched
