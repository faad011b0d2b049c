"""What a worker process does with a medium: probe and decode it as a job with default settings would.

Pixels and features are thrown away where they are made. For `WorkerPool.call`:

    examine     `kind`, and `path` where the bytes aren't the payload; raises BadSample
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dataloader_svc.config.schema import AudioFields, Images, Mel, VideoFields
from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.media.base import MediaProbe, MediaReader, Prober, SoundReader
from dataloader_svc.media.mel import MelRule
from dataloader_svc.media.sampling import VideoSampling
from dataloader_svc.media.sniff import Kind
from dataloader_svc.media.worker_wire import Answer
from dataloader_svc.transforms.vision import VisionRule, smart_resize


def examine(arguments: dict[str, Any], payload: bytes) -> Answer:
    """Value: width, height and frames, as shown; of sound 0, 0 and mel frames."""
    kind: Kind = arguments["kind"]
    data: Any = payload
    if "path" in arguments:
        data = _content(arguments["path"]) if kind == "image" else arguments["path"]
    reader: Any = _reader(kind)
    found = reader.probe(data)
    if kind == "audio":
        reader.features(data, [(0, found.frames)])
    else:
        reader.decode(data, _size(found))
    return Answer([found.width, found.height, found.frames])


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


def _image_reader() -> MediaReader:
    from dataloader_svc.media.image import ImageReader

    return ImageReader(Images().max_source_pixels)


def _video_reader() -> MediaReader:
    from dataloader_svc.media.video import VideoReader

    return VideoReader(VideoSampling(max_frames=VideoFields().max_frames), Images().max_source_pixels)


def _sound_reader() -> SoundReader:
    from dataloader_svc.media.audio import AudioReader

    return AudioReader(MelRule(**Mel().model_dump()), AudioFields().max_source_seconds)


READERS: Mapping[Kind, Callable[[], Prober]] = {
    "image": _image_reader,
    "video": _video_reader,
    "audio": _sound_reader,
}
"""Kinds that are decoded; imported in the worker alone."""


@functools.cache
def _reader(kind: Kind) -> Prober:
    return READERS[kind]()
