"""Which repaired samples come in the next step: from requests, the state and fresh blocks. Pure.

A request names positions that were passed over, or delivered without loss (docs/decisions/0006). They are
put in line with what waits, a share of a step at a time, in the order of the requests; the state says how far
that is. Blocks are read again first: whoever holds one has what was bad. `core.py` owns the one
`Readmissions` of a planner; what may be asked for at all is decided by who writes the request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dataloader_svc.planner.pieces import BlockPieces, Pieces, SkippedRow
from dataloader_svc.planner.select import Needed, Rules
from dataloader_svc.planner.state import State
from dataloader_svc.planner.supply import Supply
from dataloader_svc.sample import BlockId, SampleId

STEP_SHARE = 16
"""At most one part in so many of a step is readmitted in one step, while sources give the rest."""

_READ_AT_ONCE = 8
"""Blocks that are read ahead of the samples that come next."""

_AGE = 1  # they have waited for longer than that; it brings them before what is drawn in the step


class Asked(NamedTuple):
    """The sample at `place` in a request; `block` of its epoch holds it."""

    place: int
    sample: SampleId
    block: int

    @property
    def block_id(self) -> BlockId:
        return BlockId(self.sample.source, self.sample.epoch, self.block)


@dataclass(frozen=True, slots=True)
class Request:
    """Readmit `samples`, from step `at_step` on. Places ascend, with gaps where one is no longer meant."""

    number: int
    at_step: int
    samples: tuple[Asked, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Admission:
    """state: with the pieces in line. readmitted: (source, epoch, position); skipped: those still bad."""

    state: State
    readmitted: tuple[tuple[int, int, int], ...] = ()
    skipped: tuple[tuple[int, int, SkippedRow], ...] = ()


class Readmissions:
    """The requests of a history, and which blocks have been read for them."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._number_of = {name: number for number, name in enumerate(rules.names)}
        self._requests: tuple[Request, ...] = ()
        self._blocks: dict[BlockId, int] = {}  # named by a request: the last such
        self._fresh: dict[BlockId, int] = {}  # read again since request number ... was known
        self._reading: dict[BlockId, int] = {}
        self._wanted: frozenset[BlockId] = frozenset()
        self._opened, self._below = -1, 0

    def begin(self) -> None:
        """Another history: its requests are told anew."""
        self._opened, self._below = -1, 0
        self.take(())

    def take(self, requests: tuple[Request, ...]) -> None:
        """These are all requests."""
        self._requests = requests
        self._wanted = frozenset()
        self._blocks = {}
        for request in requests:
            self._blocks |= dict.fromkeys((asked.block_id for asked in request.samples), request.number)
        self._fresh = {block: number for block, number in self._fresh.items() if block in self._blocks}

    def open(self, step: int, below: int) -> None:
        """A session begins at `step`: though the data has ended there, requests below `below` come."""
        self._opened, self._below = step, below

    def left(self, state: State) -> bool:
        """Whether the session that was opened last has anything to readmit at the end of the data."""
        return any(request.number < self._below for request, _ in self._unfinished(state))

    def last(self, state: State) -> int:
        """Number of the last request that `state` has not done, 0 where there is none."""
        return max((request.number for request, _ in self._unfinished(state)), default=0)

    def stale(self, block: BlockId) -> bool:
        """Whether a block must be read again before what is wanted of it can come."""
        return block in self._wanted

    def rereading(self, block: BlockId) -> None:
        """It is being read again, for all requests known now."""
        self._reading[block] = self._blocks[block]

    def read(self, block: BlockId) -> None:
        """It was read, again or for the first time."""
        if block in self._reading:
            self._fresh[block] = self._reading.pop(block)

    def held(self, state: State) -> set[BlockId]:
        """Blocks that must not be forgotten: `state` has not had all that is asked of them."""
        return {asked.block_id for _, samples in self._unfinished(state) for asked in samples}

    def admit(self, state: State, supplies: Mapping[str, Supply]) -> Admission | Needed:
        """What of the requests comes in the step `state.step`, or the blocks to be read again for that."""
        room = self._rules.size if state.ended else max(self._rules.size // STEP_SHARE, 1)
        by_samples = self._rules.num_samples is not None
        parts: list[Pieces] = []
        readmitted: list[tuple[int, int, int]] = []
        skipped: list[tuple[int, int, SkippedRow]] = []
        done, lacking = state.readmitted, set[BlockId]()
        for request, asked in self._now(state):
            if not lacking and not self._was_passed(state, asked.sample):
                done = (request.number, asked.place + 1)
                continue
            block = self._block(request, asked, supplies)
            if block is None:
                lacking.add(asked.block_id)
            if lacking:
                if len(lacking) == _READ_AT_ONCE:
                    break
                continue
            assert block is not None, "nothing is lacking"
            number, (_, epoch, position) = self._number_of[asked.sample.source], asked.sample
            pieces, bad = _found(block, position, number)
            size = 1 if by_samples else pieces.tokens
            if parts and size > room:
                break
            if bad is None:
                parts.append(pieces)
                room -= size
            else:
                skipped.append((number, epoch, bad))
            readmitted.append((number, epoch, position))
            done = (request.number, asked.place + 1)
        self._wanted = frozenset(lacking)
        if lacking:
            return Needed(tuple(sorted(lacking)))
        if done == state.readmitted:
            return Admission(state)
        waiting = Pieces.concat([state.waiting, *parts])
        age = np.concatenate([state.age, np.full(len(waiting) - len(state.age), _AGE, np.int64)])
        after = replace(state, waiting=waiting, age=age, readmitted=done)
        return Admission(after, tuple(readmitted), tuple(skipped))

    def _unfinished(self, state: State) -> Iterator[tuple[Request, tuple[Asked, ...]]]:
        number, done = state.readmitted
        for request in self._requests:
            first = done if request.number == number else 0
            samples = tuple(asked for asked in request.samples if asked.place >= first)
            if request.number >= number and samples:
                yield request, samples

    def _now(self, state: State) -> Iterator[tuple[Request, Asked]]:
        """The samples that may come in the step `state.step`, in order."""
        for request, samples in self._unfinished(state):
            begun = request.number == state.readmitted[0] and state.readmitted[1] > 0
            reopened = request.number < self._below and state.step >= self._opened
            if state.step < request.at_step or (state.ended and not (begun or reopened)):
                return
            for asked in samples:
                yield request, asked

    def _was_passed(self, state: State, sample: SampleId) -> bool:
        """Else it comes in its turn: the source was left out of the job for a while, and begins again."""
        source = state.sources.get(sample.source)
        return source is not None and (sample.epoch, sample.position) < (source.epoch, source.position)

    def _block(self, request: Request, asked: Asked, supplies: Mapping[str, Supply]) -> BlockPieces | None:
        if self._fresh.get(asked.block_id, -1) < request.number:
            return None
        supply = supplies.get(asked.sample.source)
        return None if supply is None else supply.blocks.get((asked.sample.epoch, asked.block))


def _found(block: BlockPieces, position: int, source: int) -> tuple[Pieces, SkippedRow | None]:
    """The pieces of a position, or why it has none."""
    first = int(np.searchsorted(block.position, position))
    if first < len(block.position) and block.position[first] == position:
        return block.run(first, first + 1, source), None
    (bad,) = block.skipped_between(position, position + 1)
    return Pieces.empty(), bad
