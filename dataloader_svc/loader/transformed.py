"""The rows of a block after their source's transforms: changed, or out, before anything is probed.

What a transform leaves out costs no probe and no token. Knows no transform by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dataloader_svc.errors import BadSample
from dataloader_svc.sources.chat_shapes import messages_value
from dataloader_svc.sources.id_arrays import numbers_value
from dataloader_svc.sources.interleaved import parts_of_document
from dataloader_svc.sources.preference import PAIR_ROLES, pair_value
from dataloader_svc.sources.reader import BlockSamples
from dataloader_svc.transforms.per_source import BlockRows, Transform

_STRUCTURED: Mapping[str, Callable[[object, str], Any]] = {
    "messages": messages_value,
    "interleaved": parts_of_document,
    "input_ids": numbers_value,
    "loss_mask": numbers_value,
    **dict.fromkeys(PAIR_ROLES, pair_value),
}
"""What a person's function may have built of parts of its own: it is looked at as a row of a file is."""


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
    for role, check in _STRUCTURED.items():
        if role in rows.columns:
            _check(rows, role, check)
    return replace(samples, columns=rows.columns, raw=rows.raw, bad=dict(sorted(rows.out.items())))


def _check(rows: BlockRows, role: str, check: Callable[[object, str], Any]) -> None:
    values = rows.columns[role]
    for row in list(rows.remaining()):
        try:
            values[row] = check(values[row], role)
        except BadSample as problem:
            rows.out[row] = problem
