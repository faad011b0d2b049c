"""`crop: {height: 224, width: 224, at: center}`: pictures of one size, cut out of the scaled picture.

The picture is scaled until it just covers the size, then cut. A random place is a function of the job's
seed and the sample's name: the same for whoever decodes it, another one in the next epoch.
`media/cropped.py` does it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dataloader_svc.config.schema import Model
from dataloader_svc.errors import ConfigError
from dataloader_svc.transforms.per_source.base import TRANSFORMS, PictureCrop, Transform
from dataloader_svc.transforms.vision import VisionRule


class CropOptions(Model):
    """Options of `crop`."""

    height: int = Field(gt=0, description="Pixels; a multiple of images.patch * images.merge.")
    width: int = Field(gt=0, description="The same.")
    at: Literal["center", "random"] = Field(default="center", description="Which part of the picture.")


@TRANSFORMS.register("crop")
class Crop(Transform):
    """Scale pictures by their short side and cut them to one size. Clips are not cropped."""

    Options = CropOptions

    def crop(self, rule: VisionRule) -> PictureCrop:
        options = self.options
        assert isinstance(options, CropOptions), "checked by Options"
        for name, side in (("height", options.height), ("width", options.width)):
            if side % rule.side:
                below = side // rule.side * rule.side
                near = [str(one) for one in (below, below + rule.side) if one]
                raise ConfigError(
                    f"{name} {side} is no multiple of images.patch * images.merge = {rule.side}; "
                    f"near it: {', '.join(near)}"
                )
        pixels = options.height * options.width
        if not rule.min_pixels <= pixels <= rule.max_pixels:
            raise ConfigError(
                f"{options.height} x {options.width} = {pixels} pixels, but a picture has "
                f"{rule.min_pixels} to {rule.max_pixels}: change these bounds for the source by `resize`"
            )
        return PictureCrop(options.height, options.width, random=options.at == "random")
