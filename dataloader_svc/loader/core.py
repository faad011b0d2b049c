"""Which blocks a loader holds, what goes when memory is short, and what is refused. Pure: numbers and names.

A block comes in by `Wanted` (room is reserved by an estimate), `Read` (its true size) or `Failed`. It goes
when the planner has done with it, or when room is needed: then those not used for longest. Losing one that is
in use costs a second read, never data, so nothing protects a block.

Where all blocks in use don't fit, each would push out the one that is needed next. So one that isn't held is
read whole only where `worth_its_room`; else just the rows that are asked for are read, and not kept
(`ReadInPart`), and what is held stays.
`service.py` reads, keeps the blocks' contents and calls `apply` from one thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dataloader_svc.errors import Overloaded
from dataloader_svc.sample import BlockId


@dataclass(frozen=True, slots=True)
class Wanted:
    """A block that isn't held is about to be read; `num_bytes` is what it may take in memory."""

    block: BlockId
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Read:
    """It was read and takes `num_bytes`."""

    block: BlockId
    num_bytes: int


@dataclass(frozen=True, slots=True)
class ReadInPart:
    """Rows of a block that isn't held were read, and not kept; whole it would take `num_bytes`."""

    block: BlockId
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Failed:
    """It couldn't be read."""

    block: BlockId


@dataclass(frozen=True, slots=True)
class Used:
    """A held block was probed or fetched from."""

    block: BlockId


@dataclass(frozen=True, slots=True)
class Released:
    """The planner has done with it: no plan that is still in use names it. No error where it isn't held."""

    block: BlockId


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What is held of it is not what the files have now. No error where it isn't held."""

    block: BlockId


Event = Wanted | Read | ReadInPart | Failed | Used | Released | Forgotten


class _Block(NamedTuple):
    """num_bytes: in memory. used, before: how many uses of any block there had been when it was used last,
    and the time before that; 0: never.
    """

    num_bytes: int
    used: int = 0
    before: int = 0


_NEVER = _Block(0)


class BlockTable:
    """Blocks held and being read, in bytes. Changed by `apply` alone."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.reads = 0
        self.rereads = 0
        self._uses = 0
        self._held: dict[BlockId, _Block] = {}  # least recently used first
        self._reading: dict[BlockId, int] = {}  # bytes reserved
        self._lost: dict[BlockId, _Block] = {}  # in use and not held, until they are read again or released

    @property
    def held_bytes(self) -> int:
        """Bytes of the blocks held."""
        return sum(block.num_bytes for block in self._held.values())

    @property
    def held_blocks(self) -> int:
        """Blocks held."""
        return len(self._held)

    @property
    def leased_blocks(self) -> int:
        """Blocks that are in use, held or not."""
        return len(self._lost) + len(self._held)

    @property
    def leased_bytes(self) -> int:
        """Bytes of the blocks in use, held or not. With a lower limit, blocks are read again and again."""
        return self.held_bytes + sum(block.num_bytes for block in self._lost.values())

    def __contains__(self, block: BlockId) -> bool:
        return block in self._held

    def fits(self, num_bytes: int) -> bool:
        """Whether a `Wanted` of that size can be had now, beside the blocks being read."""
        return sum(self._reading.values()) + num_bytes <= self.limit_bytes

    def worth_its_room(self, block: BlockId, num_bytes: int) -> bool:
        """Whether a block that isn't held should be: there is room for it, or those that would have to go
        have not been used once while it was used twice.
        """
        excess = self._excess(num_bytes)
        before = self._lost.get(block, _NEVER).before
        for held in self._held.values():
            if excess <= 0:
                break
            if held.used > before:
                return False
            excess -= held.num_bytes
        return excess <= 0

    def apply(self, event: Event) -> tuple[BlockId, ...]:
        """Take an event in; the result names the blocks to drop, whose bytes no longer count.

        Raises Overloaded for a `Wanted` that doesn't fit beside the blocks being read: nothing has changed.
        """
        match event:
            case Wanted(block, num_bytes):
                return self._wanted(block, num_bytes)
            case Read(block, num_bytes):
                del self._reading[block]
                self._held[block] = self._used(_Block(num_bytes))
                return self._make_room(0)
            case ReadInPart(block, num_bytes):
                self.reads += 1
                self.rereads += block in self._lost
                self._lost[block] = self._used(self._lost.get(block, _Block(num_bytes)))
            case Failed(block):
                del self._reading[block]
            case Used(block):
                self._held[block] = self._used(self._held.pop(block))  # now the last to go
            case Released(block) | Forgotten(block):
                self._lost.pop(block, None)
                return () if self._held.pop(block, None) is None else (block,)
        return ()

    def _wanted(self, block: BlockId, num_bytes: int) -> tuple[BlockId, ...]:
        assert block not in self._held, f"{block} is held already"
        assert block not in self._reading, f"{block} is being read already"
        if not self.fits(num_bytes):
            busy = sum(self._reading.values())
            raise Overloaded(
                f"block {block} may take {num_bytes} bytes; {busy} of loader.memory {self.limit_bytes} "
                "are taken by blocks being read"
            )
        dropped = self._make_room(num_bytes)
        self._reading[block] = num_bytes
        self.reads += 1
        if block in self._lost:
            del self._lost[block]
            self.rereads += 1
        return dropped

    def _make_room(self, num_bytes: int) -> tuple[BlockId, ...]:
        """Drop blocks until `num_bytes` more fit beside the reserved ones, or none is left."""
        excess = self._excess(num_bytes)
        dropped = []
        while excess > 0 and self._held:
            block = next(iter(self._held))
            self._lost[block] = self._held.pop(block)
            excess -= self._lost[block].num_bytes
            dropped.append(block)
        return tuple(dropped)

    def _excess(self, num_bytes: int) -> int:
        """Bytes to drop for `num_bytes` more."""
        return self.held_bytes + sum(self._reading.values()) + num_bytes - self.limit_bytes

    def _used(self, block: _Block) -> _Block:
        self._uses += 1
        return _Block(block.num_bytes, self._uses, block.used)

    def validate(self) -> None:
        """What holds after every event."""
        assert self.held_bytes + sum(self._reading.values()) <= self.limit_bytes, "memory limit"
        assert not self._held.keys() & self._reading.keys(), "a block is held or being read"
        assert not self._held.keys() & self._lost.keys(), "a lost block is not held"
        assert self.rereads <= self.reads
