"""The rows of a block after their source's transforms: changed, or out, before anything is probed.

What a transform leaves out costs no probe and no token. Knows no transform by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dataloader_svc.sources.reader import BlockSamples
from dataloader_svc.transforms.per_source import BlockRows, Transform


def transformed(samples: BlockSamples, transforms: Sequence[Transform]) -> BlockSamples:
    """`samples` after `transforms`, in order; those left out stand in `bad`, with the reason FILTERED."""
    if not transforms:
        return samples
    rows = BlockRows(
        len(samples),
        {role: list(values) for role, values in samples.columns.items()},
        {name: list(values) for name, values in samples.raw.items()},
        dict(samples.bad),
    )
    for transform in transforms:
        transform.apply(rows)
    return replace(samples, columns=rows.columns, raw=rows.raw, bad=dict(sorted(rows.out.items())))
