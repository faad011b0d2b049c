"""The plan of one step: what is appended to the log, and a bug wherever it would breach a cap. Pure.

`Plan` checks itself on construction, so no plan that breaks a contract can be written. It converts to and
from the bytes of a `PlanRecord`. Knows no mesh: `place.py` says where its sequences go.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from dataloader_client._pb import plan_pb2
from dataloader_svc.errors import StoreError
from dataloader_svc.planner.pieces import Pieces, SkippedRow
from dataloader_svc.planner.select import Selected
from dataloader_svc.planner.state import State
from dataloader_svc.sample import BlockId

VERSION = 1

_UINT_COLUMNS = ("source", "epoch", "position", "start", "length", "patches", "block", "frames", "media")
_OPTIONAL = ("frames", "media")
"""Not written where no piece has any."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """One step. Sequence i holds pieces [sequence_offsets[i], sequence_offsets[i+1]) of at most
    `sequence_length` tokens.

    sources   names that the column `pieces.source` indexes, sorted
    skipped   (source, epoch, row) passed over since the step before
    readmitted   (source, epoch, position) of repaired samples put in line; in `skipped` too: bad again
    state_json   the job's state after the step, as `state_dict()` gives it
    last      no step follows
    digest    of the set of pieces whatever their order: equal on every topology
    """

    step: int
    sources: tuple[str, ...]
    sequence_length: int
    sequence_offsets: NDArray[np.int64]
    pieces: Pieces
    skipped: tuple[tuple[int, int, SkippedRow], ...]
    state_json: str
    last: bool
    metrics: Mapping[str, float]
    readmitted: tuple[tuple[int, int, int], ...] = ()
    digest: bytes = field(init=False)

    def __post_init__(self) -> None:
        check_caps(self.pieces, self.sequence_offsets, self.sequence_length)
        object.__setattr__(self, "digest", digest(self.sources, self.pieces))

    @classmethod
    def of(cls, selected: Selected, sequence_length: int, *, last: bool) -> Self:
        """The plan of a selection. AssertionError: it would breach a contract, which is our mistake."""
        return cls(
            step=selected.step,
            sources=selected.state.names,
            sequence_length=sequence_length,
            sequence_offsets=selected.sequence_offsets,
            pieces=selected.pieces,
            skipped=selected.skipped,
            state_json=selected.state.to_json(),
            last=last,
            metrics=selected.metrics,
            readmitted=selected.readmitted,
        )

    @property
    def num_sequences(self) -> int:
        return len(self.sequence_offsets) - 1

    @property
    def state(self) -> State:
        """After the step."""
        return State.from_json(self.state_json)

    def blocks(self) -> set[BlockId]:
        """The blocks that its pieces lie in."""
        return blocks_of(self.sources, self.pieces)

    def to_message(self) -> plan_pb2.PlanRecord:
        """As it goes to the log and to constructors."""
        columns: dict[str, Any] = {name: getattr(self.pieces, name).tolist() for name in _UINT_COLUMNS}
        for name in _OPTIONAL:
            if not getattr(self.pieces, name).any():
                del columns[name]
        return plan_pb2.PlanRecord(
            version=VERSION,
            step=self.step,
            sources=self.sources,
            sequence_offsets=self.sequence_offsets.tolist(),
            skipped=[
                plan_pb2.Skipped(
                    source=source,
                    epoch=epoch,
                    position=row.position,
                    shard=row.shard,
                    row=row.row,
                    reason=row.reason,
                    detail=row.detail,
                )
                for source, epoch, row in self.skipped
            ],
            digest=self.digest,
            state_json=self.state_json,
            last=self.last,
            metrics=dict(self.metrics),
            readmitted=[
                plan_pb2.Readmitted(source=source, epoch=epoch, position=position)
                for source, epoch, position in self.readmitted
            ],
            **columns,
        )

    def to_bytes(self) -> bytes:
        """The same for the same plan: a repeated append is recognised by it."""
        return self.to_message().SerializeToString(deterministic=True)

    @classmethod
    def from_bytes(cls, data: bytes, sequence_length: int) -> Self:
        """The inverse. StoreError where the bytes are no record, or not of the set that its digest names."""
        record = plan_pb2.PlanRecord()
        try:
            record.ParseFromString(data)
        except DecodeError as error:
            raise StoreError(f"a record of the plan log can't be parsed: {error}") from None
        if record.version != VERSION:
            raise StoreError(
                f"a record of the plan log has version {record.version}; this service reads {VERSION}"
            )
        plan = cls(
            step=record.step,
            sources=tuple(record.sources),
            sequence_length=sequence_length,
            sequence_offsets=np.array(record.sequence_offsets, np.int64),
            pieces=Pieces(*(piece_column(record, name) for name in _UINT_COLUMNS)),
            skipped=tuple(
                (s.source, s.epoch, SkippedRow(s.position, s.shard, s.row, s.reason, s.detail))
                for s in record.skipped
            ),
            state_json=record.state_json,
            last=record.last,
            metrics=dict(record.metrics),
            readmitted=tuple((r.source, r.epoch, r.position) for r in record.readmitted),
        )
        if plan.digest != record.digest:
            raise StoreError(
                f"the plan of step {plan.step} is damaged: its pieces have digest {plan.digest.hex()}, the "
                f"record says {record.digest.hex()}"
            )
        return plan


def piece_column(record: plan_pb2.PlanRecord, name: str) -> NDArray[np.int64]:
    """A column of a record's pieces, int64 (n,)."""
    values = np.array(getattr(record, name), np.int64)
    return values if len(values) or name not in _OPTIONAL else np.zeros(len(record.source), np.int64)


def blocks_of(sources: tuple[str, ...], pieces: Pieces) -> set[BlockId]:
    """The blocks that `pieces` lie in."""
    order = np.lexsort((pieces.block, pieces.epoch, pieces.source))
    rows = np.stack([pieces.source, pieces.epoch, pieces.block], axis=1)[order]
    new = np.concatenate([[True], np.any(np.diff(rows, axis=0), axis=1)])[: len(rows)]
    return {BlockId(sources[source], epoch, block) for source, epoch, block in rows[new].tolist()}


def digest(sources: tuple[str, ...], pieces: Pieces) -> bytes:
    """16 bytes over the set of (source name, epoch, position, start, length), in no order."""
    used, index = np.unique(pieces.source, return_inverse=True)
    names = [sources[number] for number in used.tolist()]
    rank = np.argsort(np.argsort(names)) if names else np.empty(0, np.int64)
    rows = np.stack([rank[index], pieces.epoch, pieces.position, pieces.start, pieces.length])
    rows = rows[:, np.lexsort(rows[::-1])]
    hashed = hashlib.blake2b(json.dumps(sorted(names)).encode(), digest_size=16)
    hashed.update(np.ascontiguousarray(rows.T, "<i8").tobytes())
    return hashed.digest()


def check_caps(pieces: Pieces, offsets: NDArray[np.int64], sequence_length: int) -> None:
    """AssertionError where a sequence is too long, a piece is there twice or overlaps another."""
    assert offsets[0] == 0, "sequences begin at the first piece"
    assert offsets[-1] == len(pieces), "every piece is in a sequence"
    assert (np.diff(offsets) >= 0).all(), "sequences follow each other"
    assert len(pieces) == 0 or pieces.length.min() > 0, "no piece is empty"
    ends = np.concatenate([[0], np.cumsum(pieces.length)])
    tokens = ends[offsets[1:]] - ends[offsets[:-1]]
    worst = int(tokens.max(initial=0))
    assert worst <= sequence_length, f"a sequence of {worst} tokens, cap {sequence_length}"
    order = np.lexsort((pieces.start, pieces.position, pieces.epoch, pieces.source))
    same = np.ones(max(len(order) - 1, 0), np.bool_)
    for column in (pieces.source, pieces.epoch, pieces.position):
        same &= np.diff(column[order]) == 0
    overlap = same & (pieces.start[order][1:] < (pieces.start + pieces.length)[order][:-1])
    assert not overlap.any(), "a token of a document is planned twice"
