"""How long sequences become, and what a step takes to build, before anything of it is fetched. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.constructor.collate import Form
from dataloader_svc.constructor.placeholders import placeholder_bytes
from dataloader_svc.constructor.step import StepPlan


def bytes_needed(plan: StepPlan, dp_ranks: frozenset[int], form: Form) -> tuple[int, int]:
    """(bytes while building, bytes kept) that building a step for these dp ranks takes at most.

    Known before anything is fetched. With cp > 1 a medium may be wanted by every cp rank.
    """
    everything, uncut, kept = bytes_by_rank(plan, dp_ranks, form)
    return everything + sum(uncut.values()), sum(kept.values())


def bytes_by_rank(
    plan: StepPlan, dp_ranks: frozenset[int], form: Form
) -> tuple[int, dict[int, int], dict[int, int]]:
    """The same: bytes of the whole step while it is built; beside them, by dp rank; and kept, by dp rank."""
    # Kept a token: ids, labels, positions 8 each, weight 4, mask 8, document 4, cp_index 4; a placeholder
    # adds index and position, 8 each, and on every cp rank a frame, which has one at least, its time, and a
    # clip of sound, which has one at least, its length.
    # Built from: ids 4, targets 1, twice for the masked copy.
    # A pair has a second document and its bounds, 16 bytes, and a number for each token, 4.
    per_token, per_piece, fetched = 44, 48, 6
    if form.pairs:
        per_token, per_piece = per_token + 4, per_piece + 16
    num_bytes = plan.patches * form.pixel_width + plan.frames * 4 * form.mel_bins
    indexed = plan.patches // form.merge**2 * (16 + 4 * form.cp)
    indexed += plan.frames // form.frames_per_token * (16 + 8 * form.cp)
    ranks = np.array(sorted(dp_ranks), np.int64)
    size = max(int(plan.dp_rank.max(initial=0)), int(ranks.max(initial=0))) + 1

    def of_ranks(by_sequence: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sums by rank; exact, below 2^53."""
        sums: NDArray[np.int64] = np.bincount(plan.dp_rank, by_sequence, size).astype(np.int64)[ranks]
        return sums

    low, high = plan.sequence_offsets[:-1], plan.sequence_offsets[1:]
    totals = [np.concatenate(([0], np.cumsum(column))) for column in (num_bytes, indexed)]
    payload, placeholders = (of_ranks(total[high] - total[low]) for total in totals)
    if form.encoder_ranks and plan.encoder_rank is not None:
        # Once, at the rank that encodes; beside a row at most its index, a grid, a time and a length. A token
        # of media has position, sender and index before the cut, and the last two beside position behind it.
        encoder, frames = plan.encoder_rank // form.cp, plan.frames // form.frames_per_token
        rows = plan.patches // form.merge**2 + frames
        sent = np.bincount(encoder, num_bytes + rows * 48, size).astype(np.int64)[ranks]
        awaited = np.concatenate(([0], np.cumsum(rows * 16)))
        counts = 3 * 2 * 8 * form.encoder_ranks * form.cp * plan.num_microbatches
        payload, placeholders = np.zeros_like(payload), of_ranks(awaited[high] - awaited[low]) + sent + counts
    pieces = of_ranks(high - low + 2)
    # An empty microbatch still has its padding.
    tokens = of_ranks(_padded(plan, form)) + plan.num_microbatches * form.padded(0)
    uncut = tokens * per_token + payload + placeholders if form.cp > 1 else tokens
    kept = tokens * per_token + pieces * per_piece + payload * form.cp + placeholders
    if form.ensure_modality:
        kept += placeholder_bytes(form) * plan.num_microbatches * form.cp
    everything = int(plan.length.sum()) * fetched + int(num_bytes.sum())
    names = ranks.tolist()
    uncut_of, kept_of = (dict(zip(names, column.tolist(), strict=True)) for column in (uncut, kept))
    return everything, uncut_of, kept_of


def _padded(plan: StepPlan, form: Form) -> NDArray[np.int64]:
    """(N,) length of each sequence with its padding, as `Form.padded`."""
    tokens = plan.sequence_tokens
    if form.layout == "padded" and form.to_longest:
        spot = plan.dp_rank * plan.num_microbatches + plan.microbatch
        longest = np.zeros(int(spot.max(initial=0)) + 1, np.int64)
        np.maximum.at(longest, spot, tokens)
        tokens = np.maximum(tokens, longest[spot])
    elif form.layout == "padded":
        tokens = np.maximum(tokens, form.sequence_length)
    padded: NDArray[np.int64] = -(-np.maximum(tokens, 1) // form.multiple) * form.multiple
    return padded


def document_bounds(
    plan: StepPlan, second: list[int], form: Form, sequences: Iterable[int]
) -> dict[int, NDArray[np.int32]]:
    """By sequence: where its documents begin, and its end, int32 (D+1,), as a cut over cp takes them."""
    offsets, lengths = plan.sequence_offsets.tolist(), plan.length.tolist()
    padded = _padded(plan, form).tolist()
    found = {}
    for number in sequences:
        bounds = [0]
        for index in range(offsets[number], offsets[number + 1]):
            if second[index]:
                bounds.append(bounds[-1] + second[index])
            bounds.append(bounds[-1] + lengths[index] - second[index])
        if bounds[-1] < padded[number]:
            bounds.append(padded[number])
        found[number] = np.array(bounds, np.int32)
    return found
