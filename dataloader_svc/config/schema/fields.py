"""Fields of a row that need more words than their name."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from dataloader_svc.config.schema.model import Model


class VideoFields(Model):
    """Where a row's video is, and how its frames are chosen."""

    field: str | None = Field(
        default=None,
        description="Column, JSON key or tar extension that holds the video or its path. Not needed where "
        "videos stand inside messages or `interleaved`.",
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


class Preference(Model):
    """Pairs of completions, one preferred to the other; see docs/documents.md."""

    style: Literal["text", "messages"] = Field(
        description="text: strings as they are. messages: chats for the chat template, as lists of messages, "
        "as one message, or as strings (the prompt is the user's turn, a completion the assistant's)."
    )
    chosen: str = Field(default="chosen", description="Field with the preferred completion.")
    rejected: str = Field(default="rejected", description="Field with the other one.")
    prompt: str | None = Field(
        default=None,
        description="Field with what both answer. Without it, what `chosen` and `rejected` begin with in "
        "common is the prompt: messages, or whole words.",
    )
    prompt_end: str | None = Field(
        default=None,
        min_length=1,
        description="Style text without `prompt`: the prompt ends with the last such string in what both "
        'have in common, e.g. "\n\nAssistant:" (Anthropic HH). A row without it is bad.',
    )

    @model_validator(mode="after")
    def _one_way_to_the_prompt(self) -> Preference:
        if self.prompt_end is not None and (self.prompt is not None or self.style != "text"):
            raise ValueError("`prompt_end` is for style text without `prompt`")
        return self

    @property
    def names(self) -> dict[str, str]:
        """Role -> field."""
        prompt = {} if self.prompt is None else {"prompt": self.prompt}
        return {**prompt, "chosen": self.chosen, "rejected": self.rejected}


class AudioFields(Model):
    """Where a row's sound is, and what becomes of long clips. The encoder's geometry is the job's `mel`."""

    field: str | list[str] | None = Field(
        default=None,
        description="Column, JSON key or tar extension that holds the sound, a video with a sound track, or "
        "its path; a list of fields: the first that a row has. Not needed where sound stands inside "
        "`messages` or `interleaved`.",
    )
    max_seconds: float = Field(
        default=30.0,
        gt=0,
        allow_inf_nan=False,
        description="Longest clip that the encoder gets at once: Whisper's window.",
    )
    longer: Literal["split", "truncate", "drop"] = Field(
        default="split",
        description="What becomes of a longer one. split: clips of max_seconds, one behind the other in the "
        "same place. truncate: its beginning. drop: the row is bad (too_long).",
    )
    max_source_seconds: float = Field(
        default=4 * 3600.0,
        gt=0,
        allow_inf_nan=False,
        description="Clips above this are skipped undecoded (bombs).",
    )

    @property
    def names(self) -> tuple[str, ...]:
        """`field` as a tuple."""
        return tuple([self.field] if isinstance(self.field, str) else self.field or ())


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
