"""The state store: plan log, registry of endpoints, leases, quarantine. `base.py` says what is atomic."""

from dataloader_svc.store.base import STORES, Lease, Store
from dataloader_svc.store.memory import MemoryStore
from dataloader_svc.store.open import open_store
from dataloader_svc.store.quarantine_log import Quarantined, add_quarantine, quarantine
from dataloader_svc.store.redis import RedisStore
from dataloader_svc.store.sqlite import SqliteStore

__all__ = [
    "STORES",
    "Lease",
    "MemoryStore",
    "Quarantined",
    "RedisStore",
    "SqliteStore",
    "Store",
    "add_quarantine",
    "open_store",
    "quarantine",
]
