"""What stands in the pieces of a batch, for people: text, control tokens, media, and which tokens train.

The way back from a batch as a rank receives it (cp = 1, packed) to what it was made of. Pure: the batches
come from `preview.py`, which shows the result as a table; `preview_page.py` makes a page of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataloader_client.batch import IGNORED_LABEL, Batch
from dataloader_svc.media.mel import MelRule
from dataloader_svc.transforms.tokenizers import Tokenizer
from dataloader_svc.transforms.vision import VisionRule, from_patches

Kind = Literal["image", "video"]
_PIXELS: dict[Kind, str] = {"image": "pixel_values", "video": "pixel_values_videos"}


class PieceKey(NamedTuple):
    """A token range of a document: what a span of a batch and a piece of a plan have in common."""

    source: str
    epoch: int
    position: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive text tokens, or one control token. `target`: the model is trained to predict them."""

    text: str
    tokens: int
    control: bool
    target: bool


@dataclass(frozen=True, slots=True, eq=False)
class Medium:
    """A picture or clip in the place of its placeholder tokens.

    grid     (frames, height, width), in patches
    patches  uint8 (n, 3*patch*patch), as in the batch
    """

    kind: Kind
    tokens: int
    grid: tuple[int, int, int]
    patches: NDArray[np.uint8]
    rule: VisionRule

    @property
    def height(self) -> int:
        """Pixels, as the encoder sees them."""
        return self.grid[1] * self.rule.patch

    @property
    def width(self) -> int:
        """Pixels, as the encoder sees them."""
        return self.grid[2] * self.rule.patch

    @property
    def label(self) -> str:
        """`image 448x336: 192 tokens`, `video 8 x 224x168: 384 tokens`; width first."""
        frames = f"{self.grid[0]} x " if self.kind == "video" else ""
        return f"{self.kind} {frames}{self.width}x{self.height}: {self.tokens} tokens"

    def frames(self) -> NDArray[np.uint8]:
        """The pixels, (T, H, W, 3)."""
        return from_patches(self.patches, self.grid, self.rule)


@dataclass(frozen=True, slots=True, eq=False)
class Clip:
    """Sound in the place of its placeholder tokens. features: float32 (mel frames, bins), as in the batch."""

    tokens: int
    features: NDArray[np.float32]
    rule: MelRule
    kind: Literal["audio"] = "audio"

    @property
    def seconds(self) -> float:
        """With the silence that fills its last token."""
        return len(self.features) * self.rule.hop / self.rule.sample_rate

    @property
    def label(self) -> str:
        """`audio 3.20 s: 80 tokens`."""
        return f"{self.kind} {self.seconds:.2f} s: {self.tokens} tokens"

    def frames(self) -> NDArray[np.uint8]:
        """A picture of it, (1, bins, mel frames, 3): low frequencies below, loud is bright."""
        low, high = float(self.features.min()), float(self.features.max())
        grey = (self.features.T[::-1] - low) * (255 / ((high - low) or 1.0))
        return np.repeat(grey.astype(np.uint8)[None, :, :, None], 3, axis=3)


Part = Run | Medium | Clip


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """A piece's parts, in token order; `targets` of its tokens are trained on."""

    parts: tuple[Part, ...]
    targets: int

    @property
    def media(self) -> tuple[Medium | Clip, ...]:
        """Its pictures, videos and sound."""
        return tuple(part for part in self.parts if not isinstance(part, Run))

    def text(self) -> str:
        """One string: media as their labels in brackets."""
        return "".join(part.text if isinstance(part, Run) else f"[{part.label}]" for part in self.parts)


def read_contents(
    batches: Sequence[Batch],
    wanted: AbstractSet[PieceKey],
    tokenizer: Tokenizer,
    rule: VisionRule,
    mel: MelRule,
) -> dict[PieceKey, Content]:
    """The `wanted` pieces that the microbatches hold; the others are not decoded."""
    found: dict[PieceKey, Content] = {}
    control = frozenset(tokenizer.control.values())
    for batch in batches:
        media: list[tuple[int, Medium | Clip]] = [*_media_of(batch, rule), *_clips_of(batch, mel)]
        for span in batch.manifest.spans():
            key = PieceKey(span.source, span.epoch, span.position, span.start, span.length)
            if key in wanted:
                inside = [(at - span.offset, m) for at, m in media if 0 <= at - span.offset < span.length]
                found[key] = _content(batch, span.offset, span.length, inside, tokenizer, control)
    return found


def _media_of(batch: Batch, rule: VisionRule) -> Iterator[tuple[int, Medium]]:
    """(first placeholder token in the microbatch, medium) of every picture and clip."""
    arrays = batch.numpy
    for kind, pixels in _PIXELS.items():
        if pixels not in arrays:
            continue
        index, position = arrays[f"{kind}_index"], arrays[f"{kind}_position"]
        if not len(index):
            continue  # a placeholder of `ensure_modality` at most
        grids = arrays[f"{kind}_grid_thw"]
        bounds = np.concatenate([[0], np.cumsum(grids.prod(axis=1))]).tolist()
        merged = rule.merge**2
        token_of_row = dict(zip(index.tolist(), position.tolist(), strict=True))
        for grid, low, high in zip(grids.tolist(), bounds[:-1], bounds[1:], strict=True):
            patches = arrays[pixels][low:high]
            medium = Medium(kind, (high - low) // merged, (grid[0], grid[1], grid[2]), patches, rule)
            yield token_of_row[low // merged], medium


def _clips_of(batch: Batch, rule: MelRule) -> Iterator[tuple[int, Clip]]:
    """(first placeholder token in the microbatch, clip) of all sound."""
    arrays = batch.numpy
    if "audio_features" not in arrays or not len(arrays["audio_index"]):
        return  # no sound, or a placeholder of `ensure_modality`
    token_of_row = dict(zip(arrays["audio_index"].tolist(), arrays["audio_position"].tolist(), strict=True))
    at = 0
    for frames in arrays["audio_lengths"].tolist():
        clip = Clip(rule.num_tokens(frames), arrays["audio_features"][at : at + frames], rule)
        yield token_of_row[rule.num_tokens(at)], clip
        at += frames


def _content(
    batch: Batch,
    offset: int,
    length: int,
    media: Sequence[tuple[int, Medium | Clip]],
    tokenizer: Tokenizer,
    control: AbstractSet[int],
) -> Content:
    ids = batch.numpy["input_ids"][offset : offset + length]
    # labels[i] is the token after i: the first token of a piece is predicted by nothing.
    targets = np.zeros(length, bool)
    targets[1:] = batch.numpy["labels"][offset : offset + length - 1] != IGNORED_LABEL
    parts: list[Part] = []
    at = 0
    for start, medium in sorted(media, key=lambda entry: entry[0]):
        parts += _runs(ids[at:start], targets[at:start], tokenizer, control)
        parts.append(medium)
        at = start + medium.tokens
    parts += _runs(ids[at:], targets[at:], tokenizer, control)
    return Content(tuple(parts), int(targets.sum()))


def _runs(
    ids: NDArray[np.int64], targets: NDArray[np.bool_], tokenizer: Tokenizer, control: AbstractSet[int]
) -> Iterator[Run]:
    """Text between control tokens, cut where it begins or ceases to be a target."""
    is_control = np.isin(ids, list(control))
    for low, high in _stretches(is_control):
        if is_control[low]:
            for i in range(low, high):
                yield Run(tokenizer.decode([ids[i]]), 1, control=True, target=bool(targets[i]))
        else:
            yield from _text_runs(ids[low:high], targets[low:high], tokenizer)


def _text_runs(ids: NDArray[np.int64], targets: NDArray[np.bool_], tokenizer: Tokenizer) -> Iterator[Run]:
    """A token may hold half a character, so parts are cut out of the whole text, never decoded alone."""
    whole = tokenizer.decode(ids)
    done = 0
    for low, high in _stretches(targets):
        end = len(whole)
        if high < len(ids):
            end = max(done, _common_prefix(tokenizer.decode(ids[:high]), whole))
        yield Run(whole[done:end], high - low, control=False, target=bool(targets[low]))
        done = end


def _common_prefix(one: str, other: str) -> int:
    """Characters that both begin with."""
    differs = (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differs, min(len(one), len(other)))


def _stretches(values: NDArray[Any]) -> Iterator[tuple[int, int]]:
    """(first, stop) of each run of equal values."""
    if len(values):
        edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
        yield from zip(edges[:-1], edges[1:], strict=True)
