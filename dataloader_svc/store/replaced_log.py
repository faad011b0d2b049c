"""Loaders that the planner found slow or silent: entries of any store; the engine reads and replaces them.

Written without fence: an entry names one life of a loader by its address, so that one that comes late, or
twice, or from a planner that was overtaken, replaces nobody else. Entries stay, for people (`explain`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from dataloader_svc.store.base import Store

PREFIX = "replaced/"


@dataclass(frozen=True, slots=True)
class Replaced:
    """`loader-1` at `address`, found `kind` (slow, silent) at `at`, seconds since 1970, when `step` was to be
    planned next. `why`: in words, after the name.
    """

    loader: str
    address: str
    kind: str
    why: str
    step: int
    at: float


def add_replaced(store: Store, row: Replaced) -> None:
    """Idempotent by time and loader."""
    store.put(f"{PREFIX}{row.at:017.6f}/{row.loader}", json.dumps(asdict(row)).encode())


def replaced(store: Store) -> list[Replaced]:
    """All of them, oldest first."""
    return [Replaced(**json.loads(value)) for value in store.items(PREFIX).values()]
