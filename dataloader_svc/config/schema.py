"""The YAML of a job as frozen models: the one place where defaults live.

Knows nothing of files (`load.py` reads them) nor of what the values do; `cross.py` holds them against each
other. Field descriptions are the reference that `docs/configuration.md` is generated from, so they are
written for the person who configures. A default that was measured or taken from somewhere says so.
"""

from __future__ import annotations

import itertools
import re
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from dataloader_svc.config.cross import cross_problems

_SIZES = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}


def parse_size(value: object) -> object:
    """`"64MiB"` -> 67108864; numbers pass through. Raises ValueError with the allowed units."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", value)
    if match is None or match[2].lower() not in _SIZES:
        raise ValueError("expected a size such as 512MiB or 4GiB (KiB, MiB, GiB, KB, MB, GB)")
    return int(float(match[1]) * _SIZES[match[2].lower()])


FIELDS_ALONE = {"fields": "alone"}
"""As pydantic's `context`: don't look between fields. `load.py` does so itself, to place what it finds."""

Bytes = Annotated[int, BeforeValidator(parse_size), Field(gt=0)]


class Model(BaseModel):
    """Frozen, and an unknown field is an error: a typing mistake must not become a default."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


BatchUnit = Literal["sequences", "tokens", "samples"]


class GlobalBatch(Model):
    """What one optimiser step consumes, over all ranks."""

    sequences: int | None = Field(
        default=None, gt=0, description="Packed sequences in one optimiser step, over all ranks."
    )
    tokens: int | None = Field(
        default=None, gt=0, description="The same in tokens: a multiple of sequence_length."
    )
    samples: int | None = Field(
        default=None,
        gt=0,
        description="Samples in one optimiser step, exactly so many, in as few sequences as they need: those "
        "differ from step to step, and with them the microbatches. Fits every dp.",
    )
    per_microbatch: int = Field(
        default=1, gt=0, description="Sequences in one microbatch of one rank: what one forward pass sees."
    )

    @model_validator(mode="after")
    def _one_unit(self) -> GlobalBatch:
        if len([unit for unit in get_args(BatchUnit) if getattr(self, unit) is not None]) != 1:
            raise ValueError("give exactly one of sequences, tokens and samples")
        return self

    @property
    def unit(self) -> BatchUnit:
        """Which of the three is given."""
        if self.samples is not None:
            return "samples"
        return "tokens" if self.tokens is not None else "sequences"


class VideoFields(Model):
    """Where a row's video is, and how its frames are chosen."""

    field: str | None = Field(
        default=None,
        description="Column, JSON key or tar extension that holds the video or its path. Not needed where "
        "videos stand inside `messages` or `interleaved`.",
    )
    fps: float | None = Field(default=None, gt=0, description="Frames a second to take.")
    frames: int | None = Field(default=None, gt=0, description="A fixed number of evenly spaced frames.")
    keyframes: bool = Field(
        default=False,
        description="true: the frames that decoding can start at, which cost least. With none of the three: "
        "as many evenly spaced frames as there may be.",
    )
    max_frames: int = Field(default=32, gt=0, description="Upper limit of frames a clip.")
    max_clip_pixels: int = Field(
        default=28 * 28 * 24_576,
        gt=0,
        description="Pixels of all frames together: where there are many, each is smaller, by the rule of "
        "pictures. The default is Qwen2-VL's, 24,576 tokens of 28 x 28.",
    )
    backend: Literal["auto", "decord", "pyav"] = Field(
        default="auto",
        description="The library that decodes. auto: decord where it is installed and gives the same frames "
        "as PyAV, which decodes all other clips.",
    )

    @model_validator(mode="after")
    def _one_rule(self) -> VideoFields:
        if sum([self.fps is not None, self.frames is not None, self.keyframes]) > 1:
            raise ValueError("give one of fps, frames and keyframes")
        return self

    @property
    def most_frames(self) -> int:
        """Frames that a clip can have."""
        return min(self.frames or self.max_frames, self.max_frames)


class Interleaved(Model):
    """Documents of texts and pictures in turn; see docs/documents.md."""

    style: Literal["obelics", "mmc4", "parts"] = Field(
        description="obelics: two lists, at each index a text or a picture. mmc4: sentences, and pictures "
        "with the number of the sentence that they stand in front of. parts: one list of typed parts."
    )
    texts: str | None = Field(
        default=None, description="Field with the texts. Default: texts (obelics), text_list (mmc4)."
    )
    images: str | None = Field(
        default=None, description="Field with the pictures. Default: images (obelics), image_info (mmc4)."
    )
    parts: str | None = Field(default=None, description="Field with the parts. Default: parts.")
    separator: str | None = Field(
        default=None,
        description="Put between two texts that no picture parts. Default: an empty line (obelics), a space "
        "(mmc4), nothing (parts).",
    )
    on_bad_image: Literal["skip_document", "drop"] = Field(
        default="skip_document",
        description="What a picture that is null, missing or unreadable takes with it: its document, or only "
        "itself. One whose damage is seen only when it is decoded always takes its document.",
    )

    @model_validator(mode="after")
    def _fields_of_style(self) -> Interleaved:
        useless = ("texts", "images") if self.style == "parts" else ("parts",)
        if found := [name for name in useless if getattr(self, name) is not None]:
            raise ValueError(f"style {self.style} has no {' and no '.join(found)}")
        return self

    @property
    def names(self) -> dict[str, str]:
        """Role -> field, of what the style is made of: texts and images, or interleaved."""
        if self.style == "parts":
            return {"interleaved": self.parts or "parts"}
        texts, images = {"obelics": ("texts", "images"), "mmc4": ("text_list", "image_info")}[self.style]
        return {"texts": self.texts or texts, "images": self.images or images}

    @property
    def between(self) -> str:
        """`separator`, or the style's own."""
        default = {"obelics": "\n\n", "mmc4": " ", "parts": ""}[self.style]
        return default if self.separator is None else self.separator


TokenizerBackend = Literal["auto", "fastokens", "tokenizers", "sentencepiece", "tiktoken"]


class TokenizerOptions(Model):
    """What a tokenizer's file doesn't say: of `.tiktoken` files, and of vocab.json with merges.txt."""

    preset: str | None = Field(
        default=None,
        description="A known way to cut text, with its control tokens: gpt2, cl100k, o200k, qwen, qwen2.",
    )
    pattern: str | None = Field(
        default=None, description="Regular expression that cuts text before pairs are merged, instead."
    )
    special_tokens: dict[str, int] | list[str] | None = Field(
        default=None,
        description="Control tokens and their ids; a list is numbered from the end of the vocabulary on.",
    )

    def numbered(self, first: int) -> dict[str, int] | None:
        """Word -> id, where a list begins at id `first`; None where nothing is said."""
        if isinstance(self.special_tokens, list):
            return {word: first + number for number, word in enumerate(self.special_tokens)}
        return self.special_tokens


class Shuffle(Model):
    """How far apart neighbours of a file end up."""

    block: Bytes = Field(
        default=16 * 2**20,
        description="Bytes of a block: extents drawn from anywhere in the source are joined until this "
        "size, and their samples shuffled together. Larger mixes better and holds more memory.",
    )


class Source(Model):
    """One named dataset of the mixture."""

    format: str = Field(description="A registered format: parquet, webdataset, jsonl.")
    path: str | list[str] = Field(
        description="File, glob or brace pattern ({0000..0031}), or a list of them. Relative to this file."
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="The format's own options; `dataloader-svc formats` lists them."
    )
    transforms: list[dict[str, Any]] = Field(
        default_factory=list,
        description="What is kept of the source and how it is changed, in order: a list of filter, map, "
        "subset, max_samples, resize, crop, each as `- NAME: options`. See docs/transforms.md.",
    )
    text: str | None = Field(default=None, description="Field with the text.")
    messages: str | None = Field(
        default=None,
        description="Field with chat messages: a list of {role, content}, where content may be typed parts "
        "(OpenAI), or of {from, value} (ShareGPT, LLaVA). See docs/documents.md.",
    )
    interleaved: Interleaved | None = Field(
        default=None, description="Fields with texts and pictures in turn."
    )
    input_ids: str | None = Field(
        default=None,
        description="Field with token ids: a list, a .npy file, or raw numbers of `id_type`. Nothing is "
        "tokenized.",
    )
    loss_mask: str | None = Field(
        default=None, description="Field with 0 or 1 for each of the `input_ids`: 1 where it is learnt."
    )
    id_type: Literal["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"] | None = Field(
        default=None,
        description="Type of the numbers where `input_ids` or `loss_mask` are raw bytes, little-endian.",
    )
    append_eos: bool = Field(
        default=True, description="Whether `input_ids` that do not end with `eos` get it at their end."
    )
    image: str | list[str] | None = Field(
        default=None,
        description="Field with a picture, a list of pictures, or a path. A list of fields: the first that a "
        "row has (in a tar, the extensions that may hold the picture).",
    )
    video: VideoFields | None = Field(default=None, description="Field with a video, and its frames.")
    media_root: str | None = Field(
        default=None, description="Folder that media paths in the rows are relative to. Default: the shard's."
    )
    shuffle: Shuffle | Literal[False] = Field(
        default_factory=Shuffle, description="`false` keeps the order of the files."
    )
    too_long: Literal["split", "truncate", "drop", "error"] = Field(
        default="split",
        description="What becomes of a document longer than sequence_length. A cut never runs through a "
        "picture's tokens; a picture longer than the sequence is dropped with its document.",
    )
    max_bad_fraction: float = Field(
        default=0.05, ge=0, le=1, description="Share of bad samples above which the job stops."
    )
    max_bad_minimum: int = Field(
        default=20, gt=0, description="Bad samples that must have been seen before the share is judged."
    )
    chat_template: str | None = Field(
        default=None, description="Jinja file for `messages`; default: the tokenizer's own."
    )
    control_words: bool = Field(
        default=False,
        description="true: control words typed in the text (`<|endoftext|>`) become control tokens. For text "
        "that you trust; otherwise they stay text.",
    )
    extent: Bytes = Field(
        default=2**20,
        description="Bytes that are read at once where the format leaves the choice (jsonl, tar).",
    )

    @field_validator("image")
    @classmethod
    def _image_list(cls, value: str | list[str] | None) -> str | list[str] | None:
        if value is not None and not value:
            raise ValueError("must name at least one field")
        return value

    @field_validator("transforms")
    @classmethod
    def _one_name_each(cls, value: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for number, entry in enumerate(value):
            if len(entry) != 1:
                names = ", ".join(map(str, entry)) or "nothing"
                raise ValueError(
                    f"entry {number} must be one transform, `- NAME: options`; it names {names}: "
                    "begin each with a dash of its own, and indent its options"
                )
        return value

    @model_validator(mode="after")
    def _one_kind(self) -> Source:
        kinds = ("text", "messages", "interleaved", "input_ids")
        found = [name for name in kinds if getattr(self, name) is not None]
        if len(found) != 1:
            listed = "`text`, `messages`, `interleaved` and `input_ids`"
            raise ValueError(f"a source maps exactly one of {listed}; found {' and '.join(found) or 'none'}")
        kind = found[0]
        if self.loss_mask is not None and kind != "input_ids":
            raise ValueError(f"`loss_mask` belongs to `input_ids`; the source maps `{kind}`")
        if kind == "input_ids" and (self.image is not None or self.video is not None):
            raise ValueError("`input_ids` come without media: map no `image` or `video` beside them")
        if self.interleaved is not None and self.interleaved.style != "parts" and self.image is not None:
            style = self.interleaved.style
            raise ValueError(f"pictures of style {style} are `interleaved.images`; map no `image` beside it")
        if self.video is not None and self.video.field is None and kind not in ("messages", "interleaved"):
            raise ValueError("`video` needs `field`: a text does not hold videos itself")
        return self

    def has_media(self, kind: str) -> bool:
        """Whether its rows may hold an `image` or `video`: in a field of its own, or in their parts."""
        return getattr(self, kind) is not None or (kind == "image" and self.interleaved is not None)

    @property
    def paths(self) -> list[str]:
        """`path` as a list."""
        return [self.path] if isinstance(self.path, str) else list(self.path)


class Images(Model):
    """The vision encoder's geometry: how a picture becomes patches and tokens (Qwen2-VL's rule)."""

    patch: int = Field(default=14, gt=0, description="Side of a patch, in pixels.")
    merge: int = Field(default=2, gt=0, description="merge x merge patches become one token.")
    min_pixels: int = Field(default=56 * 56, gt=0, description="Smaller pictures are scaled up (Qwen2-VL).")
    max_pixels: int = Field(
        default=28 * 28 * 1280, gt=0, description="Larger pictures are scaled down (Qwen2-VL)."
    )
    max_source_pixels: int = Field(
        default=100_000_000, gt=0, description="Pictures above this are skipped undecoded (bombs)."
    )

    @model_validator(mode="after")
    def _bounds(self) -> Images:
        side = self.patch * self.merge
        if self.max_pixels < max(self.min_pixels, side * side):
            raise ValueError(
                f"max_pixels {self.max_pixels} is below min_pixels {self.min_pixels} or one token's "
                f"{side * side} pixels"
            )
        return self


class MediaTokens(Model):
    """Vocabulary entries that stand where a picture's or video's embeddings go."""

    image: str | int | None = Field(default=None, description="Token (or its id) repeated for a picture.")
    video: str | int | None = Field(default=None, description="Token (or its id) repeated for a video.")


class Markers(Model):
    """Strings in a text that say where a medium belongs; without them media come first."""

    image: str = Field(default="<image>", min_length=1, description="Marks a picture.")
    video: str = Field(default="<video>", min_length=1, description="Marks a video.")


class MixtureStep(Model):
    """Weights from `step` on. The other keys of the entry are source names."""

    step: int = Field(ge=0, description="First step of these weights.")
    ramp: Literal["none", "linear"] = Field(
        default="none", description="`linear`: move evenly from the entry before to this one's weights."
    )
    weights: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]]

    @model_validator(mode="before")
    @classmethod
    def _gather_weights(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "weights" in data:
            return data
        weights = {key: value for key, value in data.items() if key not in ("step", "ramp")}
        rest = {key: data[key] for key in ("step", "ramp") if key in data}
        return {**rest, "weights": weights}

    @field_validator("weights")
    @classmethod
    def _sane(cls, weights: dict[str, float]) -> dict[str, float]:
        if not weights or sum(weights.values()) == 0:
            raise ValueError("at least one weight must be above zero")
        return weights


class Mixture(Model):
    """In which shares the sources are drawn."""

    unit: Literal["tokens", "samples"] = Field(default="tokens", description="What a weight is a share of.")
    schedule: list[MixtureStep] = Field(min_length=1, description="Weights from a step on, in order of step.")
    exhausted: Literal["repeat", "stop", "drop"] = Field(
        default="repeat",
        description="repeat: the source starts its next epoch. stop: the data ends when the first source "
        "does. drop: the others go on in their proportions; the data ends with the last.",
    )

    @model_validator(mode="after")
    def _ascending(self) -> Mixture:
        steps = [entry.step for entry in self.schedule]
        if steps[0] != 0 or any(b <= a for a, b in itertools.pairwise(steps)):
            raise ValueError(f"schedule must begin at step 0 and rise; found steps {steps}")
        return self


class LlmCostConfig(Model):
    """Predicted time of a document in the language model: linear * length + quadratic * length^2."""

    model: str | None = Field(default=None, description="A preset, such as 7b.")
    linear: float | None = Field(default=None, ge=0, description="Instead of a preset.")
    quadratic: float | None = Field(default=None, ge=0, description="Instead of a preset.")


class EncoderCostConfig(Model):
    """Predicted time in the media encoder."""

    patches: float = Field(
        default=1.0,
        ge=0,
        description="Cost of one patch, in 10^9 operations of a forward pass, the unit of the presets: "
        "two for each billion weights of the encoder, so 1 for one of 0.5 billion.",
    )


class Cost(Model):
    """Cost models by phase; only ratios matter."""

    llm: LlmCostConfig = Field(default_factory=lambda: LlmCostConfig(model="7b"))
    encoder: EncoderCostConfig = Field(default_factory=EncoderCostConfig)


class Strategy(Model):
    """How documents become sequences, and sequences the work of ranks."""

    pack: str = Field(default="best_fit", description="A packer of dataloader_balancers.PACKERS.")
    cost: Cost = Field(default_factory=Cost, description="What work costs, by phase.")
    balance: str = Field(default="lpt", description="A balancer of dataloader_balancers.BALANCERS.")
    context_parallel: Literal["per_document", "per_sequence"] = Field(
        default="per_document", description="What the zig-zag cut over cp ranks runs through."
    )
    overdraw: float = Field(
        default=0.02,
        ge=0,
        le=1,
        description="Share of a step's tokens drawn beyond its capacity, so that the packer has small "
        "pieces to fill gaps with; what does not fit waits, first in line for the next step.",
    )


class Mesh(Model):
    """The trainer's axes. A default: the clients' own mesh wins."""

    dp: int = Field(default=1, gt=0, description="Data parallel: other sequences.")
    cp: int = Field(default=1, gt=0, description="Context parallel: slices of the same sequences.")
    tp: int = Field(default=1, gt=0, description="Tensor parallel: the same tokens.")
    pp: int = Field(default=1, gt=0, description="Pipeline parallel: the same microbatches.")


class Loader(Model):
    """Source loaders: processes that read, tokenize and decode."""

    count: int = Field(default=2, gt=0, description="Processes.")
    memory: Bytes = Field(default=2**30, description="Encoded samples a loader holds at most.")
    threads: int = Field(default=2, gt=0, description="Decoding threads of each.")
    workers: int | None = Field(
        default=None,
        gt=0,
        description="Processes of each that decode what can hang or crash: videos. Default: threads. None is "
        "started before there is work for it.",
    )
    decode_timeout: float = Field(
        default=30.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds for one medium in a worker; what takes longer is skipped, its worker killed.",
    )
    worker_memory: Bytes = Field(
        default=2**30,
        ge=2**28,
        description="Memory of a worker, at most: the system refuses it more. One that keeps half of it "
        "after a medium is replaced.",
    )


class Constructor(Model):
    """Batch constructors: processes that build and send batches."""

    count: int = Field(default=1, gt=0, description="Processes.")
    memory: Bytes = Field(default=2**30, description="Finished batches a constructor holds at most.")


class Planner(Model):
    """The planner: one process, metadata only."""

    ahead: int = Field(default=4, gt=0, description="Steps planned ahead of the step asked for.")


_SECRETS = {"s3": {"key", "secret", "token", "username", "password"}, "hf": {"token"}}


class StorageSettings(Model):
    """Files that lie elsewhere (s3, gs, hf, https), and copies of compressed ones."""

    scratch: str = Field(
        default=".dataloader-svc/scratch",
        description="Folder for plain copies of compressed files (gzip, zstd); jobs may share it.",
    )
    scratch_bytes: Bytes = Field(
        default=50 * 2**30,
        description="Most bytes kept there, over all processes. A source that expands to more is read "
        "slowly: files are expanded again and again.",
    )
    cache: str = Field(
        default=".dataloader-svc/cache", description="Folder for blocks of remote files; jobs may share it."
    )
    cache_bytes: Annotated[int, BeforeValidator(parse_size), Field(ge=0)] = Field(
        default=10 * 2**30, description="Most bytes kept there, over all processes; 0: nothing is kept."
    )
    read_ahead: Bytes = Field(
        default=8 * 2**20, description="Most bytes asked for at once where a file is read on and on."
    )
    retries: int = Field(default=8, ge=0, description="Repetitions of a request that may yet succeed.")
    timeout: float = Field(
        default=30.0, gt=0, description="Seconds for one request; a second more for each MiB asked for."
    )
    deadline: float = Field(default=300.0, gt=0, description="Seconds for a request and its repetitions.")
    options: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="Scheme -> options of its fsspec file system, such as `s3: {endpoint_url: ...}`. "
        "Credentials come from the environment.",
    )

    @field_validator("options")
    @classmethod
    def _no_secrets(cls, options: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for scheme, values in options.items():
            if found := sorted(_SECRETS.get(scheme, set()) & set(values)):
                raise ValueError(
                    f"{scheme}: {', '.join(found)}: credentials come from the environment, "
                    "not from this file; see docs/storage.md"
                )
        return options


class Config(Model):
    """A job."""

    job: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Name; also names the state file.")
    seed: int = Field(default=0, ge=0, description="Every order and draw of the job follows from it.")
    tokenizer: str = Field(
        description="A tokenizers JSON, SentencePiece, tiktoken or tekken file, or a Hugging Face folder."
    )
    tokenizer_backend: TokenizerBackend = Field(
        default="auto",
        description="The library that encodes. auto: fastokens where it gives the same ids as the library "
        "that defines them (tokenizers, sentencepiece, tiktoken), on hard strings and on the sources.",
    )
    tokenizer_options: TokenizerOptions = Field(
        default_factory=lambda: TokenizerOptions(), description="What the tokenizer's file doesn't say."
    )
    tokenizer_verify: float = Field(
        default=0.001,
        ge=0,
        le=1,
        description="Share of the documents that fastokens encodes to encode again with the library that "
        "defines the ids; a difference is an incident.",
    )
    sequence_length: int = Field(gt=1, description="Most tokens of a packed sequence.")
    global_batch: GlobalBatch = Field(description="Size of a step.")
    sources: dict[str, Source] = Field(min_length=1, description="Name -> source.")
    mixture: Mixture = Field(description="Shares of the sources.")
    images: Images = Field(default_factory=Images, description="How pictures and frames become tokens.")
    media_tokens: MediaTokens = Field(
        default_factory=MediaTokens, description="Vocabulary entries that stand for media."
    )
    markers: Markers = Field(default_factory=Markers, description="Where media go inside a text.")
    eos: str | int | None = Field(default=None, description="Document end token; default: the tokenizer's.")
    bos: str | int | bool = Field(default=False, description="Document start token; true: the tokenizer's.")
    layout: Literal["packed", "padded"] = Field(
        default="packed", description="packed: (T,) with cu_seqlens. padded: (B, L) with attention_mask."
    )
    last_batch: Literal["pad", "drop"] = Field(
        default="pad",
        description="A last step that is not full, in the unit of global_batch (sequences: some would be "
        "empty): delivered, with empty sequences where ranks need them, or dropped.",
    )
    strategy: Strategy = Field(default_factory=Strategy, description="Packing and balancing.")
    mesh: Mesh = Field(default_factory=Mesh, description="The trainer's axes; the clients' own wins.")
    engine: Literal["local"] = Field(default="local", description="Where roles run: processes here.")
    store: str = Field(
        default="sqlite",
        description="State store. sqlite: .dataloader-svc/JOB.db beside this file; or sqlite:///path/to/file.db",
    )
    planner: Planner = Field(default_factory=Planner, description="The planner.")
    loader: Loader = Field(default_factory=Loader, description="The source loaders.")
    constructor: Constructor = Field(default_factory=Constructor, description="The constructors.")
    index_cache: str = Field(default=".dataloader-svc/index", description="Folder for row indexes.")
    storage: StorageSettings = Field(
        default_factory=StorageSettings, description="Reading from object stores and web servers."
    )

    @property
    def num_sequences(self) -> int | None:
        """Packed sequences in one step, over all ranks; None: as many as the samples of a step need."""
        batch = self.global_batch
        return batch.sequences if batch.tokens is None else batch.tokens // self.sequence_length

    @model_validator(mode="after")
    def _across_fields(self, info: ValidationInfo) -> Config:
        problems = [] if info.context is FIELDS_ALONE else cross_problems(self)
        if problems:
            text = "; ".join(f"{'.'.join(map(str, loc))}: {message}" for loc, message in problems)
            raise PydanticCustomError("across_fields", "{text}", {"text": text})
        return self

    @field_validator("sources")
    @classmethod
    def _names(cls, sources: dict[str, Source]) -> dict[str, Source]:
        for name in sources:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) or name in ("step", "ramp", "weights"):
                raise ValueError(
                    f"source name {name!r} must be letters, digits, '.', '_' or '-', "
                    "and not step, ramp or weights"
                )
        return sources
