"""Preference pairs: what of a row is the prompt, and two documents that become one sample.

A pair is tokenized as two documents, `prompt + chosen` and `prompt + rejected`, of which only the completions
are targets, and goes on as one sample: chosen, then rejected. Nothing behind the loader can part them, since
what is planned is the sample. A pair that is too long is shortened here, where both sides are known.

Prompts as in TRL's "preference" data sets (trl/data_utils.py): a field of their own, or what both sides begin
with. Truncation as in its `DPOTrainer`: the start of each document is kept (`truncation_mode="keep_start"`,
its default), so that a completion loses its end and a prompt nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.transforms.base import Documents
from dataloader_svc.transforms.plain_text import text_problem

SIDES = ("chosen", "rejected")
"""The documents of a pair, in their order."""

Turns = list[dict[str, Any]]


class Side(NamedTuple):
    """A document of a pair: a text or messages, of which the first `prompt` characters or messages are read
    only and the others learnt.
    """

    whole: str | Turns
    prompt: int


class PairRule(NamedTuple):
    """How a source's pairs are made.

    of_text      they are strings, not messages
    prompt_end   as in the YAML
    limit        tokens that a pair is shortened to; None: it stays as long as it is
    """

    of_text: bool
    prompt_end: str | None = None
    limit: int | None = None


def sides(values: Mapping[str, Any], rule: PairRule) -> tuple[Side, Side]:
    """The two documents of a row. `values`: `chosen`, `rejected` and maybe `prompt`, all strings or all
    messages. Raises BadSample where one side says nothing, or both the same.
    """
    chosen, rejected = (values[side] for side in SIDES)
    if chosen == rejected:
        raise BadSample(Reason.BAD_RECORD, "chosen and rejected are the same: neither is preferred")
    if not rule.of_text:
        return _of_messages(values.get("prompt"), chosen, rejected)
    for side in SIDES:
        if (problem := text_problem(values[side])) is not None:
            raise BadSample(problem.reason, f"{side}: {problem.detail}")
    prompt = values.get("prompt")
    if prompt is None:
        length = _shared_text(chosen, rejected, rule.prompt_end)
        if not (chosen[length:].strip() and rejected[length:].strip()):
            raise BadSample(Reason.EMPTY_TEXT, "one of chosen and rejected is what the other begins with")
        return Side(chosen, length), Side(rejected, length)
    return Side(prompt + chosen, len(prompt)), Side(prompt + rejected, len(prompt))


def _shared_text(chosen: str, rejected: str, prompt_end: str | None) -> int:
    """Characters of the prompt, where both sides repeat it."""
    both = zip(chosen, rejected, strict=False)
    shared = chosen[: next((at for at, (mine, other) in enumerate(both) if mine != other), None)]
    shared = shared[: len(rejected)]
    if prompt_end is not None:
        at = shared.rfind(prompt_end)
        if at < 0:
            detail = f"{prompt_end!r} (prompt_end) is not in what chosen and rejected have in common"
            raise BadSample(Reason.BAD_RECORD, detail)
        return at + len(prompt_end)
    # Whole words: a token of the completion must not begin inside one. Its space is the completion's, as
    # vocabularies have it.
    spaces = list(re.finditer(r"\s+", shared))
    return spaces[-1].start() if spaces else 0


def _of_messages(prompt: Turns | None, chosen: Turns, rejected: Turns) -> tuple[Side, Side]:
    if prompt is None:
        count = 0
        for mine, other in zip(chosen, rejected, strict=False):
            if mine != other:
                break
            count += 1
        if count == min(len(chosen), len(rejected)):
            raise BadSample(Reason.BAD_MESSAGES, "one of chosen and rejected is what the other begins with")
        return Side(chosen, count), Side(rejected, count)
    count = len(prompt)
    if all(side[:count] == prompt and len(side) > count for side in (chosen, rejected)):
        return Side(chosen, count), Side(rejected, count)  # UltraFeedback repeats its prompt in both
    return Side(prompt + chosen, count), Side(prompt + rejected, count)


def joined(documents: Documents, media_tokens: NDArray[np.int32], limit: int | None) -> Documents:
    """Documents 2i and 2i+1 as sample i, with `second`. A pair of which one side is bad is bad.

    media_tokens   int32 (m,) placeholders of each medium that `documents.media_index` counts
    limit          tokens of a pair: a longer one is shortened, or is bad with the reason TOO_LONG
    """
    lengths = np.diff(documents.id_offsets)
    bad = _bad_pairs(documents)
    kept = lengths.copy()
    kept.reshape(-1, 2)[list(bad)] = 0
    if limit is not None:
        for pair in np.flatnonzero(kept.reshape(-1, 2).sum(axis=1) > limit).tolist():
            try:
                kept[2 * pair : 2 * pair + 2] = _shortened(documents, media_tokens, pair, limit)
            except BadSample as problem:
                bad[pair], kept[2 * pair : 2 * pair + 2] = problem, 0
    place = np.arange(len(documents.ids)) - np.repeat(documents.id_offsets[:-1], lengths)
    left = place < np.repeat(kept, lengths)
    ends = np.concatenate([[0], np.cumsum(kept)])
    of = np.repeat(np.arange(len(lengths)), np.diff(documents.media_offsets))  # document of each medium
    inside = documents.media_start < kept[of]
    counts = np.bincount(of[inside], minlength=len(lengths)).reshape(-1, 2).sum(axis=1)
    behind = np.where(of % 2 == 1, kept[of - 1], 0)  # what stands in front of a rejected document
    return replace(
        documents,
        ids=documents.ids[left],
        id_offsets=ends[::2],
        targets=documents.targets[left],
        media_offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        media_index=documents.media_index[inside],
        media_start=(documents.media_start + behind)[inside].astype(np.int32),
        second=kept[::2].astype(np.int32),
        bad=bad,
        differing={row // 2: what for row, what in documents.differing.items()},
    )


def _bad_pairs(documents: Documents) -> dict[int, BadSample]:
    """Pair -> what is wrong with its first bad side, which is named unless both have the same fault."""
    bad: dict[int, BadSample] = {}
    for row, problem in sorted(documents.bad.items()):
        if row // 2 not in bad:
            both = documents.bad.get(row ^ 1) is problem
            named = problem if both else BadSample(problem.reason, f"{SIDES[row % 2]}: {problem.detail}")
            bad[row // 2] = named
    return bad


def _shortened(
    documents: Documents, media_tokens: NDArray[np.int32], pair: int, limit: int
) -> tuple[int, int]:
    """Tokens that are kept of each side: the longer is cut first, then both to half. Raises BadSample."""
    bounds = documents.id_offsets[2 * pair : 2 * pair + 3].tolist()
    sizes = [bounds[1] - bounds[0], bounds[2] - bounds[1]]
    half = limit // 2
    cuts = [min(size, max(half, limit - other)) for size, other in zip(sizes, reversed(sizes), strict=True)]
    for side, start in enumerate(bounds[:2]):
        media = slice(*documents.media_offsets[2 * pair + side : 2 * pair + side + 2].tolist())
        first = documents.media_start[media]
        through = first[
            (first < cuts[side]) & (cuts[side] < first + media_tokens[documents.media_index[media]])
        ]
        cuts[side] = int(through[0]) if len(through) else cuts[side]
        if not documents.targets[start + 1 : start + cuts[side]].any():
            raise _too_long(sizes, limit, f"no token of {SIDES[side]} is left behind the prompt")
    left = [documents.ids[start : start + cut] for start, cut in zip(bounds[:2], cuts, strict=True)]
    if np.array_equal(left[0], left[1]):
        raise _too_long(sizes, limit, "the same is left of both")
    return cuts[0], cuts[1]


def _too_long(sizes: list[int], limit: int, what: str) -> BadSample:
    return BadSample(
        Reason.TOO_LONG, f"{sizes[0]} and {sizes[1]} tokens, sequence_length {limit} for both: {what}"
    )
