"""What should not be, of samples that are delivered all the same: entries under a prefix of any store.

Written when the planner hears of a block, so it may name samples that no step has drawn yet. A view for
people: nothing is decided by it. The entries look like those of the quarantine; `reason` is the kind.
"""

from __future__ import annotations

from collections.abc import Iterable

from dataloader_svc.store.base import Store
from dataloader_svc.store.quarantine_log import Quarantined, read_rows, write_rows

PREFIX = "incidents/"


def add_incidents(store: Store, rows: Iterable[Quarantined]) -> None:
    """Write `rows` in one transaction. Idempotent by sample; the last one given stays."""
    write_rows(store, PREFIX, rows)


def incidents(store: Store, source: str | None = None) -> list[Quarantined]:
    """All incidents, or those of one source, ordered by (source, epoch, position)."""
    return read_rows(store, PREFIX, source)
