"""What a sample is called and what is known of it: data only, no I/O.

`SampleId` names a sample for ever; `ProbeColumns` is what the planner sees of one block of samples, as
columns; `Piece` is a token range of a document that the planner places. Randomness that belongs to a
sample or an order comes from `keyed_rng`, never from a generator that somebody else also draws from.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class SampleId(NamedTuple):
    """`position` indexes the order of (`source`, `epoch`): the name of a sample for the life of a job."""

    source: str
    epoch: int
    position: int

    def __str__(self) -> str:
        return f"{self.source}/{self.epoch}/{self.position}"


class BlockId(NamedTuple):
    """A run of consecutive positions of an order: the lease of a loader, the unit of memory and recovery."""

    source: str
    epoch: int
    block: int

    def __str__(self) -> str:
        return f"{self.source}/{self.epoch}#{self.block}"


class Listing(NamedTuple):
    """The shards that an epoch of a source is made of: the first of its list, whose index has `digest`.

    Without a digest: all that there are.
    """

    shards: int = 0
    digest: str = ""


ALL_SHARDS = Listing()


class RowRef(NamedTuple):
    """Where a sample lies: shard path as listed, and row (or sample number) inside it."""

    shard: str
    row: int

    def __str__(self) -> str:
        return f"{self.shard}:{self.row}"


@dataclass(frozen=True, slots=True)
class BadRow:
    """A sample that was skipped, for the quarantine log. `reason` is an `errors.Reason`."""

    position: int
    row: RowRef
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Incident:
    """Something about a sample that should not be, though the sample is delivered. `kind` is a word."""

    position: int
    row: RowRef
    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class ProbeColumns:
    """What is known of the n samples of a block before any of them is decoded.

    Row i is position `start + i`. A sample whose `tokens` is 0 is bad and stands in `bad`.

    tokens          int32 (n,)   document length with media placeholders, bos and eos; 0 = bad
    patches         int32 (n,)   encoder patches over all media of the sample
    frames          int32 (n,)   mel frames over all its sound
    num_bytes       int64 (n,)   encoded size held by the loader
    media_offsets   int32 (n+1,) ragged index into the four below; a long clip of sound is several media
    media_start     int32 (m,)   first token of the medium's placeholder span, in the document
    media_tokens    int32 (m,)   length of the span: never cut
    media_patches   int32 (m,)   patches of the medium
    media_frames    int32 (m,)   mel frames of the medium
    """

    block: BlockId
    start: int
    tokens: NDArray[np.int32]
    patches: NDArray[np.int32]
    frames: NDArray[np.int32]
    num_bytes: NDArray[np.int64]
    media_offsets: NDArray[np.int32]
    media_start: NDArray[np.int32]
    media_tokens: NDArray[np.int32]
    media_patches: NDArray[np.int32]
    media_frames: NDArray[np.int32]
    bad: tuple[BadRow, ...] = ()
    incidents: tuple[Incident, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def stop(self) -> int:
        """One past the last position."""
        return self.start + len(self.tokens)


def keyed_rng(seed: int, *key: str | int) -> np.random.Generator:
    """A generator that depends on (`seed`, `key`) alone, e.g. `keyed_rng(17, "order", "web", 0)`.

    Philox is counter-based and specified, so its stream is the same on every platform and numpy version.
    """
    name = "/".join(str(part) for part in (seed, *key))
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def keyed_share(share: float, positions: NDArray[np.int64], seed: int, *key: str | int) -> NDArray[np.bool_]:
    """Bool (n,): whether each position belongs to a `share` of all, drawn by (`seed`, `key`, position) alone.

    SplitMix64 (Steele, Lea, Flood 2014, OOPSLA) of the position, begun at a hash of the key.
    """
    name = "/".join(str(part) for part in (seed, *key))
    start = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    mixed = np.uint64(start) + (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    chosen: NDArray[np.bool_] = (mixed >> np.uint64(11)) * 2.0**-53 < share
    return chosen
