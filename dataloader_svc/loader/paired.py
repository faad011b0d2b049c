"""Rows of preference pairs as the two documents of each: twice as many samples, chosen before rejected.

All that comes before a document is made (media, tokenizing) then goes as for other samples;
`transforms.pairs.joined` makes one sample of the two again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dataloader_svc.errors import BadSample
from dataloader_svc.sources.preference import PAIR_ROLES
from dataloader_svc.sources.reader import BlockSamples
from dataloader_svc.transforms.pairs import SIDES, PairRule, Side, sides

PROMPTS = "prompts"
"""Role of the prompts' lengths, as in `RowColumns.prompts`."""


def split_pairs(samples: BlockSamples, rule: PairRule) -> BlockSamples:
    """Sample i of the result is side i % 2 of pair i // 2: with `text` or `messages`, and PROMPTS.

    Other roles (media of the row's own) are both sides'. A bad pair is bad on both, by the same object.
    """
    roles = [role for role in PAIR_ROLES if role in samples.columns]
    nothing = Side("", 0)
    documents: list[Side] = []
    bad = dict(samples.bad)
    for row in range(len(samples)):
        pair = (nothing, nothing)
        if row not in bad:
            try:
                pair = sides({role: samples.columns[role][row] for role in roles}, rule)
            except BadSample as problem:
                bad[row] = problem
        documents += pair
    columns: dict[str, list[Any]] = {
        role: [value for value in values for _ in SIDES]
        for role, values in samples.columns.items()
        if role not in PAIR_ROLES
    }
    kind = "text" if rule.of_text else "messages"
    columns |= {kind: [side.whole for side in documents], PROMPTS: [side.prompt for side in documents]}
    return replace(
        samples,
        columns=columns,
        raw={},
        bad={2 * row + side: problem for row, problem in bad.items() for side in range(len(SIDES))},
        shard=np.repeat(samples.shard, len(SIDES)),
        row=np.repeat(samples.row, len(SIDES)),
    )
