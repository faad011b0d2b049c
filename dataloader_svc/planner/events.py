"""What the planner's core takes in and what it answers with: data only.

Events say what happened, actions what is to be done about it. `core.py` decides, `service.py` carries out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.errors import DataloaderError
from dataloader_svc.planner.change import Change
from dataloader_svc.planner.plan import Plan
from dataloader_svc.planner.readmit import Request
from dataloader_svc.planner.state import State
from dataloader_svc.sample import ALL_SHARDS, BlockId, Listing, ProbeColumns

# --- events: what happened ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Based:
    """Plan from `state` on. `used`: blocks that plans before it name, with the last such step.

    `files_changed`: what is known of the files is of others than there are now.
    """

    state: State
    used: Mapping[BlockId, int] = field(default_factory=dict)
    files_changed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Described:
    """An epoch of a source.

    block_starts   int64 (num_blocks + 1,) position where each block begins
    digest         of the source's index, of the `shards` that the epoch is made of
    """

    source: str
    epoch: int
    block_starts: NDArray[np.int64]
    digest: str
    shards: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Probed:
    """A leased block was read, of an epoch made of `listing`; its columns."""

    probe: ProbeColumns
    listing: Listing = ALL_SHARDS


@dataclass(frozen=True, slots=True)
class Demanded:
    """Plans are wanted up to step `up_to`; those of steps below `done_below` have been used."""

    up_to: int
    done_below: int


@dataclass(frozen=True, slots=True)
class Appended:
    """The plan of `step` is in the log."""

    step: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A loader says that the data can't be had. `what` was asked for in the core's `base`."""

    error: DataloaderError
    what: Describe | Lease | Reread
    base: int


@dataclass(frozen=True, slots=True)
class Requested:
    """All requests for readmission that this history knows, by number; done ones may be left out."""

    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Opened:
    """A session begins at `step`. Where the data has ended there, requests below number `below` move that."""

    step: int
    below: int


@dataclass(frozen=True, slots=True)
class Mixed:
    """All changes of the mixture that this history knows. One counts from the first step not in the log."""

    changes: tuple[Change, ...]


Event = Based | Described | Probed | Demanded | Appended | Failed | Requested | Opened | Mixed


# --- actions: what is to be done ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Describe:
    """Ask a loader for the layout of an epoch, made of `listing`; `grown`: or of more that begin so."""

    source: str
    epoch: int
    listing: Listing = field(default=ALL_SHARDS, compare=False)
    grown: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Lease:
    """Give the block to a loader, which reads and probes it; to another where that one goes: the answer comes
    once, as `Probed` or `Failed`, whoever lives and dies meanwhile. Its epoch is made of `listing`.
    """

    block: BlockId
    listing: Listing = field(default=ALL_SHARDS, compare=False)


@dataclass(frozen=True, slots=True)
class Reread:
    """As `Lease`, from the files as they are now: who holds the block or its source's index forgets it."""

    block: BlockId
    listing: Listing = field(default=ALL_SHARDS, compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class Append:
    """Write the plan to the log, then say `Appended`. Nobody may see it before."""

    plan: Plan


@dataclass(frozen=True, slots=True, eq=False)
class Publish:
    """The plan is in the log: send it to who asks."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Release:
    """No plan in use names the block any more."""

    block: BlockId


@dataclass(frozen=True, slots=True)
class EndOfData:
    """There is no step `step`, nor a later one. `last_batch: drop` leaves out so many tokens, of so many
    samples.
    """

    step: int
    left_tokens: int
    left_samples: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing more can be planned; who asks is told `error`."""

    error: DataloaderError


Action = Describe | Lease | Reread | Append | Publish | Release | EndOfData | Stop
