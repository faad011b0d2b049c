"""A job: all of its models in one."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from dataloader_svc.config.cross import cross_problems
from dataloader_svc.config.schema.batch import GlobalBatch, Mixture
from dataloader_svc.config.schema.evaluation import Evaluation
from dataloader_svc.config.schema.model import Model
from dataloader_svc.config.schema.roles import Constructor, Loader, Planner
from dataloader_svc.config.schema.security import Security
from dataloader_svc.config.schema.source import Source, named
from dataloader_svc.config.schema.storage import StorageSettings
from dataloader_svc.config.schema.strategy import Mesh, Strategy
from dataloader_svc.config.schema.tokens import (
    Images,
    Markers,
    MediaTokens,
    Mel,
    TokenizerBackend,
    TokenizerOptions,
)
from dataloader_svc.config.schema.wire import Wire

FIELDS_ALONE = {"fields": "alone"}
"""As pydantic's `context`: don't look between fields. `load.py` does so itself, to place what it finds."""


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
    evaluation: Evaluation | None = Field(default=None, description="What is evaluated on beside training.")
    images: Images = Field(default_factory=Images, description="How pictures and frames become tokens.")
    mel: Mel = Field(default_factory=Mel, description="How sound becomes tokens.")
    media_tokens: MediaTokens = Field(
        default_factory=MediaTokens, description="Vocabulary entries that stand for media."
    )
    markers: Markers = Field(default_factory=Markers, description="Where media go inside a text.")
    eos: str | int | None = Field(default=None, description="Document end token; default: the tokenizer's.")
    bos: str | int | bool = Field(default=False, description="Document start token; true: the tokenizer's.")
    layout: Literal["packed", "padded"] = Field(
        default="packed", description="packed: (T,) with cu_seqlens. padded: (B, L) with attention_mask."
    )
    pad_to: Literal["sequence_length", "longest"] = Field(
        default="sequence_length",
        description="Of the padded layout: rows are as long as sequence_length, or as the longest of their "
        "microbatch. On each rank rows of like cost share a microbatch, so that little of it is padding.",
    )
    ensure_modality: bool = Field(
        default=False,
        description="A rank without pictures, videos or sound, in a step that has some on another rank, gets "
        "the smallest there is, of zeros and behind no token: its encoder runs in every collective.",
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
        description="State store. sqlite: .dataloader-svc/JOB.db beside this file, or "
        "sqlite:///path/to/file.db. Across hosts redis://HOST:6379/0, and kin; see docs/store.md.",
    )
    planner: Planner = Field(default_factory=Planner, description="The planner.")
    loader: Loader = Field(default_factory=Loader, description="The source loaders.")
    constructor: Constructor = Field(default_factory=Constructor, description="The constructors.")
    index_cache: str = Field(default=".dataloader-svc/index", description="Folder for row indexes.")
    storage: StorageSettings = Field(
        default_factory=StorageSettings, description="Reading from object stores and web servers."
    )
    wire: Wire = Field(default_factory=Wire, description="How batches are sent.")
    security: Security = Field(
        default_factory=Security, description="Who may read; by default all programs of this machine."
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
        return named(sources)
