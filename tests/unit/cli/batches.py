"""A microbatch put together by hand from words, pictures and masks, as the table of fields says."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dataloader_client.batch import IGNORED_LABEL, Batch, Manifest
from dataloader_svc.cli.contents import PieceKey
from dataloader_svc.media.mel import MelRule
from dataloader_svc.testing.tokenizer import AUDIO, IMAGE, VIDEO
from dataloader_svc.transforms.tokenizers import Tokenizer
from dataloader_svc.transforms.vision import VisionRule, to_patches

RULE = VisionRule(patch=4, merge=2, min_pixels=64, max_pixels=6400)
MEL = MelRule(bins=8)


def picture(height: int, width: int, seed: int = 0, frames: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (frames, height, width, 3), np.uint8)


def sound(frames: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(frames, MEL.bins)).astype(np.float32)


@dataclass
class Document:
    """Strings, control words as their ids, and pictures; each with whether it is trained on."""

    key: PieceKey
    ids: list[int] = field(default_factory=list)
    target: list[bool] = field(default_factory=list)
    media: list[tuple[str, int, np.ndarray]] = field(default_factory=list)


def document(tokenizer: Tokenizer, source: str, position: int, *parts: object, start: int = 0) -> Document:
    """Parts: text; (text, False) for one without loss; an id; a picture (T, H, W, 3); sound (F, bins)."""
    made = Document(PieceKey(source, 0, position, start, 0))
    for part in parts:
        value, target = part if isinstance(part, tuple) else (part, True)
        if isinstance(value, np.ndarray) and value.ndim == 2:
            made.media.append(("audio", len(made.ids), value))
            ids, target = [tokenizer.control[AUDIO]] * MEL.num_tokens(len(value)), False
        elif isinstance(value, np.ndarray):
            kind = "image" if len(value) == 1 else "video"
            made.media.append((kind, len(made.ids), value))
            token = tokenizer.control[IMAGE if kind == "image" else VIDEO]
            ids, target = [token] * (value.size // 3 // RULE.side**2), False
        else:
            ids = [value] if isinstance(value, int) else tokenizer.encode_batch([value])[0].tolist()
        made.ids += ids
        made.target += [target] * len(ids)
    made.key = made.key._replace(length=len(made.ids))
    return made


def batch_of(*documents: Document) -> Batch:
    """One packed microbatch of one sequence."""
    names = tuple(sorted({made.key.source for made in documents}))
    ids = [i for made in documents for i in made.ids]
    labels, offsets = [], [0]
    for made in documents:
        nexts = zip(made.ids[1:], made.target[1:], strict=True)
        labels += [token if target else IGNORED_LABEL for token, target in nexts] + [IGNORED_LABEL]
        offsets.append(offsets[-1] + len(made.ids))
    arrays = {"input_ids": np.array(ids), "labels": np.array(labels)}
    for kind, name in (("image", "pixel_values"), ("video", "pixel_values_videos")):
        media = [
            (offset + at, frames)
            for made, offset in zip(documents, offsets, strict=False)
            for this, at, frames in made.media
            if this == kind
        ]
        if not media:
            continue
        sizes = [frames.size // 3 // RULE.side**2 for _, frames in media]
        arrays[name] = np.concatenate([to_patches(frames, RULE) for _, frames in media])
        grid = [(len(f), f.shape[1] // RULE.patch, f.shape[2] // RULE.patch) for _, f in media]
        arrays[f"{kind}_grid_thw"] = np.array(grid, np.int64)
        arrays[f"{kind}_index"] = np.arange(sum(sizes))
        arrays[f"{kind}_position"] = np.concatenate(
            [np.arange(at, at + n) for (at, _), n in zip(media, sizes, strict=True)]
        )
    clips = [
        (offset + at, features)
        for made, offset in zip(documents, offsets, strict=False)
        for kind, at, features in made.media
        if kind == "audio"
    ]
    if clips:
        tokens = [MEL.num_tokens(len(features)) for _, features in clips]
        arrays["audio_features"] = np.concatenate([features for _, features in clips])
        arrays["audio_lengths"] = np.array([len(features) for _, features in clips])
        arrays["audio_index"] = np.arange(sum(tokens))
        arrays["audio_position"] = np.concatenate(
            [np.arange(at, at + n) for (at, _), n in zip(clips, tokens, strict=True)]
        )
    keys = [made.key for made in documents]
    columns = {
        "span_source": np.array([names.index(key.source) for key in keys], np.int32),
        "span_epoch": np.array([key.epoch for key in keys], np.int32),
        "span_position": np.array([key.position for key in keys]),
        "span_start": np.array([key.start for key in keys], np.int32),
        "span_length": np.array([key.length for key in keys], np.int32),
        "span_sequence": np.zeros(len(keys), np.int32),
        "span_offset": np.array(offsets[:-1], np.int32),
    }
    return Batch(
        step=0,
        microbatch=0,
        num_microbatches=1,
        numpy=arrays,
        manifest=Manifest(names, columns),
        presence={
            "image": "pixel_values" in arrays,
            "video": "pixel_values_videos" in arrays,
            "audio": bool(clips),
        },
        max_seqlen=max(key.length for key in keys),
        num_tokens=len(ids),
        loss_weight_sum=1.0,
        digest="00",
        metrics={},
        trace={},
    )
