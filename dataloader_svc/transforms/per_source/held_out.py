"""`held_out: {fraction: 0.01, part: rest}`: a share of a source that training never reads, or all but it.

Each extent is on one side or the other by a number drawn for it from the source's name and its place in the
list of extents, and by nothing else: neither the job's seed, nor how many extents there are. So shards that
are appended move none of those before, a larger fraction contains a smaller one, and two entries that differ
in `part` alone share no row and lack none. What lies on the other side is not read.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dataloader_svc.config.schema import Model
from dataloader_svc.sample import keyed_rng
from dataloader_svc.transforms.per_source.base import TRANSFORMS, Transform

NAME = "held_out"


class HeldOutOptions(Model):
    """Options of `held_out`."""

    fraction: float = Field(gt=0, lt=1, description="Expected share of the extents that is held out.")
    part: Literal["rest", "held_out"] = Field(
        default="rest", description="Which of the two this source is. `evaluation.held_out` makes both."
    )


@TRANSFORMS.register(NAME)
class HeldOut(Transform):
    """Keep the extents of one side whole, and nothing of the others."""

    Options = HeldOutOptions
    shorthand = "fraction"

    def __init__(self, options: Model) -> None:
        super().__init__(options)
        assert isinstance(options, HeldOutOptions), "checked by Options"
        self._fraction, self._part = options.fraction, options.part

    def keep(self, extent_rows: NDArray[np.int64], source: str) -> NDArray[np.int64]:
        # Raw words come one after another: those of the first extents are the same however many follow.
        words = keyed_rng(0, source, NAME).bit_generator.random_raw(len(extent_rows))
        held_out = words < np.uint64(int(self._fraction * 2**64))
        return np.where(held_out == (self._part == "held_out"), extent_rows, 0)
