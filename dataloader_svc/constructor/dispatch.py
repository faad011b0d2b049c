"""Media encoded on another rank than has their tokens: what each rank encodes, and the way of each row.

Pure. With `strategy.encoder_placement: dispatch` the plan says by piece which rank, dp rank * cp + cp rank,
encodes its media; that rank alone gets their pixels. An encoder makes a row for each placeholder token, and a
token stands on one rank, so each row has one way, and one all-to-all a microbatch and kind brings
all of them home. Both ends know the order: a rank encodes media by the dp rank of their tokens, then as the
plan has them; sends their rows by receiver, and gets rows by sender, each in that order. Fields:
`dataloader_client/batch.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dataloader_client.batch import send_fields
from dataloader_svc.constructor.ragged import ragged
from dataloader_svc.constructor.step import AUDIO, KINDS, Samples, StepPlan
from dataloader_svc.errors import PeerError

if TYPE_CHECKING:
    from dataloader_svc.constructor.collate import Form

Ints = NDArray[np.int64]
Arrays = dict[str, NDArray[Any]]
Empty = Callable[[Any, Any], NDArray[Any]]

PIXELS = {"image": "pixel_values", "video": "pixel_values_videos"}


class Table:
    """Of a step's media: who encodes each, where, in which microbatch its tokens are, and how many rows it
    makes.

    piece, sender, home, microbatch, rows   int64 (m,); `sender` of dp * cp ranks, `home` a dp rank
    """

    def __init__(self, plan: StepPlan, samples: Samples, form: Form) -> None:
        """PeerError: the plan does not say who encodes."""
        if plan.encoder_rank is None:
            raise PeerError(
                f"step {plan.step}: encoder_placement is dispatch, and its plan has no encoder ranks: do the "
                "planner and this constructor have the same configuration and version?"
            )
        self.piece = np.repeat(np.arange(plan.num_pieces), np.diff(samples.media_offsets))
        self.sender = plan.encoder_rank[self.piece]
        sequence = np.repeat(np.arange(len(plan.dp_rank)), np.diff(plan.sequence_offsets))[self.piece]
        self.sequence, self.home = sequence, plan.dp_rank[sequence]
        self.microbatch = plan.microbatch[sequence]
        patches = samples.grid_thw.prod(axis=1)
        sound = samples.media_kind == AUDIO
        self.rows = np.where(sound, samples.grid_thw[:, 0] // form.frames_per_token, patches // form.merge**2)
        self.cp, self.num_ranks = form.cp, form.encoder_ranks

    def encoded_by(self, dp_rank: int) -> Ints:
        """Media that the cp ranks of a dp rank encode."""
        return np.flatnonzero(self.sender // self.cp == dp_rank)


def encoded(
    plan: StepPlan,
    samples: Samples,
    table: Table,
    dp_rank: int,
    form: Form,
    owners: Callable[[Iterable[int]], dict[int, NDArray[np.int64]]],
    empty: Empty,
) -> list[list[Arrays]]:
    """By microbatch and cp rank of `dp_rank`: the fields of the media that it encodes, of each kind that the
    step has, and where their rows go.

    owners   of sequences: (tokens,) the cp rank of each token
    empty    makes the large arrays
    """
    mine = table.encoded_by(dp_rank)
    token_owner = owners(np.unique(table.sequence[mine]).tolist()) if table.cp > 1 else {}
    first = _first_tokens(plan, table, samples) if table.cp > 1 else samples.media_start
    presence = samples.presence
    parts: list[list[Arrays]] = []
    for number in range(plan.num_microbatches):
        here = mine[table.microbatch[mine] == number]
        ranks: list[Arrays] = []
        for cp_rank in range(table.cp):
            held = here[table.sender[here] == dp_rank * table.cp + cp_rank]
            arrays: Arrays = {}
            for kind, name in enumerate(KINDS):
                if not presence[name]:
                    continue
                media = held[samples.media_kind[held] == kind]
                media = media[np.argsort(table.home[media], kind="stable")]
                arrays |= _pixels(name, samples, media, form, empty)
                arrays |= _ways(name, table, media, first, token_owner)
            ranks.append(arrays)
        parts.append(ranks)
    return parts


def _first_tokens(plan: StepPlan, table: Table, samples: Samples) -> Ints:
    """(m,) where the tokens of each medium begin, in its sequence."""
    ends = np.cumsum(plan.length)
    starts = ends - plan.length
    begin = np.append(starts, ends[-1] if len(ends) else 0)[plan.sequence_offsets[:-1]]
    first: Ints = starts[table.piece] - begin[table.sequence] + samples.media_start
    return first


def _pixels(name: str, samples: Samples, media: Ints, form: Form, empty: Empty) -> Arrays:
    """What an encoder reads of these media, one behind the other."""
    grid = samples.grid_thw[media]
    if name == "audio":
        features = empty((int(grid[:, 0].sum()), form.mel_bins), np.float32)
        np.concatenate([features[:0], *(samples.features[m] for m in media.tolist())], out=features)
        return {"audio_features": features, "audio_lengths": grid[:, 0].copy()}
    pixels = empty((int(grid.prod(axis=1).sum()), form.pixel_width), np.uint8)
    np.concatenate([pixels[:0], *(samples.pixels[m] for m in media.tolist())], out=pixels)
    arrays: Arrays = {PIXELS[name]: pixels, f"{name}_grid_thw": grid}
    if name == "video":
        times = [samples.times[m] for m in media.tolist()]
        arrays["video_timestamps"] = np.concatenate([np.empty(0, np.float32), *times])
    return arrays


def _ways(name: str, table: Table, media: Ints, first: Ints, owner: dict[int, NDArray[np.int64]]) -> Arrays:
    """How many rows go to each rank, and with cp > 1 which."""
    counts, index = send_fields(name)
    rows, home = table.rows[media], table.home[media]
    if table.cp == 1:  # media stand by receiver already
        return {counts: np.bincount(home, rows, table.num_ranks).astype(np.int64)}
    of_row = [
        owner[sequence][begin : begin + count]
        for sequence, begin, count in zip(
            table.sequence[media].tolist(), first[media].tolist(), rows.tolist(), strict=True
        )
    ]
    to = np.repeat(home * table.cp, rows) + np.concatenate([np.empty(0, np.int64), *of_row])
    return {
        counts: np.bincount(to, minlength=table.num_ranks).astype(np.int64),
        index: np.argsort(to, kind="stable"),
    }


class Awaited:
    """Where the placeholders of a kind stand in a dp rank's step, and which rank sends the row of each.

    media, token   the rank's of that kind in token order, and the first token of each
    """

    def __init__(self, name: str, table: Table, media: Ints, token: Ints) -> None:
        self._name, self._position = name, ragged(token, table.rows[media])
        self._sender = np.repeat(table.sender[media], table.rows[media])

    def between(self, first: int, last: int) -> Arrays:
        """Of the tokens [first, last), before the cp cut; `received` makes fields of it."""
        low, high = np.searchsorted(self._position, (first, last)).tolist()
        position, sender = self._position[low:high] - first, self._sender[low:high]
        return {f"{self._name}_position": position, f"{self._name}_sender": sender}


def received(name: str, whole: Arrays, index: Ints | None, total: int, num_ranks: int) -> Arrays:
    """Of a cp rank: where its placeholders stand, which of the rows that come is that of each, and how many
    come from each rank.

    whole   what `Awaited` says of a microbatch of `total` tokens, of which the rank has those at `index`;
            None: all of them
    """
    position, rows = whole[f"{name}_position"], np.arange(len(whole[f"{name}_position"]))
    if index is not None:
        row_of_token = np.full(total, -1, np.int64)
        row_of_token[position] = rows
        rows = row_of_token[index]
        position = np.flatnonzero(rows >= 0)
        rows = rows[position]
    sender = whole[f"{name}_sender"][rows]
    place = np.empty(len(rows), np.int64)
    place[np.lexsort((rows, sender))] = np.arange(len(rows))
    return {
        f"{name}_position": position,
        f"{name}_index": place,
        f"{name}_receive_counts": np.bincount(sender, minlength=num_ranks).astype(np.int64),
    }


def owners_of(
    bounds: dict[int, NDArray[np.int32]], cut: Callable[[NDArray[np.int32], int], Sequence[Any]], cp: int
) -> dict[int, NDArray[np.int64]]:
    """By sequence: the cp rank of each of its tokens, where its documents have `bounds`."""
    found = {}
    for sequence, inside in bounds.items():
        owner = np.empty(int(inside[-1]), np.int64)
        for rank, index in enumerate(cut(inside, cp)):
            owner[np.asarray(index, np.int64)] = rank
        found[sequence] = owner
    return found
