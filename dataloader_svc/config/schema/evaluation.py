"""What a job is evaluated on: data that training does not read."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from dataloader_svc.config.schema.batch import GlobalBatch
from dataloader_svc.config.schema.model import Model
from dataloader_svc.config.schema.source import Source, named

Fraction = Annotated[float, Field(gt=0, lt=1)]


class Evaluation(Model):
    """Data for `DataServiceLoader(..., split="eval")`: each sample once, in the order of the files, the same
    on every mesh and as often as it is asked for. See docs/evaluation.md.
    """

    sources: dict[str, Source] = Field(
        default={}, description="Name -> source, of data that training does not read. Of other names."
    )
    held_out: dict[str, Fraction] = Field(
        default={},
        description="Name of a source of training -> share of its extents that training never reads, and "
        "evaluation does, as source NAME.eval.",
    )
    global_batch: GlobalBatch | None = Field(
        default=None, description="Size of a step of evaluation. Default: the job's."
    )

    @field_validator("sources")
    @classmethod
    def _names(cls, sources: dict[str, Source]) -> dict[str, Source]:
        return named(sources)

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.sources and not self.held_out:
            raise ValueError("give sources, held_out or both: there is nothing to evaluate on")
        return self
