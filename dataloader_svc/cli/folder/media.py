"""What a worker process does with a medium: probe and decode it as a job with default settings would.

Pixels and features are thrown away where they are made. For `WorkerPool.call`:

    examine     `kind`, and `path` where the bytes aren't the payload; raises BadSample
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

from dataloader_svc.config.schema import AudioFields, Images, VideoFields
from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.media.base import MediaProbe, MediaReader, SoundReader
from dataloader_svc.media.mel import MelRule
from dataloader_svc.media.sampling import VideoSampling
from dataloader_svc.media.sniff import Kind
from dataloader_svc.media.worker_wire import Answer
from dataloader_svc.transforms.vision import VisionRule, smart_resize

_LAST_FRAMES = 3000  # mel frames: half a minute, whole tokens


def examine(arguments: dict[str, Any], payload: bytes) -> Answer:
    """Value: width, height and frames of the probe."""
    kind: Kind = arguments["kind"]
    data: Any = payload
    if "path" in arguments:  # what is decoded by FFmpeg is read in pieces
        if "\0" in arguments["path"]:
            raise BadSample(Reason.MISSING_FILE, f"{arguments['path']!r}: no file is called so")
        data = _content(arguments["path"]) if kind == "image" else arguments["path"]
    found = _sound(data) if kind == "audio" else _pictures(kind, data)
    return Answer([found.width, found.height, found.frames])


def _pictures(kind: Kind, data: Any) -> MediaProbe:
    reader = _reader(kind)
    found = reader.probe(data)
    reader.decode(data, _size(found))
    return found


def _sound(data: Any) -> MediaProbe:
    """All of it is decoded, and features are made of the end alone: those of four hours take 700 MB."""
    reader = _sound_reader()
    found = reader.probe(data)
    last = min(found.frames, _LAST_FRAMES)
    reader.features(data, [(found.frames - last, last)])
    return found


def _content(path: str) -> bytes:
    """Raises BadSample."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise BadSample(Reason.MISSING_FILE, f"{path}: {(error.strerror or str(error)).lower()}") from error


def _size(found: MediaProbe) -> tuple[int, int]:
    """As `loader.rules.SampleRule.size` has it, which belongs to a job. Raises BadSample BAD_SHAPE."""
    rule = VisionRule()
    if found.kind == "video":
        most = max(rule.side**2, min(rule.max_pixels, VideoFields().max_clip_pixels // found.frames))
        rule = replace(rule, max_pixels=most, min_pixels=min(rule.min_pixels, most))
    return smart_resize(found.height, found.width, rule)


@functools.cache
def _reader(kind: Kind) -> MediaReader:
    # Imported where used: pictures alone need no FFmpeg.
    most = Images().max_source_pixels
    if kind == "image":
        from dataloader_svc.media.image import ImageReader

        return ImageReader(most)
    from dataloader_svc.media.video import VideoReader

    return VideoReader(VideoSampling(max_frames=VideoFields().max_frames), most)


@functools.cache
def _sound_reader() -> SoundReader:
    from dataloader_svc.media.audio import AudioReader

    return AudioReader(MelRule(), AudioFields().max_source_seconds)
