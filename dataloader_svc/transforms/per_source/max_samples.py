"""`max_samples: 1000`: the first rows of a source, in the order of its files."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dataloader_svc.config.schema import Model
from dataloader_svc.transforms.per_source.base import TRANSFORMS, Transform


class MaxSamplesOptions(Model):
    """Options of `max_samples`."""

    rows: int = Field(gt=0, description="Rows to keep, at most.")


@TRANSFORMS.register("max_samples")
class MaxSamples(Transform):
    """Keep the first rows of the source; of the last extent that is needed, its first ones."""

    Options = MaxSamplesOptions
    shorthand = "rows"

    def __init__(self, options: Model) -> None:
        super().__init__(options)
        assert isinstance(options, MaxSamplesOptions), "checked by Options"
        self._rows = options.rows

    def keep(self, extent_rows: NDArray[np.int64], source: str) -> NDArray[np.int64]:  # noqa: ARG002
        return first_rows(extent_rows, self._rows)


def first_rows(extent_rows: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """Of each extent, as many rows as the first `limit` of all have in it; int64 (E,)."""
    before = np.cumsum(extent_rows) - extent_rows
    kept: NDArray[np.int64] = np.clip(limit - before, 0, extent_rows)
    return kept
