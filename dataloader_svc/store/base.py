"""What the job remembers when every process is dead: the interface of a store, and what is atomic in it.

Three things live here: *logs* (records numbered by step, added at the end, removed at the beginning: the plan
log), *entries* (key -> bytes, with a time to live where wanted: the registry of endpoints, quarantine,
pointers) and *leases* (who leads). A store knows nothing of what the bytes mean. It is called from any thread
and blocks: asyncio code wraps calls in `asyncio.to_thread`. Every call is one atomic act: it happened wholly
or not at all, also when the process is killed in its middle. After a StoreError that is neither StoreConflict
nor NotLeader, it *may* have happened; each call is safe to repeat with the same arguments.

To add a store, write a class with these methods in one file and register a function that opens it:
`@STORES.register("scheme")`. `dataloader_svc.testing.store` holds its exam. `memory.py` is the shortest one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dataloader_svc.clock import Clock
from dataloader_svc.registry import Registry

MAX_KEY_LENGTH = 512
LEAVE_S = 2.0
"""What whoever ends gives the store for a last word, such as giving a lease back: it may be away."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to act under `name`, until `expires_at` (wall clock) unless renewed.

    `token` is the fencing token: it grows with every `acquire` of any name, so no two leases share one.
    What is written with an overtaken token is refused; safety therefore never depends on clocks, only the
    time that a successor waits does.
    """

    name: str
    owner: str
    token: int
    ttl_s: float
    expires_at: float


class Store(Protocol):
    """A state store. Keys and names: 1 to 512 printable ASCII characters, else ValueError.

    `fence` is the token of a lease: the write is refused with NotLeader once that lease was taken by
    somebody else or released. An expired lease that nobody took still writes.
    """

    def append(self, log: str, seq: int, record: bytes, *, fence: int | None) -> None:
        """Add record number `seq` (>= 0) to a log; on return it survives the loss of power.

        `seq` must follow the last record; an empty log takes any. A record that is there with the same bytes
        is left alone (a retry). With other bytes, or where a record would be missing: StoreConflict, and
        nothing was written. The fence is checked first, in the same transaction.
        """
        ...

    def read(self, log: str, start: int, limit: int) -> list[tuple[int, bytes]]:
        """Up to `limit` records (seq, bytes) with seq >= `start`, ascending. StoreError: one is damaged."""
        ...

    def last(self, log: str) -> tuple[int, bytes] | None:
        """The record with the highest seq, or None where the log is empty."""
        ...

    def truncate(self, log: str, before: int, *, fence: int | None) -> None:
        """Remove the records with seq < `before`, but never the last one: what follows it is known by it.

        Room that this frees is used again; a file need not become smaller. Fine when repeated, and for a log
        that is empty or begins later. What was removed can't be appended again: StoreConflict.
        """
        ...

    def remove(self, log: str, *, fence: int | None) -> None:
        """Remove a whole log: one of that name begins anew. Fine when repeated, and where there is none."""
        ...

    def get(self, key: str) -> bytes | None:
        """The value, or None where there is none or it has expired."""
        ...

    def put(self, key: str, value: bytes, *, ttl_s: float | None = None) -> None:
        """Set a value, which vanishes after `ttl_s` seconds of wall clock; without it, it stays.

        One with a `ttl_s` need not survive the loss of power: its owner writes it again.
        """
        ...

    def put_many(self, values: Mapping[str, bytes]) -> None:
        """Set all of `values` at once, to stay: readers see all of them or none, and it costs one sync."""
        ...

    def compare_and_set(
        self, key: str, expected: bytes | None, value: bytes, *, fence: int | None = None
    ) -> bool:
        """Set the value if it is `expected` now (None: absent or expired); tell whether it was.

        It stays without time to live. A repeat after success finds `value` and gives False: compare with
        `get` to tell that from another's write.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove a value; fine where there is none."""
        ...

    def items(self, prefix: str) -> dict[str, bytes]:
        """All values whose key starts with `prefix` ("" = all), by key; expired ones are absent."""
        ...

    def acquire(self, name: str, owner: str, ttl_s: float) -> Lease | None:
        """Take a lease, or None while another owner holds it.

        The same owner gets it at once, with a new token: a restarted process does not wait for its own
        former life, and what that may still do is fenced off. So an owner names a role, not a process.
        Another waits for `ttl_s` at most, from when it first asks, whatever the clock says: it may have been
        set back since.
        """
        ...

    def renew(self, lease: Lease) -> Lease:
        """Extend to `ttl_s` from now, with the same token; NotLeader where it was taken or released."""
        ...

    def release(self, lease: Lease) -> None:
        """Give it back; fine where it is no longer held."""
        ...

    def close(self) -> None:
        """Let go of files and connections; fine when repeated. Every later call raises StoreError."""
        ...


Opener = Callable[[str, Path, Clock], Store]
"""(what stands behind `scheme:` in the URL, folder for relative paths, clock) -> store."""

STORES: Registry[Opener] = Registry("store", "dataloader_svc.stores")


def check_key(key: str) -> str:
    """`key` itself, or ValueError: ASCII keys sort alike in every store, and prefixes are plain ranges."""
    if not (0 < len(key) <= MAX_KEY_LENGTH and key.isascii() and key.isprintable()):
        raise ValueError(f"key {key!r}: need 1 to {MAX_KEY_LENGTH} printable ASCII characters")
    return key


def shown(url: str) -> str:
    """A store's URL as messages and logs may show it: without its password."""
    return re.sub(r"(?<=://)[^@/]*@", "***@", url)
