"""What of a source is at hand, and a reading head over it. Pure; nothing here decides what is drawn.

`Supply` holds the layouts of epochs and the probed blocks of one source. A `Cursor` walks over it in order of
position for one selection: it passes over bad samples and from epoch to epoch, and says what it lacks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.errors import DataError, Reason, SourceError
from dataloader_svc.planner.pieces import BlockPieces, Pieces, SkippedRow
from dataloader_svc.planner.state import SourceState
from dataloader_svc.sample import ALL_SHARDS, BlockId, Listing


@dataclass(frozen=True, slots=True)
class Epoch:
    """The layout of an epoch that must be known."""

    source: str
    epoch: int


Lack = BlockId | Epoch
"""What must be at hand before selection can go on."""

_MIN_WINDOW = 8

_NOT_BAD = frozenset({Reason.TOO_LONG, Reason.FILTERED})
"""Passed over because somebody asked for it: no sign of damaged data."""


@dataclass(frozen=True, slots=True)
class BadLimit:
    """A source stops the job when more than `fraction` of its samples are bad, once `minimum` were."""

    fraction: float
    minimum: int


@dataclass(slots=True)
class Supply:
    """What is at hand of a source.

    layouts   epoch -> int64 (num_blocks + 1,) position where each block begins
    listings  epoch -> the shards that it is made of, of the same epochs
    newest    the shards of epochs that the state has not begun, once one of them was described
    blocks    by (epoch, block)
    """

    source: str
    layouts: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    blocks: dict[tuple[int, int], BlockPieces] = field(default_factory=dict)
    listings: dict[int, Listing] = field(default_factory=dict)
    newest: Listing = ALL_SHARDS


class Cursor:
    """Reading head of one source, with a window of its coming samples, of which `at` is the next.

    sizes    what each counts in the mixture's unit; tokens; finish: its deadline, set by who draws
    due      target at which the window's first sample starts, in the mixture's unit
    exhausted   there is nothing left, and no next epoch
    """

    __slots__ = (
        "_bad",
        "_block",
        "_drawn",
        "_first",
        "_fresh",
        "_limit",
        "_repeat",
        "_supply",
        "_taken",
        "at",
        "due",
        "epoch",
        "exhausted",
        "finish",
        "position",
        "samples",
        "sizes",
        "skipped",
        "tokens",
        "total_tokens",
    )

    def __init__(self, supply: Supply, state: SourceState, limit: BadLimit, *, repeat: bool) -> None:
        self._supply, self._limit, self._repeat = supply, limit, repeat
        self.epoch, self.position = state.epoch, state.position
        self.samples, self.total_tokens = state.samples, state.tokens
        self._bad = Counter(state.bad)
        self._fresh = state.position == 0  # no usable sample of this epoch has been seen yet
        self._block: BlockPieces | None = None
        self._first = 0
        self._drawn = 0
        self._taken: list[tuple[BlockPieces, int, int]] = []
        self.skipped: list[tuple[int, SkippedRow]] = []
        self.sizes: list[int] = []
        self.tokens: list[int] = []
        self.finish: list[float] = []
        self.at = 0
        self.due = 0.0
        self.exhausted = False

    def begin(self, due: float) -> None:
        """Start a segment of the drawing, in which the next sample starts at the target `due`."""
        self._close_window()
        self.due, self._drawn = due, 0

    def drawn(self) -> int:
        """What was taken in this segment, in the mixture's unit."""
        return self._drawn + sum(self.sizes[: self.at])

    def fill(self, want_tokens: int, by_samples: bool) -> Lack | None:
        """A new window of some of the next samples, about `want_tokens`; or what it takes to have one."""
        self._close_window()
        found = self._seek()
        if found is not None or self.exhausted:
            return found
        block, first = self._block, self._first
        assert block is not None, "_seek stops at a block"
        last = int(np.searchsorted(block.ends, block.ends[first] + want_tokens, "right"))
        last = min(max(last, first + _MIN_WINDOW), len(block.position))
        self.tokens = np.diff(block.ends[first : last + 1]).tolist()
        self.sizes = [1] * len(self.tokens) if by_samples else self.tokens
        return None

    def _close_window(self) -> None:
        """Book what was taken of the window."""
        if self.at and self._block is not None:
            block, first, last = self._block, self._first, self._first + self.at
            self._taken.append((block, first, last))
            self.samples += self.at
            self.total_tokens += int(block.ends[last] - block.ends[first])
            size = sum(self.sizes[: self.at])
            self._drawn += size
            self.due += size
            self._move(block, int(block.position[last - 1]) + 1)
        self._block, self.at, self.sizes, self.tokens, self.finish = None, 0, [], [], []

    def _seek(self) -> Lack | None:
        """Go to the next usable sample."""
        while True:
            layout = self._supply.layouts.get(self.epoch)
            if layout is None:
                return Epoch(self._supply.source, self.epoch)
            rows = int(layout[-1])
            if self.position >= rows:
                if not self._next_epoch(rows):
                    self.exhausted = True
                    return None
                continue
            number = int(np.searchsorted(layout, self.position, "right")) - 1
            block = self._supply.blocks.get((self.epoch, number))
            if block is None:
                return BlockId(self._supply.source, self.epoch, number)
            first = int(np.searchsorted(block.position, self.position))
            if first < len(block.position):
                self._block, self._first, self._fresh = block, first, False
                return None
            self._move(block, block.stop)

    def _move(self, block: BlockPieces, position: int) -> None:
        """Consume up to `position`, counting what is passed over."""
        passed = block.skipped_between(self.position, position)
        self.position = position
        if passed:
            self.skipped += [(self.epoch, row) for row in passed]
            self._bad.update(row.reason for row in passed if row.reason not in _NOT_BAD)
            self._judge(passed)

    def _judge(self, passed: tuple[SkippedRow, ...]) -> None:
        bad, limit, name = self._bad.total(), self._limit, self._supply.source
        seen = self.samples + bad
        if bad < limit.minimum or bad <= limit.fraction * seen:
            return
        reason, count = self._bad.most_common(1)[0]
        example = next((row for row in passed if row.reason == reason), passed[-1])
        raise DataError(
            f"source {name!r}: {bad} of its first {seen} samples are bad, above max_bad_fraction "
            f"{limit.fraction}; most often {reason} ({count} times), e.g. {example.shard}:{example.row}"
            f"{': ' if example.detail else ''}{example.detail}. See `dataloader-svc quarantine`, mend the "
            f"data or the mapping, or raise sources.{name}.max_bad_fraction"
        )

    def _next_epoch(self, rows: int) -> bool:
        """Go there if there is one. SourceError: nothing in all of the source can be used."""
        if self._fresh if self._repeat else self.samples == 0:
            name = self._supply.source
            filtered = sum(row.reason == Reason.FILTERED for _, row in self.skipped)
            reasons = self._bad + Counter({Reason.FILTERED.value: filtered})
            worst = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common(3))
            raise SourceError(
                f"source {name!r}: none of its {rows} samples can be used"
                f"{f' ({worst})' if worst else ''}. See `dataloader-svc quarantine --source {name}`"
            )
        if not self._repeat:
            return False
        self.epoch, self.position, self._fresh = self.epoch + 1, 0, True
        return True

    def finished(self, number: int, before: SourceState, credit: float) -> tuple[Pieces, SourceState]:
        """Pieces taken, in order of position, with source `number`; the source's state after them."""
        self._close_window()
        pieces = Pieces.concat([block.run(first, last, number) for block, first, last in self._taken])
        after = replace(
            before.reached(self.epoch, self._supply.listings),
            position=self.position,
            samples=self.samples,
            tokens=self.total_tokens,
            credit=credit,
            bad=dict(self._bad),
        )
        return pieces, after
