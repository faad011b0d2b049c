"""The `store:` of a configuration -> an open store."""

from __future__ import annotations

from pathlib import Path

from dataloader_svc.clock import Clock, SystemClock
from dataloader_svc.errors import ConfigError
from dataloader_svc.store.base import STORES, Store, shown


def open_store(url: str, base_dir: Path, *, clock: Clock | None = None) -> Store:
    """Open, and create where it does not exist, the store that `url` names.

    `sqlite` is `base_dir/state.db`; `sqlite:///name.db` is relative to `base_dir`, `sqlite:////folder/name.db`
    absolute; `memory:` lives in this process alone. ConfigError: an unknown kind or a malformed URL.
    StoreError: it can't be opened, with file and remedy.
    """
    scheme, _, rest = url.partition(":")
    try:
        opener = STORES.get(scheme)
    except ConfigError as error:
        error.add_note(f"in store: {shown(url)!r}")
        raise
    return opener(rest, base_dir, clock or SystemClock())


def open_existing(url: str, base_dir: Path) -> Store | None:
    """The same for who only reads: None, and nothing is made, where there is no store yet."""
    scheme, _, rest = url.partition(":")
    if scheme == "sqlite" and rest.startswith("///") and not (base_dir / rest[3:]).exists():
        return None
    return open_store(url, base_dir)
