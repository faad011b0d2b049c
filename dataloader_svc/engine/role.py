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
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

if __name__ == "__main__":
    gc.disable()  # see `importing.py`; `main` turns it on again

from dataloader_client import methods
from dataloader_svc import allocator
from dataloader_svc.clock import SystemClock
from dataloader_svc.config.evaluation import SPLIT, beside_evaluation, of_evaluation, with_evaluation
from dataloader_svc.engine.access import public_access, role_access, role_credentials
from dataloader_svc.engine.base import role_name
from dataloader_svc.engine.child import ChildContext, run_child
from dataloader_svc.engine.importing import uncollected
from dataloader_svc.engine.logfile import log_path
from dataloader_svc.engine.spec import JobSpec
from dataloader_svc.errors import StoreError, StoreUnreachable
from dataloader_svc.rpc.servicers import start_server
from dataloader_svc.rpc.status import RoleName
from dataloader_svc.rpc.stubs import Peer
from dataloader_svc.store.base import LEAVE_S, Store
from dataloader_svc.store.open import open_store
from dataloader_svc.store.split import SplitStore

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
    """The service of a role. Imported where used: a planner pays for no decoder.

    Loaders serve training and evaluation alike, constructors hold a service for each; the planner of
    evaluation is given the job of that, and the part of the store.
    """
    clock = SystemClock()
    connect = partial(Peer, credentials=role_credentials(spec))
    if role == "planner":
        from dataloader_svc.planner.service import PlannerService

        return PlannerService(
            spec.config, store, clock, owner=spec.run_id, base_dir=spec.base_dir, connect=connect
        )
    if role == "loader":
        from dataloader_svc.loader.service import LoaderService

        return LoaderService(with_evaluation(spec.config), spec.base_dir, index=index, clock=clock)
    from dataloader_svc.constructor.service import ConstructorService
    from dataloader_svc.constructor.splits import TRAINING, Splits

    parts = {TRAINING: (beside_evaluation(spec.config), store)}
    if spec.config.evaluation is not None:
        parts[SPLIT] = (of_evaluation(spec.config), SplitStore(store, SPLIT))
    services = {
        split: ConstructorService(config, held, clock, index=index, log_file=log_file, connect=connect)
        for split, (config, held) in parts.items()
    }
    return Splits(services)


def _handlers(role: str, service: Service) -> dict[str, object]:
    """What a role answers: its own service, and what is asked of the job as a whole."""
    control = getattr(service, "control", None)
    return {SERVICES[role]: service} | ({} if control is None else {methods.CONTROL: control})


async def run_role(
    role: str, index: int, spec: JobSpec, context: ChildContext, *, shadow: bool = False, split: str = ""
) -> None:
    """Serve a role until it is asked to stop or its service fails.

    A shadow does all but to say that it is there, until it is told whose place it takes. With a `split`, the
    job is that of evaluation, in its part of the store.
    """
    store = await _opened(spec, context)
    if store is None:
        return
    if split:
        spec, store = replace(spec, config=of_evaluation(spec.config)), SplitStore(store, split)
    name = role_name(role, index, shadow=shadow, split=split)
    written = log_path(spec.run_dir, name)
    log_file = written if written.exists() else None  # a person who starts a role sees what it says
    with uncollected():
        service = build(role, index, spec, store, log_file)
    try:
        if not await _done(service.start(), context):
            return
        public = role == "constructor" and index == 0
        called = RoleName(name, log_file)
        server, address = await start_server(
            _handlers(role, service),
            spec.address if public else "127.0.0.1:0",
            role=called,
            access=public_access(spec.config, spec.base_dir) if role == "constructor" else role_access(spec),
        )
        try:
            gc.collect()
            gc.freeze()  # what was imported and opened stays: later collections need not look at it
            allocator.give_back()  # of what opening took, a vocabulary parsed, say, most is gone
            if shadow:
                if not await _stood_by(service, store, f"endpoint/{role}-shadow/{index}", address, context):
                    return
                assert context.index is not None
                index, name = context.index, f"{role}-{context.index}"
                called.name, called.log = name, log_path(spec.run_dir, name)
            beat = asyncio.create_task(_heartbeat(store, f"endpoint/{role}/{index}", address))
            try:
                await _register(store, f"endpoint/{role}/{index}", address)
                context.ready(address)
                log.info("%s serves at %s", name, address)
                await _until_stopped(service, beat, context)
            finally:
                beat.cancel()
        finally:
            await server.stop(DRAIN_S)
    finally:
        await service.stop()
        await asyncio.to_thread(store.close)


async def _opened(spec: JobSpec, context: ChildContext) -> Store | None:
    """The store, waited for: the supervisor has opened it before. None: the role was asked to stop."""
    while not context.stop_requested.is_set():
        try:
            return await asyncio.to_thread(open_store, spec.store, spec.base_dir)
        except StoreUnreachable as error:
            log.warning("%s", error)
    return None


async def _stood_by(service: Any, store: Store, key: str, address: str, context: ChildContext) -> bool:
    """Open what can be opened and wait to be promoted; False where the shadow is asked to stop."""
    if not await _done(service.warm(), context):
        return False
    beat = asyncio.create_task(_heartbeat(store, key, address))
    await _register(store, key, address)
    context.ready(address)
    log.info("stands by at %s", address)
    try:
        return await _done(context.promoted.wait(), context)
    finally:
        beat.cancel()


async def _done(work: Coroutine[Any, Any, Any], context: ChildContext) -> bool:
    """Wait for it; False where the role was asked to stop meanwhile: an index may take minutes to make."""
    start = asyncio.create_task(work)
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


async def _register(store: Store, key: str, address: str) -> None:
    value = json.dumps({"address": address}).encode()
    await asyncio.to_thread(store.put, key, value, ttl_s=ENDPOINT_TTL_S)


async def _heartbeat(store: Store, key: str, address: str) -> None:
    """Keep the role's address in the registry for as long as it lives, and take it out at the end."""
    try:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            try:
                await _register(store, key, address)
            except StoreError as error:  # full, say: what it serves is as good as before
                log.warning("can't renew %s: %s", key, error)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):  # leaving: the entry expires by itself
            await asyncio.wait_for(asyncio.to_thread(store.delete, key), LEAVE_S)
        raise


def main() -> None:
    """Parse the command line that `local.role_argv` makes, and run."""
    parser = argparse.ArgumentParser(description="One process of a dataloader-svc job; started by `serve`.")
    parser.add_argument("--role", choices=sorted(SERVICES), required=True)
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--shadow", action="store_true", help="stand by until another loader dies")
    parser.add_argument("--split", choices=[SPLIT], default="", help="the job's evaluation, not its training")
    parser.add_argument("--spec", type=Path, required=True, help="job.json that `serve` wrote")
    gc.enable()
    args = parser.parse_args()
    if args.shadow and args.role != "loader":
        parser.error("only loaders have shadows: a planner and a constructor start in less than a second")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    spec = JobSpec.read(args.spec)
    role, index, how = args.role, args.index, {"shadow": args.shadow, "split": args.split}
    sys.exit(run_child(lambda context: run_role(role, index, spec, context, **how)))


if __name__ == "__main__":
    main()
