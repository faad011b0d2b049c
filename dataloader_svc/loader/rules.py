"""What the configuration says about the samples of one source, resolved once: token ids, geometry, readers.

Built by `service.py` at the start, so that a wrong token or template is told before anything is read;
used by `read.py` (probe) and `decode.py` (pixels).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dataloader_svc.config.schema import Config, Source
from dataloader_svc.media.base import MediaReader
from dataloader_svc.transforms.base import IMAGE, VIDEO
from dataloader_svc.transforms.chat import ChatTemplate
from dataloader_svc.transforms.document import DocumentRule
from dataloader_svc.transforms.tokenizers import Tokenizer
from dataloader_svc.transforms.vision import VisionRule


@dataclass(frozen=True, slots=True)
class SampleRule:
    """How samples of a source become documents and pixels.

    readers    by media kind, of the kinds that the source maps
    verify     share of documents to encode a second time, by the tokenizer's reference; drawn by `seed`
    """

    tokenizer: Tokenizer
    document: DocumentRule
    vision: VisionRule
    readers: Mapping[int, MediaReader]
    verify: float = 0.0
    seed: int = 0


def sample_rule(config: Config, name: str, base_dir: Path, tokenizer: Tokenizer) -> SampleRule:
    """The rule of source `name`. Raises ConfigError for a token or template that doesn't serve."""
    source = config.sources[name]
    chat = None
    if source.messages is not None:
        file = None if source.chat_template is None else base_dir / source.chat_template
        chat = ChatTemplate.load(file, tokenizer, (config.markers.image, config.markers.video))
    return SampleRule(
        tokenizer,
        DocumentRule.of(config, source, tokenizer, chat),
        VisionRule(**config.images.model_dump()),
        _readers(config, source),
        verify=0.0 if tokenizer.is_reference else config.tokenizer_verify,
        seed=config.seed,
    )


def _readers(config: Config, source: Source) -> dict[int, MediaReader]:
    # Imported where used: a loader of text pays for no decoder (PyAV alone is 100 MB).
    readers: dict[int, MediaReader] = {}
    if source.image is not None:
        from dataloader_svc.media.image import ImageReader

        readers[IMAGE] = ImageReader(config.images.max_source_pixels)
    if source.video is not None:
        from dataloader_svc.media.sampling import VideoSampling
        from dataloader_svc.media.video import VideoReader

        video = source.video
        sampling = VideoSampling(fps=video.fps, frames=video.frames, max_frames=video.max_frames)
        readers[VIDEO] = VideoReader(sampling, config.images.max_source_pixels)
    return readers
