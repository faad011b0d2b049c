"""A mixture that follows the losses that trainers report."""

from __future__ import annotations

import math
from typing import Any, Self

from pydantic import Field, model_validator

from dataloader_client.adaptive import Bounds
from dataloader_svc.config.schema.model import Model


class Adaptive(Model):
    """Weights that follow the losses that ranks report (`loader.report(losses=...)`), period after period.
    See docs/adaptive.md.
    """

    rule: str = Field(
        description="`excess_loss` (DoReMi), `learning_speed` (after ADO), or a function `module:function`; "
        "modules beside this file are found."
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Of the rule, by name.")
    every: int = Field(
        default=500, gt=0, description="Steps of a period: what ranks lost in one decides once."
    )
    begin: int = Field(
        default=0,
        ge=0,
        description="First step whose losses count; those of a warm-up say little of the sources.",
    )
    lead: int = Field(
        default=32,
        ge=0,
        description="Steps from the end of a period to the first that is drawn by what it decided. Plans are "
        "made ahead: where that step is planned already, the first that isn't. For half of them reports are "
        "waited for.",
    )
    min_share: float = Field(default=0.0, ge=0, le=1, description="Least share of a source that has any.")
    max_share: float = Field(default=1.0, ge=0, le=1, description="Largest share of a source.")
    max_ratio: float | None = Field(
        default=4.0,
        ge=1,
        allow_inf_nan=False,
        description="Most that a source may be above or below its share in `schedule`, as a factor; none: "
        "no limit.",
    )
    max_change: float = Field(
        default=0.05, gt=0, le=1, description="Most that a share may change from one period to the next."
    )

    @property
    def bounds(self) -> Bounds:
        """How far weights may go, and how fast."""
        return Bounds(
            min_share=self.min_share,
            max_share=self.max_share,
            max_ratio=math.inf if self.max_ratio is None else self.max_ratio,
            max_change=self.max_change,
        )

    @model_validator(mode="after")
    def _bounds_make_sense(self) -> Self:
        _ = self.bounds  # ValueError says what doesn't
        return self
