"""What work costs, and how documents become sequences and the work of ranks."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dataloader_svc.config.schema.model import Model


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
    context_parallel: Literal["per_document", "per_sequence", "cheaper"] = Field(
        default="per_document",
        description="What the zig-zag cut over cp ranks runs through: each document, the whole sequence, or "
        "of each sequence whichever is predicted to be faster.",
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
