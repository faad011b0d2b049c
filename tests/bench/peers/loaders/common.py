"""The work that is the same for all peers: encode, pack, decode. Loading is what differs.

Pictures are decoded by the service's own reader in style "same" (libjpeg-turbo, scaled while decoding), so
that no peer loses by its decoder; style "own" is Pillow, which most users of the peers have.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.transforms.vision import VisionRule, grid, smart_resize, to_patches
from tests.bench.peers.task import SEQUENCE_LENGTH, Task

ROWS_A_BLOCK = 256
RULE = VisionRule()
TOKENIZER = Path(__file__).resolve().parents[4] / "build" / "demo" / "tokenizer.json"
Ids = NDArray[np.int64]
Sequence = dict[str, NDArray[Any]]


@functools.cache
def encoder(style: str) -> Callable[[list[str]], list[Ids]]:
    """Texts to ids: a block at a time by fastokens, or row by row by `tokenizers`."""
    if style == "same":
        import fastokens

        fast = fastokens.Tokenizer.from_file(str(TOKENIZER))

        def block(texts: list[str]) -> list[Ids]:
            found = fast.encode_batch(texts, add_special_tokens=False)
            return [np.asarray(getattr(ids, "ids", ids), np.int64) for ids in found]

        return block
    import tokenizers

    slow = tokenizers.Tokenizer.from_file(str(TOKENIZER))
    return lambda texts: [
        np.asarray(slow.encode(text, add_special_tokens=False).ids, np.int64) for text in texts
    ]


def packed(texts: Iterable[str], style: str) -> Iterator[Sequence]:
    """Full sequences of the texts, one after the other: the cheapest packing there is."""
    return filled(encoded(texts, style))


def encoded(texts: Iterable[str], style: str) -> Iterator[list[Ids]]:
    """Blocks of rows as ids."""
    encode, block = encoder(style), []
    for text in texts:
        block.append(text)
        if len(block) == ROWS_A_BLOCK:
            yield encode(block)
            block = []
    if block:
        yield encode(block)


def filled(blocks: Iterable[list[Ids]]) -> Iterator[Sequence]:
    """Ids of documents to full sequences, with what variable-length attention and the loss need.

    What is left at the end of a source is dropped, as the peers' packers do.
    """
    ids, labels, positions = (np.empty(0, np.int64) for _ in range(3))
    for block in blocks:
        documents = [document for document in block if len(document)]
        if not documents:
            continue
        joined, lengths = (
            np.concatenate(documents),
            np.fromiter(map(len, documents), np.int64, len(documents)),
        )
        ends = np.cumsum(lengths)
        shifted = np.append(joined[1:], -100)
        shifted[ends - 1] = -100
        ids, labels = np.concatenate((ids, joined)), np.concatenate((labels, shifted))
        place = np.arange(len(joined)) - np.repeat(ends - lengths, lengths)
        positions = np.concatenate((positions, place))
        full = len(ids) - len(ids) % SEQUENCE_LENGTH
        for begin in range(0, full, SEQUENCE_LENGTH):
            part = slice(begin, begin + SEQUENCE_LENGTH)
            starts = np.flatnonzero(positions[part] == 0)
            bounds = np.unique(np.concatenate(([0], starts, [SEQUENCE_LENGTH]))).astype(np.int32)
            yield {
                "input_ids": ids[part].copy(),
                "labels": labels[part].copy(),
                "position_ids": positions[part].copy(),
                "cu_seqlens": bounds,
            }
        ids, labels, positions = ids[full:], labels[full:], positions[full:]


@functools.cache
def _reader() -> Any:
    from dataloader_svc.media.image import ImageReader

    return ImageReader(RULE.max_source_pixels)


def patches(data: bytes, style: str) -> NDArray[np.uint8]:
    """A picture's patches (N, 3 * patch * patch), resized by the Qwen2-VL rule."""
    if style == "same":
        found = _reader().probe(data)
        size = smart_resize(found.height, found.width, RULE)
        pixels = _reader().decode(data, size)
    else:
        from PIL import Image

        with Image.open(io.BytesIO(data)) as opened:
            image = opened.convert("RGB")
        size = smart_resize(image.height, image.width, RULE)
        pixels = np.asarray(image.resize((size[1], size[0]), Image.Resampling.BICUBIC))
    rows, columns = grid(*size, RULE)
    out = np.empty((rows * columns, 3 * RULE.patch**2), np.uint8)
    to_patches(pixels, RULE, out)
    return out


def share(task: Task, worker: int, workers: int) -> slice:
    """The rows of a list that are this worker's of this rank."""
    return slice(task.rank * workers + worker, None, task.ranks * workers)
