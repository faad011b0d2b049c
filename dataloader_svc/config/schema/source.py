"""A source: its files, which fields of a row make a document, and what is kept of it."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from dataloader_svc.config.schema.fields import AudioFields, Interleaved, Preference, VideoFields
from dataloader_svc.config.schema.model import Bytes, Model


class Shuffle(Model):
    """How far apart neighbours of a file end up."""

    block: Bytes = Field(
        default=16 * 2**20,
        description="Bytes of a block: extents drawn from anywhere in the source are joined until this "
        "size, and their samples shuffled together. Larger mixes better and holds more memory: one of each "
        "source is held at a time, so with hundreds of sources lower this or raise `loader.memory`.",
    )


class Source(Model):
    """One named dataset of the mixture."""

    format: str = Field(
        description="A registered format, such as parquet; `dataloader-svc formats` lists them."
    )
    path: str | list[str] = Field(
        description="File, glob or brace pattern ({0000..0031}), or a list of them. Relative to this file."
    )
    was: str | None = Field(
        default=None,
        description="The first name that it had in this job, where it has been renamed: its order, place and "
        "accounts go on. Keep it as long as the job lives, also through further names. See docs/resume.md.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="The format's own options; `dataloader-svc formats` lists them."
    )
    transforms: list[dict[str, Any]] = Field(
        default_factory=list,
        description="What is kept of the source and how it is changed, in order: a list of filter, map, "
        "subset, max_samples, held_out, resize, crop, each as `- NAME: options`. See docs/transforms.md.",
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
    preference: Preference | None = Field(
        default=None,
        description="Fields with a preferred and a rejected completion: two documents that stay together.",
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
    audio: AudioFields | None = Field(default=None, description="Field with sound, and how long it may be.")
    media_root: str | None = Field(
        default=None, description="Folder that media paths in the rows are relative to. Default: the shard's."
    )
    shuffle: Shuffle | Literal[False] = Field(
        default_factory=Shuffle, description="`false` keeps the order of the files."
    )
    too_long: Literal["split", "truncate", "drop", "error"] = Field(
        default="split",
        description="What becomes of a document longer than sequence_length. A cut never runs through a "
        "picture's tokens; a picture longer than the sequence is dropped with its document. A preference "
        "pair counts as both its documents and is never split: there the default is truncate, which shortens "
        "the longer one first.",
    )
    max_bad_fraction: float = Field(
        default=0.05, ge=0, le=1, description="Share of bad samples above which the job stops."
    )
    max_bad_minimum: int = Field(
        default=20, gt=0, description="Bad samples that must have been seen before the share is judged."
    )
    chat_template: str | None = Field(
        default=None, description="Jinja file for messages; default: the tokenizer's own."
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

    @model_validator(mode="before")
    @classmethod
    def _pairs_are_truncated(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("preference") is not None:
            return {"too_long": "truncate", **values}
        return values

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
        kinds = ("text", "messages", "interleaved", "preference", "input_ids")
        found = [name for name in kinds if getattr(self, name) is not None]
        if len(found) != 1:
            listed = "`text`, `messages`, `interleaved`, `preference` and `input_ids`"
            raise ValueError(f"a source maps exactly one of {listed}; found {' and '.join(found) or 'none'}")
        kind = found[0]
        if self.loss_mask is not None and kind != "input_ids":
            raise ValueError(f"`loss_mask` belongs to `input_ids`; the source maps `{kind}`")
        if kind == "input_ids" and any(
            getattr(self, name) is not None for name in ("image", "video", "audio")
        ):
            raise ValueError("`input_ids` come without media: map no `image`, `video` or `audio` beside them")
        if self.interleaved is not None and self.interleaved.style != "parts" and self.image is not None:
            style = self.interleaved.style
            raise ValueError(f"pictures of style {style} are `interleaved.images`; map no `image` beside it")
        if self.preference is not None and self.too_long == "split":
            raise ValueError(
                "`too_long: split` would tear preference pairs: use truncate (the default), drop or error"
            )
        for name, fields in (("video", self.video), ("audio", self.audio)):
            if fields is not None and not fields.field and not self.has_parts:
                raise ValueError(f"`{name}` needs `field`: a text does not hold {name} itself")
        return self

    @property
    def is_chat(self) -> bool:
        """Whether its documents come out of a chat template."""
        return self.messages is not None or (
            self.preference is not None and self.preference.style == "messages"
        )

    @property
    def has_parts(self) -> bool:
        """Whether media may stand in its messages or typed parts."""
        return self.is_chat or self.interleaved is not None

    def has_media(self, kind: str) -> bool:
        """Whether its rows may hold `image`, `video` or `audio`: in a field of its own, or in their parts."""
        return getattr(self, kind) is not None or (kind == "image" and self.interleaved is not None)

    @property
    def paths(self) -> list[str]:
        """`path` as a list."""
        return [self.path] if isinstance(self.path, str) else list(self.path)


def named(sources: dict[str, Source]) -> dict[str, Source]:
    """`sources` themselves. ValueError for a name that won't do in a mixture or a key of the store."""
    for name in sources:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) or name in ("step", "ramp", "weights"):
            raise ValueError(
                f"source name {name!r} must be letters, digits, '.', '_' or '-', "
                "and not step, ramp or weights"
            )
    return sources
