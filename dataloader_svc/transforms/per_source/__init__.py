"""The entries of a source's `transforms:`. Importing the package registers the built-in ones."""

from dataloader_svc.transforms.per_source import (
    crop,
    filter_rows,
    held_out,
    map_rows,
    max_samples,
    resize,
    subset,
)
from dataloader_svc.transforms.per_source.base import (
    FILTERED,
    TRANSFORMS,
    BlockRows,
    PictureCrop,
    Transform,
    TransformError,
    columns_of,
    make_transform,
    make_transforms,
)

__all__ = [
    "FILTERED",
    "TRANSFORMS",
    "BlockRows",
    "PictureCrop",
    "Transform",
    "TransformError",
    "columns_of",
    "crop",
    "filter_rows",
    "held_out",
    "make_transform",
    "make_transforms",
    "map_rows",
    "max_samples",
    "resize",
    "subset",
]
