"""The trivial twin of a store: dictionaries behind a lock, gone with the process.

For tests and for roles that share one process; two processes that open `memory:` do not see each other.
It says in plain Python what `sqlite.py` says in SQL.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from dataloader_svc.clock import Clock, SystemClock
from dataloader_svc.errors import ConfigError, NotLeader, StoreConflict, StoreError
from dataloader_svc.store.base import STORES, Lease, Store, check_key


class MemoryStore:
    """See `base.Store`. Nothing survives `close`."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._logs: dict[str, dict[int, bytes]] = {}
        self._entries: dict[str, tuple[bytes, float | None]] = {}  # value, expires_at
        self._leases: dict[str, Lease] = {}
        self._last_token = 0
        self._closed = False

    def append(self, log: str, seq: int, record: bytes, *, fence: int | None) -> None:
        check_key(log)
        if seq < 0:
            raise ValueError(f"seq {seq}: need >= 0")
        with self._atomic():
            self._check_fence(fence)
            records = self._logs.setdefault(log, {})
            if seq in records:
                if records[seq] != record:
                    raise StoreConflict(f"log {log}: record {seq} exists with another content")
            elif records and seq != max(records) + 1:
                raise StoreConflict(f"log {log}: record {seq} does not follow the last, {max(records)}")
            else:
                records[seq] = bytes(record)

    def read(self, log: str, start: int, limit: int) -> list[tuple[int, bytes]]:
        check_key(log)
        with self._atomic():
            records = self._logs.get(log, {})
            return [(seq, records[seq]) for seq in sorted(records) if seq >= start][: max(limit, 0)]

    def last(self, log: str) -> tuple[int, bytes] | None:
        check_key(log)
        with self._atomic():
            records = self._logs.get(log)
            return (max(records), records[max(records)]) if records else None

    def truncate(self, log: str, before: int, *, fence: int | None) -> None:
        check_key(log)
        with self._atomic():
            self._check_fence(fence)
            records = self._logs.get(log, {})
            for seq in [seq for seq in records if seq < min(before, max(records))]:
                del records[seq]

    def remove(self, log: str, *, fence: int | None) -> None:
        check_key(log)
        with self._atomic():
            self._check_fence(fence)
            self._logs.pop(log, None)

    def get(self, key: str) -> bytes | None:
        check_key(key)
        with self._atomic():
            return self._value(key)

    def put(self, key: str, value: bytes, *, ttl_s: float | None = None) -> None:
        check_key(key)
        with self._atomic():
            self._entries[key] = (bytes(value), None if ttl_s is None else self._clock.wall() + ttl_s)

    def put_many(self, values: Mapping[str, bytes]) -> None:
        entries = {check_key(key): (bytes(value), None) for key, value in values.items()}
        with self._atomic():
            self._entries.update(entries)

    def compare_and_set(
        self, key: str, expected: bytes | None, value: bytes, *, fence: int | None = None
    ) -> bool:
        check_key(key)
        with self._atomic():
            self._check_fence(fence)
            if self._value(key) != expected:
                return False
            self._entries[key] = (bytes(value), None)
            return True

    def delete(self, key: str) -> None:
        check_key(key)
        with self._atomic():
            self._entries.pop(key, None)

    def items(self, prefix: str) -> dict[str, bytes]:
        with self._atomic():
            found = {key: self._value(key) for key in sorted(self._entries) if key.startswith(prefix)}
            return {key: value for key, value in found.items() if value is not None}

    def acquire(self, name: str, owner: str, ttl_s: float) -> Lease | None:
        check_key(name)
        with self._atomic():
            now = self._clock.wall()
            held = self._leases.get(name)
            if held is not None and held.owner != owner and held.expires_at > now:
                self._leases[name] = replace(held, expires_at=min(held.expires_at, now + ttl_s))
                return None
            self._last_token += 1
            lease = Lease(name, owner, self._last_token, ttl_s, now + ttl_s)
            self._leases[name] = lease
            return lease

    def renew(self, lease: Lease) -> Lease:
        with self._atomic():
            self._check_fence(lease.token)
            renewed = Lease(
                lease.name, lease.owner, lease.token, lease.ttl_s, self._clock.wall() + lease.ttl_s
            )
            self._leases[lease.name] = renewed
            return renewed

    def release(self, lease: Lease) -> None:
        with self._atomic():
            held = self._leases.get(lease.name)
            if held is not None and held.token == lease.token:
                del self._leases[lease.name]

    def close(self) -> None:
        self._closed = True

    @contextmanager
    def _atomic(self) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise StoreError("memory: the store is closed")
            yield

    def _value(self, key: str) -> bytes | None:
        value, expires_at = self._entries.get(key, (None, None))
        return value if expires_at is None or expires_at > self._clock.wall() else None

    def _check_fence(self, fence: int | None) -> None:
        if fence is not None and all(lease.token != fence for lease in self._leases.values()):
            raise NotLeader(f"lease token {fence} was overtaken or released: another process leads")


@STORES.register("memory")
def open_memory(rest: str, base_dir: Path, clock: Clock) -> Store:  # noqa: ARG001 - an Opener
    """`memory:`; a new, empty store each time."""
    if rest.strip("/"):
        raise ConfigError(f"store: 'memory:{rest}': a store in memory has no path; write 'memory:'")
    return MemoryStore(clock)
