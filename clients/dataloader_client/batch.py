"""What a rank is given: `Batch`, one microbatch, and `Manifest`, which samples it is made of.

`FIELDS` is the one place where the arrays of a batch, their shapes and dtypes are written down; the
constructor builds from it and tests compare both ends with it. Knows numpy; torch is imported only when
tensors are asked for. How the arrays come here: `transport.py`; how they are built: `constructor/collate.py`
of the service.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataloader_client.errors import WireError
from dataloader_client.wire import Frame

if TYPE_CHECKING:
    import torch

Layout = Literal["packed", "padded"]
Stages = Literal["all", "first", "last"]

IGNORED_LABEL = -100
"""Label of a position without a target: what `torch.nn.functional.cross_entropy` ignores by default."""

PAD_ID = 0
"""Token in places that belong to no document. Any would do: its label is ignored and its weight is 0."""


@dataclass(frozen=True, slots=True)
class Field:
    """One array of a microbatch; a shape of "" means that the layout does not have it."""

    name: str
    dtype: str
    packed: str
    padded: str
    stages: Stages
    when: Literal["always", "cp", "pairs", "image", "video", "audio"]
    meaning: str


# T: tokens of the microbatch on this cp rank. B: its sequences. L: tokens of a padded row on this cp rank.
# D: documents, padding documents included. P: patches; I: pictures or clips; F: frames of clips. M: mel
# frames; C: clips of sound. K: placeholder tokens on this rank. Q: preference pairs, S: spans (pieces of
# samples) of the whole microbatch, before the cp cut.
# R: ranks along dp and cp. E: rows of embeddings that a rank makes of its media.
_TEXT = (
    Field("input_ids", "int64", "(T,)", "(B, L)", "first", "always", "token ids"),
    Field(
        "labels", "int64", "(T,)", "(B, L)", "last", "always",
        "the next token: already shifted. -100 where there is no target: at a document's last token, in "
        "front of a media token, in masked turns, in undecodable samples, in padding",
    ),
    Field("loss_weight", "float32", "(T,)", "(B, L)", "last", "always", "0 where labels is -100"),
    Field("position_ids", "int64", "(T,)", "(B, L)", "all", "always", "starts at 0 in each document"),
    Field(
        "cu_seqlens", "int32", "(D+1,)", "", "all", "always",
        "where documents begin, and the end; of the whole microbatch, before the cp cut",
    ),
    Field("attention_mask", "int64", "", "(B, L)", "all", "always", "0 in padding, else 1"),
    Field("document_ids", "int32", "", "(B, L)", "all", "always", "1, 2, ... in a row; 0 in padding"),
    Field(
        "cp_index", "int32", "(T,)", "(B, L)", "all", "cp",
        "where each token of this cp rank stands in the (flattened) whole microbatch",
    ),
    Field(
        "pair_ids", "int32", "(T,)", "(B, L)", "last", "pairs",
        "2k + 1 in the chosen and 2k + 2 in the rejected document of the k-th preference pair of the whole "
        "microbatch, 0 outside of pairs; the same numbers on all cp ranks",
    ),
    Field(
        "pair_bounds", "int32", "(Q, 3)", "(Q, 3)", "last", "pairs",
        "where the chosen and the rejected document of each pair begin, and the end of both, in the "
        "(flattened) whole microbatch, before the cp cut",
    ),
)  # fmt: skip


def _media(kind: Literal["image", "video"], pixels: str) -> tuple[Field, ...]:
    grid = "1, height, width" if kind == "image" else "frames, height, width"
    return (
        Field(pixels, "uint8", "(P, 3*patch*patch)", "(P, 3*patch*patch)", "first", kind,
              "patches; channel first; merge blocks row by row, merge x merge patches in each"),
        Field(f"{kind}_grid_thw", "int64", "(I, 3)", "(I, 3)", "first", kind, f"{grid}, in patches"),
        Field(f"{kind}_index", "int64", "(K,)", "(K,)", "first", kind,
              "for each placeholder token, in token order, its row of the merged patch embeddings"),
        Field(f"{kind}_position", "int64", "(K,)", "(K,)", "first", kind,
              "where those placeholder tokens stand in this rank's (flattened) input_ids"),
    )  # fmt: skip


_SOUND = (
    Field("audio_features", "float32", "(M, bins)", "(M, bins)", "first", "audio",
          "log-mel frames as Whisper's, clip after clip"),
    Field("audio_lengths", "int64", "(C,)", "(C,)", "first", "audio",
          "mel frames of each clip: whole tokens, so the last ones may be silence"),
    Field("audio_index", "int64", "(K,)", "(K,)", "first", "audio",
          "for each placeholder token, in token order, its row of the embeddings of all clips, which has "
          "lengths / frames_per_token of each"),
    Field("audio_position", "int64", "(K,)", "(K,)", "first", "audio",
          "where those placeholder tokens stand in this rank's (flattened) input_ids"),
)  # fmt: skip


def send_fields(kind: str) -> tuple[str, str]:
    """Names of the counts and, with cp > 1, of the index by which the embeddings of a kind are sent."""
    return f"{kind}_send_counts", f"{kind}_send_index"


def _dispatch(kind: Literal["image", "video", "audio"]) -> tuple[Field, ...]:
    counts, index = send_fields(kind)
    return (
        Field(counts, "int64", "(R,)", "(R,)", "first", kind,
              "with `encoder_placement: dispatch`: rows of embeddings that go from here to each rank, "
              "dp rank * cp + cp rank; in their order, so that without cp they are sent as they are made"),
        Field(index, "int64", "(E,)", "(E,)", "first", kind,
              "with dispatch and cp > 1: rows of the embeddings of this rank's media in the order in which "
              "they are sent"),
        Field(f"{kind}_receive_counts", "int64", "(R,)", "(R,)", "first", kind,
              "with dispatch: rows that come from each rank; index says which of them, one behind the other, "
              "is a placeholder's"),
    )  # fmt: skip


SPAN_FIELDS = (
    Field("span_source", "int32", "(S,)", "(S,)", "all", "always", "index into the batch's `sources`"),
    Field("span_epoch", "int32", "(S,)", "(S,)", "all", "always", "epoch of the source"),
    Field("span_position", "int64", "(S,)", "(S,)", "all", "always", "position in the order of the epoch"),
    Field("span_start", "int32", "(S,)", "(S,)", "all", "always", "first token of the span in its document"),
    Field("span_length", "int32", "(S,)", "(S,)", "all", "always", "tokens"),
    Field("span_sequence", "int32", "(S,)", "(S,)", "all", "always", "sequence of the microbatch"),
    Field("span_offset", "int32", "(S,)", "(S,)", "all", "always",
          "first token of the span in the (flattened) whole microbatch, before the cp cut"),
)  # fmt: skip

FIELDS: tuple[Field, ...] = (
    *_TEXT,
    *_media("image", "pixel_values"),
    *_media("video", "pixel_values_videos"),
    Field(
        "video_timestamps",
        "float32",
        "(F,)",
        "(F,)",
        "first",
        "video",
        "of each frame, in seconds after the first of its clip; the frames of the rows of video_grid_thw",
    ),
    *_SOUND,
    *_dispatch("image"),
    *_dispatch("video"),
    *_dispatch("audio"),
    *SPAN_FIELDS,
)
"""Every array of a microbatch. `stages`: which pipeline stage gets it; with pp = 1 a rank is both ends.
`when`: `cp` only with cp > 1; `pairs` in each batch of a job that has a source of preference pairs; `image`,
`video` and `audio` on every rank whenever the step has one anywhere; with `ensure_modality` a
rank without has one of zeros there, behind no token: its `_index` and `_position` are empty. With
`encoder_placement: dispatch`, pixels, frames and grids are of what the rank encodes, `_index` and `_position`
of the tokens that it has."""

_SPAN_NAMES = frozenset(spec.name for spec in SPAN_FIELDS)


class Span(NamedTuple):
    """A run of tokens and the sample it comes from: (`source`, `epoch`, `position`) names it for ever."""

    source: str
    epoch: int
    position: int
    start: int
    length: int
    sequence: int
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Manifest:
    """Which samples a microbatch holds, as columns (`span_*` of FIELDS); `spans` reads them row by row.

    It describes the whole microbatch, also on a cp rank that holds a slice of it.
    """

    sources: tuple[str, ...]
    columns: dict[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.columns["span_source"])

    def spans(self) -> Iterator[Span]:
        """The rows, in token order."""
        rows = zip(*(self.columns[spec.name].tolist() for spec in SPAN_FIELDS), strict=True)
        for source, *rest in rows:
            yield Span(self.sources[source], *rest)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One microbatch of one rank. `batch["labels"]`, `batch.labels`, `batch.inputs["labels"]`: the same.

    step, microbatch, num_microbatches   which part of which optimiser step this is; as many on every rank,
                     but with `global_batch: {samples: ...}` not in every step
    numpy            the arrays (FIELDS, without the manifest), views of one received buffer
    max_seqlen       longest document of the microbatch, in tokens
    num_tokens       tokens of documents in the whole microbatch, over all its cp ranks; no padding
    loss_weight_sum  sum of `loss_weight` over all ranks and microbatches of the step: divide the summed loss
                     by it, and every target token of the step weighs the same wherever it is
    num_pairs        preference pairs of the step over all ranks and microbatches: divide the summed loss of
                     pairs by it
    presence         {"image": bool, "video": bool, "audio": bool}: whether the step has any, on any rank
    digest           of the step's set of samples; equal on every mesh
    metrics, trace   what the service measured of the step; seconds by phase
    """

    step: int
    microbatch: int
    num_microbatches: int
    numpy: dict[str, NDArray[Any]]
    manifest: Manifest
    presence: dict[str, bool]
    max_seqlen: int
    num_tokens: int
    loss_weight_sum: float
    digest: str
    metrics: dict[str, float]
    trace: dict[str, float]
    num_pairs: int = 0
    _tensors: dict[str, torch.Tensor] = field(default_factory=dict, repr=False)

    @property
    def is_last_microbatch(self) -> bool:
        """Whether the optimiser steps after this one."""
        return self.microbatch + 1 == self.num_microbatches

    @property
    def is_dispatched(self) -> bool:
        """Whether media may be of other ranks' tokens, whose embeddings are to be sent to them:
        `integrations.encoder_placement.embed`.
        """
        return any(name.endswith("_send_counts") for name in self.numpy)

    @property
    def inputs(self) -> dict[str, Any]:
        """All arrays as torch tensors over the same memory, made when first asked for, and `max_seqlen`."""
        return {**self.tensors(), "max_seqlen": self.max_seqlen}

    def tensors(self) -> dict[str, torch.Tensor]:
        """`inputs` without what is no tensor."""
        return {name: self._tensor(name) for name in self.numpy}

    def _tensor(self, name: str) -> torch.Tensor:
        if name not in self._tensors:
            import torch

            self._tensors[name] = torch.from_numpy(self.numpy[name])
        return self._tensors[name]

    def to(self, device: str | torch.device, *, non_blocking: bool = False) -> Batch:
        """The same batch with its tensors on `device`; `numpy` stays where it is."""
        tensors = {name: self._tensor(name).to(device, non_blocking=non_blocking) for name in self.numpy}
        return Batch(**{**self._values(), "_tensors": tensors})

    def pin_memory(self) -> Batch:
        """The same batch with its tensors copied to pinned memory, from which copies to a GPU run alone."""
        pinned = {name: tensor.pin_memory() for name, tensor in self.tensors().items()}
        return Batch(**{**self._values(), "_tensors": pinned})

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def __getitem__(self, name: str) -> Any:
        if name == "max_seqlen":
            return self.max_seqlen
        if name in self.numpy:
            return self._tensor(name)
        raise KeyError(self._absent(name))

    def __getattr__(self, name: str) -> Any:
        # Reached only for what is no attribute: fields of the batch.
        if name.startswith("_") or name not in self.numpy:
            raise AttributeError(self._absent(name))
        return self._tensor(name)

    def __contains__(self, name: object) -> bool:
        return name in self.numpy

    def keys(self) -> list[str]:
        """Names of the tensors; with `__getitem__` this makes `dict(batch)` and `model(**batch)` work."""
        return [*self.numpy, "max_seqlen"]

    def _absent(self, name: str) -> str:
        known = next((spec for spec in FIELDS if spec.name == name), None)
        if known is None or name in _SPAN_NAMES:
            return f"a batch has no field {name!r}; this one has {', '.join(sorted(self.numpy))}"
        if name.endswith(("_send_counts", "_send_index", "_receive_counts")) and not self.is_dispatched:
            return f"no {name!r} in this batch: each rank encodes its own media (strategy.encoder_placement)"
        reason = {
            "cp": "this mesh has cp = 1",
            "pairs": "no source of this job has preference pairs",
            "image": "step {} has no picture on any rank",
            "video": "step {} has no video on any rank",
            "audio": "step {} has no sound on any rank",
        }.get(known.when if not self.presence.get(known.when, False) else "", "")
        reason = reason or f"only the {known.stages} pipeline stage, or another layout, has it"
        return f"no {name!r} in this batch: " + reason.format(self.step)


def split(frame: Frame) -> list[Batch]:
    """The microbatches of one step's frame, in order; none when it says that the data has ended.

    Raises WireError where the frame is no step: a missing key or array.
    """
    meta = frame.meta
    if meta.get("end"):
        return []
    try:
        count = int(meta["microbatches"])
        parts: list[dict[str, NDArray[Any]]] = [{} for _ in range(count)]
        for name, array in frame.arrays.items():
            number, _, field_name = name.partition("/")
            parts[int(number)][field_name] = array
        return [_batch(meta, number, arrays) for number, arrays in enumerate(parts)]
    except (KeyError, ValueError, IndexError) as error:
        raise WireError(
            f"a step's frame lacks or garbles {error}: is this address a dataloader-svc?"
        ) from None


def _batch(meta: dict[str, Any], number: int, arrays: dict[str, NDArray[Any]]) -> Batch:
    manifest = {name: arrays.pop(name) for name in sorted(_SPAN_NAMES)}
    return Batch(
        step=meta["step"],
        microbatch=number,
        num_microbatches=meta["microbatches"],
        numpy=arrays,
        manifest=Manifest(tuple(meta["sources"]), manifest),
        presence=meta["presence"],
        max_seqlen=meta["max_seqlen"][number],
        num_tokens=meta["num_tokens"][number],
        loss_weight_sum=meta["loss_weight_sum"],
        digest=meta["digest"],
        metrics=meta["metrics"],
        trace=meta["trace"],
        num_pairs=meta.get("num_pairs", 0),  # of services that know none, it has none
    )


def check_fields(arrays: dict[str, NDArray[Any]], layout: Layout) -> None:
    """Compare names, dtypes and dimensions with FIELDS; AssertionError names the first that differs.

    For tests of constructors and of clients in other languages; not called on the way of a batch.
    """
    table = {spec.name: spec for spec in FIELDS}
    for name, array in arrays.items():
        spec = table[name]
        shape = spec.packed if layout == "packed" else spec.padded
        dims = len([part for part in shape.strip("()").split(",") if part.strip()])
        found = (array.dtype.name, array.ndim)
        assert shape, f"{name} does not belong to layout {layout}"
        assert found == (spec.dtype, dims), f"{name} is {found}, should be {(spec.dtype, dims)}"
        assert array.flags["C_CONTIGUOUS"], f"{name} is not contiguous"


__all__ = [
    "FIELDS",
    "IGNORED_LABEL",
    "PAD_ID",
    "SPAN_FIELDS",
    "Batch",
    "Field",
    "Layout",
    "Manifest",
    "Span",
    "check_fields",
    "send_fields",
    "split",
]

assert len({spec.name for spec in FIELDS}) == len(FIELDS)
assert all(np.dtype(spec.dtype).name == spec.dtype for spec in FIELDS)
