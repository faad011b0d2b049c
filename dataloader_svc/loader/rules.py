"""What the configuration says about the samples of one source, resolved once: token ids, geometry, readers.

Built by `service.py` at the start, so that a wrong token or template is told before anything is read;
used by `read.py` (probe) and `decode.py` (pixels).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dataloader_svc.config.schema import AudioFields, Config, Source, VideoFields
from dataloader_svc.errors import BadSample, ConfigError, Reason
from dataloader_svc.media import worker_media
from dataloader_svc.media.base import MediaProbe, MediaReader, Prober, SoundReader
from dataloader_svc.media.cropped import CroppedReader
from dataloader_svc.media.mel import MelRule
from dataloader_svc.media.sampling import VideoSampling
from dataloader_svc.media.worker_reader import WorkerReader
from dataloader_svc.media.workers import Limits, WorkerPool
from dataloader_svc.sample import SampleId, keyed_rng
from dataloader_svc.transforms.base import AUDIO, IMAGE, MEDIA_KINDS, VIDEO
from dataloader_svc.transforms.document import DocumentRule
from dataloader_svc.transforms.pairs import PairRule
from dataloader_svc.transforms.per_source import PictureCrop, Transform, TransformError, make_transforms
from dataloader_svc.transforms.tokenizers import Tokenizer
from dataloader_svc.transforms.vision import VisionRule, smart_resize


@dataclass(frozen=True, slots=True)
class SoundRule:
    """How a clip of sound becomes features.

    reader      None: the source has no sound
    clip_frames mel frames that the encoder gets at once, whole tokens; `longer` as in `AudioFields`
    """

    reader: SoundReader | None = None
    mel: MelRule = field(default_factory=MelRule)
    clip_frames: int = 3000
    longer: str = "split"

    def frames(self, found: MediaProbe) -> int:
        """Mel frames that are taken of a clip. Raises BadSample TOO_LONG."""
        if found.frames > self.clip_frames and self.longer == "drop":
            seconds = found.frames * self.mel.hop / self.mel.sample_rate
            raise BadSample(Reason.TOO_LONG, f"{seconds:.2f} s of sound, and audio.longer is drop")
        return min(found.frames, self.clip_frames) if self.longer == "truncate" else found.frames


@dataclass(frozen=True, slots=True)
class SampleRule:
    """How samples of a source become documents, pixels and features.

    readers    by media kind, of the kinds that the source maps, but for sound, which `sound` reads
    verify     share of documents to encode a second time, by the tokenizer's reference; drawn by `seed`
    transforms of the source, prepared
    crop       of its pictures; then `readers` says their size, and `reader` cuts them
    drop_bad   media of interleaved documents that can't be read are left out; else the document is bad
    max_clip_pixels   of all frames of a video together
    pairs      of a source of preference pairs
    first_name of the source, where it has another now: what is drawn for its samples goes by that
    """

    tokenizer: Tokenizer
    document: DocumentRule
    vision: VisionRule
    readers: Mapping[int, MediaReader]
    verify: float = 0.0
    seed: int = 0
    transforms: tuple[Transform, ...] = ()
    crop: PictureCrop | None = None
    drop_bad: bool = False
    max_clip_pixels: int = VideoFields.model_fields["max_clip_pixels"].default
    pairs: PairRule | None = None
    sound: SoundRule = field(default_factory=SoundRule)
    first_name: str | None = None

    @property
    def kinds(self) -> frozenset[int]:
        """Kinds of media that rows may hold."""
        return frozenset(self.readers) | (frozenset() if self.sound.reader is None else {AUDIO})

    def prober(self, kind: int) -> Prober:
        """Who says how large a medium is. KeyError for a kind that is none of `kinds`."""
        if kind == AUDIO and self.sound.reader is not None:
            return self.sound.reader
        return self.readers[kind]

    def size(self, found: MediaProbe) -> tuple[int, int]:
        """(height, width) that each frame of a medium is given. Raises BadSample BAD_SHAPE."""
        rule = self.vision
        if found.kind == "video":
            most = max(rule.side**2, min(rule.max_pixels, self.max_clip_pixels // found.frames))
            rule = replace(rule, max_pixels=most, min_pixels=min(rule.min_pixels, most))
        return smart_resize(found.height, found.width, rule)

    def reader(self, kind: int, sample: SampleId) -> MediaReader:
        """The reader that decodes a sample's media of a kind: a random crop depends on the sample."""
        reader = self.readers[kind]
        if self.crop is None or not self.crop.random or not isinstance(reader, CroppedReader):
            return reader
        key = (self.first_name or sample.source, sample.epoch, sample.position)
        at_y, at_x = keyed_rng(self.seed, *key, "crop").random(2).tolist()
        return replace(reader, at_y=at_y, at_x=at_x)


def decode_workers(config: Config) -> WorkerPool:
    """The processes in which one loader decodes what can hang or crash. Close it.

    It costs nothing before there is work for it: its first process is started then.
    """
    loader = config.loader
    limits = Limits(loader.workers or loader.threads, loader.decode_timeout, loader.worker_memory)
    modules = {name.partition(":")[0] for name in worker_media.READERS.values()}
    return WorkerPool(limits, preload=sorted({worker_media.__name__, *modules}))


def sample_rule(
    config: Config, name: str, base_dir: Path, tokenizer: Tokenizer, workers: WorkerPool | None = None
) -> SampleRule:
    """The rule of source `name`. Raises ConfigError for a token, template or library that doesn't serve.

    workers   where videos and sound are probed and decoded (`decode_workers`). None: in this process, for
              whoever knows the clips, since one of a stranger's may hang it for ever
    """
    source = config.sources[name]
    transforms = _prepared(source, base_dir)
    vision, crop = _geometry(config, source, transforms)
    chat = None
    if source.is_chat:
        from dataloader_svc.transforms.chat import ChatTemplate  # brings Jinja, which only chats need

        file = None if source.chat_template is None else base_dir / source.chat_template
        chat = ChatTemplate.load(file, tokenizer)
    return SampleRule(
        tokenizer,
        DocumentRule.of(config, source, tokenizer, chat),
        vision,
        _readers(config, source, crop, workers),
        verify=0.0 if tokenizer.is_reference else config.tokenizer_verify,
        seed=config.seed,
        transforms=transforms,
        crop=crop,
        drop_bad=source.interleaved is not None and source.interleaved.on_bad_image == "drop",
        max_clip_pixels=(source.video or VideoFields()).max_clip_pixels,
        pairs=_pairs(config, source),
        sound=_sound(config, source, workers),
        first_name=source.was,
    )


def _pairs(config: Config, source: Source) -> PairRule | None:
    if source.preference is None:
        return None
    limit = config.sequence_length if source.too_long == "truncate" else None
    return PairRule(not source.is_chat, source.preference.prompt_end, limit)


def _prepared(source: Source, base_dir: Path) -> tuple[Transform, ...]:
    transforms = make_transforms(source)
    for number, transform in enumerate(transforms):
        with _naming(source, number):
            transform.prepare(base_dir)
    return transforms


def _geometry(
    config: Config, source: Source, transforms: Sequence[Transform]
) -> tuple[VisionRule, PictureCrop | None]:
    """The bounds of a picture's size, and the crop of the last transform that gives one."""
    vision = VisionRule(**config.images.model_dump())
    for number, transform in enumerate(transforms):
        with _naming(source, number):
            vision = transform.vision(vision)
    crop = None
    for number, transform in enumerate(transforms):
        with _naming(source, number):
            found = transform.crop(vision)
            if found is not None and IMAGE not in _kinds(config, source):
                raise ConfigError("the source maps no pictures (`image`)")
        crop = found or crop
    return vision, crop


@contextmanager
def _naming(source: Source, number: int) -> Iterator[None]:
    """Put the transform's place in front of a ConfigError."""
    try:
        yield
    except ConfigError as error:
        raise TransformError(number, next(iter(source.transforms[number])), str(error)) from None


def _kinds(config: Config, source: Source) -> set[int]:
    """Kinds of media that rows may hold: in fields of their own, or where the job has a token, in parts."""
    return {
        kind
        for kind, name in enumerate(MEDIA_KINDS)
        if source.has_media(name) or (source.has_parts and getattr(config.media_tokens, name) is not None)
    }


def _readers(
    config: Config, source: Source, crop: PictureCrop | None, workers: WorkerPool | None
) -> dict[int, MediaReader]:
    # Imported where used: a loader of text pays for no decoder (PyAV alone is 100 MB).
    readers: dict[int, MediaReader] = {}
    kinds = _kinds(config, source)
    if IMAGE in kinds:
        from dataloader_svc.media.image import ImageReader

        pictures = ImageReader(config.images.max_source_pixels)
        readers[IMAGE] = pictures if crop is None else CroppedReader(pictures, crop.height, crop.width)
    if VIDEO in kinds:
        settings = _video_settings(config, source.video or VideoFields())
        if workers is not None:
            readers[VIDEO] = WorkerReader(workers, MEDIA_KINDS[VIDEO], settings)
        else:
            from dataloader_svc.media.video import reader_of

            readers[VIDEO] = reader_of(settings)
    return readers


def _sound(config: Config, source: Source, workers: WorkerPool | None) -> SoundRule:
    fields, mel = source.audio or AudioFields(), MelRule(**config.mel.model_dump())
    if AUDIO not in _kinds(config, source):
        return SoundRule(mel=mel)
    settings = {"rule": asdict(mel), "max_source_seconds": fields.max_source_seconds}
    reader: SoundReader
    if workers is not None:
        reader = WorkerReader(workers, MEDIA_KINDS[AUDIO], settings)
    else:
        from dataloader_svc.media.audio import reader_of

        reader = reader_of(settings)
    clip_frames = config.mel.tokens_of(fields.max_seconds) * mel.frames_per_token
    return SoundRule(reader, mel, clip_frames, fields.longer)


def _video_settings(config: Config, video: VideoFields) -> dict[str, Any]:
    """What `media.video.reader_of` is told."""
    if video.backend == "decord" and importlib.util.find_spec("decord") is None:
        raise ConfigError("video: backend: decord isn't installed here (Arm has no wheel); use auto or pyav")
    sampling = VideoSampling(video.fps, video.frames, video.keyframes, video.max_frames)
    return {
        "sampling": asdict(sampling),
        "max_source_pixels": config.images.max_source_pixels,
        "backend": video.backend,
    }
