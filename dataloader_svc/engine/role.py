"""The `main` of a role process: builds the one service that it is told to, serves it, and says where.

Started by `local.py` (or by a person: it prints its address). What the roles are is known here and nowhere
else in the engine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import sys
from pathlib import Path
from typing import Any, Protocol

from dataloader_client import methods
from dataloader_svc.clock import SystemClock
from dataloader_svc.engine.child import ChildContext, run_child
from dataloader_svc.engine.logfile import log_path
from dataloader_svc.engine.spec import JobSpec
from dataloader_svc.rpc.servicers import start_server
from dataloader_svc.rpc.status import RoleName
from dataloader_svc.store.base import Store
from dataloader_svc.store.open import open_store

log = logging.getLogger(__name__)

ENDPOINT_TTL_S = 15.0  # how long a dead role's address is still handed out; calls to it fail at once
HEARTBEAT_S = 5.0
DRAIN_S = 2.0  # for answers in flight when a role stops

SERVICES = {"planner": methods.PLANNER, "loader": methods.LOADER, "constructor": methods.CONSTRUCTOR}


class Service(Protocol):
    """What every role's service is to its process."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


def build(role: str, index: int, spec: JobSpec, store: Store, log_file: Path | None = None) -> Service:
    """The service of a role. Imported where used: a planner pays for no decoder."""
    clock = SystemClock()
    if role == "planner":
        from dataloader_svc.planner.service import PlannerService

        return PlannerService(spec.config, store, clock, owner=spec.run_id, base_dir=spec.base_dir)
    if role == "loader":
        from dataloader_svc.loader.service import LoaderService

        return LoaderService(spec.config, spec.base_dir, index=index, clock=clock)
    from dataloader_svc.constructor.service import ConstructorService

    return ConstructorService(spec.config, store, clock, index=index, log_file=log_file)


async def run_role(role: str, index: int, spec: JobSpec, context: ChildContext) -> None:
    """Serve a role until it is asked to stop or its service fails."""
    store = await asyncio.to_thread(open_store, spec.store, spec.base_dir)
    written = log_path(spec.run_dir, f"{role}-{index}")
    log_file = written if written.exists() else None  # a person who starts a role sees what it says
    service = build(role, index, spec, store, log_file)
    try:
        if not await _started(service, context):
            return
        public = role == "constructor" and index == 0
        server, address = await start_server(
            {SERVICES[role]: service},
            spec.address if public else "127.0.0.1:0",
            role=RoleName(f"{role}-{index}", log_file),
        )
        gc.collect()
        gc.freeze()  # what was imported and opened stays: later collections need not look at it
        beat = asyncio.create_task(_heartbeat(store, f"endpoint/{role}/{index}", address))
        await _registered(store, role, index, address)
        context.ready(address)
        log.info("%s-%d serves at %s", role, index, address)
        try:
            await _until_stopped(service, beat, context)
        finally:
            beat.cancel()
            await server.stop(DRAIN_S)
    finally:
        await service.stop()
        await asyncio.to_thread(store.close)


async def _started(service: Service, context: ChildContext) -> bool:
    """Start it; False where the role was asked to stop meanwhile: an index may take minutes to make."""
    start = asyncio.create_task(service.start())
    stop = asyncio.create_task(context.stop_requested.wait())
    try:
        await asyncio.wait({start, stop}, return_when=asyncio.FIRST_COMPLETED)
        if not start.done():
            return False
        start.result()
        return True
    finally:
        for task in (start, stop):
            task.cancel()
        await asyncio.gather(start, stop, return_exceptions=True)


async def _until_stopped(service: Any, beat: asyncio.Task[None], context: ChildContext) -> None:
    """Wait for the request to stop; raise what the service's own `failed` future or the heartbeat raises."""
    stop = asyncio.create_task(context.stop_requested.wait())
    watched: set[asyncio.Future[Any]] = {stop, beat}
    failed = getattr(service, "failed", None)
    if failed is not None:
        watched.add(failed)
    done, _ = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    for future in done - {stop}:
        future.result()


async def _registered(store: Store, role: str, index: int, address: str) -> None:
    value = json.dumps({"address": address}).encode()
    await asyncio.to_thread(store.put, f"endpoint/{role}/{index}", value, ttl_s=ENDPOINT_TTL_S)


async def _heartbeat(store: Store, key: str, address: str) -> None:
    """Keep the role's address in the registry for as long as it lives, and take it out at the end."""
    value = json.dumps({"address": address}).encode()
    try:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await asyncio.to_thread(store.put, key, value, ttl_s=ENDPOINT_TTL_S)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):  # leaving: the entry expires by itself
            await asyncio.shield(asyncio.to_thread(store.delete, key))
        raise


def main() -> None:
    """Parse the command line that `local.role_argv` makes, and run."""
    parser = argparse.ArgumentParser(description="One process of a dataloader-svc job; started by `serve`.")
    parser.add_argument("--role", choices=sorted(SERVICES), required=True)
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--spec", type=Path, required=True, help="job.json that `serve` wrote")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    spec = JobSpec.read(args.spec)
    sys.exit(run_child(lambda context: run_role(args.role, args.index, spec, context)))


if __name__ == "__main__":
    main()
