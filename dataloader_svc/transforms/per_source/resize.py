"""`resize: {max_pixels: 100352}`: other bounds of a picture's size than the job's, for one source."""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from dataloader_svc.config.schema import Model
from dataloader_svc.errors import ConfigError
from dataloader_svc.transforms.per_source.base import TRANSFORMS, Transform
from dataloader_svc.transforms.vision import VisionRule


class ResizeOptions(Model):
    """Options of `resize`."""

    min_pixels: int | None = Field(default=None, gt=0, description="Instead of images.min_pixels.")
    max_pixels: int | None = Field(default=None, gt=0, description="Instead of images.max_pixels.")


@TRANSFORMS.register("resize")
class Resize(Transform):
    """Bounds of the size that pictures and frames of this source are scaled to."""

    Options = ResizeOptions

    def vision(self, rule: VisionRule) -> VisionRule:
        changed = self.options.model_dump(exclude_none=True)
        if not changed:
            raise ConfigError("give min_pixels, max_pixels or both")
        if (
            "max_pixels" in changed
            and "min_pixels" not in changed
            and rule.min_pixels > changed["max_pixels"]
        ):
            raise ConfigError(
                f"max_pixels {changed['max_pixels']} is below images.min_pixels {rule.min_pixels}; "
                "give min_pixels here too"
            )
        try:
            return replace(rule, **changed)
        except ValueError as error:
            raise ConfigError(str(error)) from None
