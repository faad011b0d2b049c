"""Replaces loaders that the planner found slow or silent: it writes into the store, the engine reads there.

So the planner needs no line to the engine, and any engine can do it. An entry names a life by its address:
what was replaced already, or has died meanwhile, is left alone.
"""

from __future__ import annotations

import asyncio
import logging

from dataloader_svc.engine.base import REPLACE_GRACE_S, Engine
from dataloader_svc.errors import StoreError
from dataloader_svc.store.base import Store
from dataloader_svc.store.replaced_log import Replaced, replaced

log = logging.getLogger(__name__)

LOOK_S = 1.0


async def replace_slow(engine: Engine, store: Store) -> None:
    """Until cancelled. What is in the store from before is done with."""
    seen: set[Replaced] | None = None
    while True:
        try:
            rows = set(await asyncio.to_thread(replaced, store))
        except StoreError as error:  # away; who needs it says so
            log.debug("loaders to replace: %s", error)
        else:
            await asyncio.gather(*(_replace(engine, row) for row in rows - (rows if seen is None else seen)))
            seen = rows
        await asyncio.sleep(LOOK_S)


async def _replace(engine: Engine, row: Replaced) -> None:
    grace_s = 0.0 if row.kind == "silent" else REPLACE_GRACE_S
    if row.loader in engine.roles() and await engine.replace(row.loader, row.address, grace_s=grace_s):
        log.warning("%s was %s and is replaced: it %s", row.loader, row.kind, row.why)
