"""What a step holds: its size, and the shares of the sources."""

from __future__ import annotations

import itertools
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, field_validator, model_validator

from dataloader_svc.config.schema.adaptive import Adaptive
from dataloader_svc.config.schema.model import Model

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
    adaptive: Adaptive | None = Field(
        default=None, description="Let the weights follow the losses that trainers report."
    )

    @model_validator(mode="after")
    def _ascending(self) -> Mixture:
        steps = [entry.step for entry in self.schedule]
        if steps[0] != 0 or any(b <= a for a, b in itertools.pairwise(steps)):
            raise ValueError(f"schedule must begin at step 0 and rise; found steps {steps}")
        return self
