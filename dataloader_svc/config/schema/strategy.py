"""What work costs, and how documents become sequences and the work of ranks."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from dataloader_svc.config.code_files import split_function
from dataloader_svc.config.schema.model import Model


class LlmCostConfig(Model):
    """Predicted work of a document in the language model, from one of: the name of a model, its
    `config.json`, a function, or coefficients: linear * length + quadratic * length^2.
    """

    model: str | None = Field(
        default=None,
        description="A preset, such as 8b or qwen3-30b-a3b (`dataloader_balancers.cost.PRESETS`).",
    )
    config: str | None = Field(
        default=None,
        description="Path of the model's Hugging Face `config.json`, which its shape is read from.",
    )
    function: str | None = Field(
        default=None,
        description="MODULE:FUNCTION, an array of lengths in, an array of costs out; found in the "
        "folder of this file or as Python finds it.",
    )
    linear: float | None = Field(default=None, ge=0, description="Cost of a token.")
    quadratic: float | None = Field(default=None, ge=0, description="Cost of a squared length.")

    @field_validator("function")
    @classmethod
    def _both_parts(cls, value: str | None) -> str | None:
        return _checked_function(value)


class EncoderCostConfig(Model):
    """Predicted work in the media encoder, from one of: the cost of a patch, a `config.json`, a function."""

    patches: float | None = Field(
        default=None,
        ge=0,
        description="Cost of one patch, in 10^9 operations of a forward pass, the unit of the presets: "
        "two for each billion weights of the encoder, so 1, the default, for one of 0.5 billion.",
    )
    config: str | None = Field(
        default=None,
        description="Path of a Hugging Face `config.json` with the encoder in `vision_config`. A patch costs "
        "what it does in a picture of `images.max_pixels`.",
    )
    function: str | None = Field(
        default=None, description="MODULE:FUNCTION, an array of patches in, an array of costs out."
    )

    frames: float = Field(
        default=0.64,
        ge=0,
        description="Cost of one mel frame of sound. The default is that of Whisper large's encoder: 0.64 "
        "billion weights, which work on half as many positions.",
    )

    @field_validator("function")
    @classmethod
    def _both_parts(cls, value: str | None) -> str | None:
        return _checked_function(value)


def _checked_function(value: str | None) -> str | None:
    if value is not None:
        split_function(value)
    return value


class Cost(Model):
    """Cost models by phase; only ratios matter."""

    llm: LlmCostConfig = Field(default_factory=lambda: LlmCostConfig(model="7b"))
    encoder: EncoderCostConfig = Field(default_factory=EncoderCostConfig)


class Strategy(Model):
    """How documents become sequences, and sequences the work of ranks."""

    pack: str = Field(default="best_fit", description="A packer of dataloader_balancers.PACKERS.")
    cost: Cost = Field(default_factory=Cost, description="What work costs, by phase.")
    balance: str = Field(default="lpt", description="A balancer of dataloader_balancers.BALANCERS.")
    group_size: int | None = Field(
        default=None,
        gt=0,
        description="Balance within groups of that many neighbouring dp ranks, such as those of a node; "
        "sequences stay in the group they came to. None: over all ranks.",
    )
    context_parallel: Literal["per_document", "per_sequence", "cheaper"] = Field(
        default="per_document",
        description="What the zig-zag cut over cp ranks runs through: each document, the whole sequence, or "
        "of each sequence whichever is predicted to be faster.",
    )
    calibrate: bool = Field(
        default=False,
        description="Fit the costs to the times that trainers give to `loader.report`, and place by the fit "
        "where it gains by the configured costs too. Packing never follows it.",
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
