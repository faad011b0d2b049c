"""`subset: {fraction: 0.1, seed: 0}`: a share of a source, drawn once, the same in every epoch.

Whole extents are drawn, so that what is left out is not read; rows that lie together in a file stay or go
together. Draw with another `seed` for another share; a larger fraction contains the smaller.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dataloader_svc.config.schema import Model
from dataloader_svc.sample import keyed_rng
from dataloader_svc.transforms.per_source.base import TRANSFORMS, Transform
from dataloader_svc.transforms.per_source.max_samples import first_rows


class SubsetOptions(Model):
    """Options of `subset`."""

    fraction: float = Field(gt=0, le=1, description="Share of the rows to keep; at least one row is.")
    seed: int = Field(default=0, ge=0, description="Which share: of this and the source's name alone.")


@TRANSFORMS.register("subset")
class Subset(Transform):
    """Keep a share of the rows, drawn extent by extent over the whole source."""

    Options = SubsetOptions
    shorthand = "fraction"

    def __init__(self, options: Model) -> None:
        super().__init__(options)
        assert isinstance(options, SubsetOptions), "checked by Options"
        self._fraction, self._seed = options.fraction, options.seed

    def keep(self, extent_rows: NDArray[np.int64], source: str) -> NDArray[np.int64]:
        # Raw words, as in sources/order.py: Generator.permutation may change with NumPy.
        words = keyed_rng(self._seed, source, "subset").bit_generator.random_raw(len(extent_rows))
        drawn = np.argsort(words, kind="stable")
        limit = max(1, round(self._fraction * int(extent_rows.sum())))
        kept = np.zeros_like(extent_rows)
        kept[drawn] = first_rows(extent_rows[drawn], limit)
        return kept
