"""Which blocks a loader holds, what goes when memory is short, and what is refused. Pure: numbers and names.

A block comes in by `Wanted` (room is reserved by an estimate), `Read` (its true size) or `Failed`. It goes
when the planner has done with it, or when room is needed: then those not used for longest. Losing one that is
in use costs a second read, never data, so nothing protects a block.
`service.py` reads, keeps the blocks' contents and calls `apply` from one thread.
"""

from __future__ import annotations

from dataclasses import dataclass

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


Event = Wanted | Read | Failed | Used | Released | Forgotten


class BlockTable:
    """Blocks held and being read, in bytes. Changed by `apply` alone."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.reads = 0
        self.rereads = 0
        self._held: dict[BlockId, int] = {}  # bytes; least recently used first
        self._reading: dict[BlockId, int] = {}  # bytes reserved
        self._lost: dict[BlockId, int] = {}  # bytes of those dropped for room, until read again or released

    @property
    def held_bytes(self) -> int:
        """Bytes of the blocks held."""
        return sum(self._held.values())

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
        return self.held_bytes + sum(self._lost.values())

    def __contains__(self, block: BlockId) -> bool:
        return block in self._held

    def fits(self, num_bytes: int) -> bool:
        """Whether a `Wanted` of that size can be had now, beside the blocks being read."""
        return sum(self._reading.values()) + num_bytes <= self.limit_bytes

    def apply(self, event: Event) -> tuple[BlockId, ...]:
        """Take an event in; the result names the blocks to drop, whose bytes no longer count.

        Raises Overloaded for a `Wanted` that doesn't fit beside the blocks being read: nothing has changed.
        """
        match event:
            case Wanted(block, num_bytes):
                return self._wanted(block, num_bytes)
            case Read(block, num_bytes):
                del self._reading[block]
                self._held[block] = num_bytes
                return self._make_room(0)
            case Failed(block):
                del self._reading[block]
            case Used(block):
                self._held[block] = self._held.pop(block)  # now the last to go
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
        excess = self.held_bytes + sum(self._reading.values()) + num_bytes - self.limit_bytes
        dropped = []
        while excess > 0 and self._held:
            block = next(iter(self._held))
            self._lost[block] = self._held.pop(block)
            excess -= self._lost[block]
            dropped.append(block)
        return tuple(dropped)

    def validate(self) -> None:
        """What holds after every event."""
        assert self.held_bytes + sum(self._reading.values()) <= self.limit_bytes, "memory limit"
        assert not self._held.keys() & self._reading.keys(), "a block is held or being read"
        assert not self._held.keys() & self._lost.keys(), "a lost block is not held"
        assert self.rereads <= self.reads
