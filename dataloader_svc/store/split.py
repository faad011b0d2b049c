"""A part of a job, in the job's store: logs, entries and leases of its own, and the same processes.

Whoever is given a `SplitStore` for its store needs to know nothing of the rest of the job: all names get a
prefix. The registry of processes alone is the job's, but for the planner, of which each part has its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dataloader_svc.store.base import Lease, Store, check_key

_REGISTRY, _PLANNERS = "endpoint/", "endpoint/planner/"


class SplitStore:
    """See `base.Store`. `close` closes the job's store."""

    def __init__(self, store: Store, split: str) -> None:
        self._store = store
        self._prefix = f"{split}/"

    def _own(self, name: str) -> str:
        """As the job's store has it."""
        check_key(name)
        shared = name.startswith(_REGISTRY) and not name.startswith(_PLANNERS)
        return name if shared else self._prefix + name

    def _lease(self, lease: Lease) -> Lease:
        return replace(lease, name=self._prefix + lease.name)

    def append(self, log: str, seq: int, record: bytes, *, fence: int | None) -> None:
        self._store.append(self._own(log), seq, record, fence=fence)

    def read(self, log: str, start: int, limit: int) -> list[tuple[int, bytes]]:
        return self._store.read(self._own(log), start, limit)

    def last(self, log: str) -> tuple[int, bytes] | None:
        return self._store.last(self._own(log))

    def truncate(self, log: str, before: int, *, fence: int | None) -> None:
        self._store.truncate(self._own(log), before, fence=fence)

    def remove(self, log: str, *, fence: int | None) -> None:
        self._store.remove(self._own(log), fence=fence)

    def get(self, key: str) -> bytes | None:
        return self._store.get(self._own(key))

    def put(self, key: str, value: bytes, *, ttl_s: float | None = None) -> None:
        self._store.put(self._own(key), value, ttl_s=ttl_s)

    def put_many(self, values: Mapping[str, bytes]) -> None:
        self._store.put_many({self._own(key): value for key, value in values.items()})

    def compare_and_set(
        self, key: str, expected: bytes | None, value: bytes, *, fence: int | None = None
    ) -> bool:
        return self._store.compare_and_set(self._own(key), expected, value, fence=fence)

    def delete(self, key: str) -> None:
        self._store.delete(self._own(key))

    def items(self, prefix: str) -> dict[str, bytes]:
        own = self._store.items(self._prefix + prefix).items()
        found = {key.removeprefix(self._prefix): value for key, value in own}
        if _REGISTRY.startswith(prefix) or prefix.startswith(_REGISTRY):
            registry = self._store.items(max(prefix, _REGISTRY, key=len)).items()
            found |= {key: value for key, value in registry if not key.startswith(_PLANNERS)}
        return dict(sorted(found.items()))

    def acquire(self, name: str, owner: str, ttl_s: float) -> Lease | None:
        check_key(name)
        lease = self._store.acquire(self._prefix + name, owner, ttl_s)
        return None if lease is None else replace(lease, name=name)

    def renew(self, lease: Lease) -> Lease:
        return replace(self._store.renew(self._lease(lease)), name=lease.name)

    def release(self, lease: Lease) -> None:
        self._store.release(self._lease(lease))

    def close(self) -> None:
        self._store.close()
