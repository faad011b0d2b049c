"""The part of a source that its `subset` and `max_samples` keep: an index with fewer rows.

What is left out is in no order, has no position and is never read, in any epoch. Of an extent that is cut
only the first rows are delivered. The index of the files themselves stays whole, and cached.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from dataloader_svc.sources.index import ExtentColumns, SourceIndex
from dataloader_svc.transforms.per_source import Transform


def reduced(index: SourceIndex, transforms: Sequence[Transform], key: str | None = None) -> SourceIndex:
    """`index` with the rows that all of `transforms` keep; itself where that is all of them.

    key   what they draw by: the source's first name, where it has another now
    """
    kept = index.extents.kept
    for transform in transforms:
        found = np.asarray(transform.keep(kept, key or index.name), np.int64)
        assert found.shape == kept.shape, f"{type(transform).__name__}.keep gives a count for each extent"
        assert ((found >= 0) & (found <= kept)).all(), (
            f"{type(transform).__name__}.keep keeps rows that exist"
        )
        kept = found
    if np.array_equal(kept, index.extents.kept):
        return index
    stays = kept > 0
    columns = {field.name: getattr(index.extents, field.name)[stays] for field in fields(ExtentColumns)}
    columns["kept"] = kept[stays]
    share = columns["kept"] / columns["num_rows"]
    columns["num_bytes"] = np.maximum(1, np.ceil(columns["num_bytes"] * share)).astype(np.int64)
    digest = hashlib.blake2b(index.digest.encode(), digest_size=8)
    digest.update(kept.astype("<i8").tobytes())
    return replace(index, extents=ExtentColumns(**columns), digest=digest.hexdigest())
