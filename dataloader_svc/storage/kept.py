"""Parsed parts of files that are dear to parse again, such as parquet footers, within one memory limit.

One per `Storage`, so that all sources of a process share the limit: a limit for each of 306 sources would be
none. Knows nothing of what is kept but its cost.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, NamedTuple, TypeVar

Version = TypeVar("Version")


class _Entry(NamedTuple, Generic[Version]):
    version: Version
    value: object
    cost: int


class KeptParts(Generic[Version]):
    """The parts last used, by name and by the version of the file they were made from.

    Safe to call from several threads. `limit`: bytes over all parts; a larger part is not kept.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._entries: OrderedDict[str, _Entry[Version]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: str, version: Version) -> object | None:
        """What is kept under the name, if it was made from this version."""
        with self._lock:
            entry = self._entries.get(name)
            if entry is None or entry.version != version:
                return None
            self._entries.move_to_end(name)
            return entry.value

    def keep(self, name: str, version: Version, value: object, cost: int) -> None:
        """Keep a part of `cost` bytes, and drop those least recently used beyond the limit."""
        with self._lock:
            before = self._entries.pop(name, None)
            self.held -= before.cost if before else 0
            if cost > self.limit:
                return
            self.held += cost
            self._entries[name] = _Entry(version, value, cost)
            while self.held > self.limit:
                self.held -= self._entries.popitem(last=False)[1].cost

    def __contains__(self, name: str) -> bool:
        with self._lock:
            return name in self._entries
