"""From texts and media to tokens: tokenizers, the geometry of pictures and sound, placeholders, markers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from dataloader_svc.config.schema.model import Model

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


class Mel(Model):
    """The audio encoder's geometry: how sound becomes mel frames and tokens (Whisper's layout)."""

    bins: int = Field(
        default=128, gt=0, description="Mel filters: 80 for Whisper up to large-v2, 128 from large-v3 on."
    )
    sample_rate: int = Field(default=16_000, gt=0, description="Hz that every clip is brought to.")
    n_fft: int = Field(default=400, gt=0, description="Samples of a window: 25 ms.")
    hop: int = Field(default=160, gt=0, description="Samples from one frame to the next: 10 ms.")
    frames_per_token: int = Field(
        default=4,
        gt=0,
        description="Frames that become one token: 2 as Whisper's encoder gives them, 4 with Qwen2-Audio's "
        "pooling behind it. Clips are filled with silence to whole tokens.",
    )

    def tokens_of(self, seconds: float) -> int:
        """Whole tokens in so much sound."""
        return int(seconds * self.sample_rate / self.hop) // self.frames_per_token


class MediaTokens(Model):
    """Vocabulary entries that stand where the embeddings of a medium go."""

    image: str | int | None = Field(default=None, description="Token (or its id) repeated for a picture.")
    video: str | int | None = Field(default=None, description="Token (or its id) repeated for a video.")
    audio: str | int | None = Field(default=None, description="Token (or its id) repeated for sound.")


class Markers(Model):
    """Strings in a text that say where a medium belongs; without them media come first."""

    image: str = Field(default="<image>", min_length=1, description="Marks a picture.")
    video: str = Field(default="<video>", min_length=1, description="Marks a video.")
    audio: str = Field(default="<audio>", min_length=1, description="Marks sound.")
