"""Asks loaders once a second how they are; those that are slow against their peers, or silent, are replaced.

`stragglers.py` decides. Who is named gets no more leases, and its own go to others; the engine, which reads
of it in the store, ends it and puts a shadow or a new process in its place (`engine/replacing.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from dataloader_client._pb import loader_service_pb2, planner_service_pb2
from dataloader_svc import faultpoint
from dataloader_svc.clock import Clock
from dataloader_svc.errors import DataloaderError, PeerError, StoreError
from dataloader_svc.planner.loaders import LoaderPool
from dataloader_svc.planner.stragglers import Answered, Known, Stragglers, Unanswered, Verdict, Work
from dataloader_svc.store.base import Store
from dataloader_svc.store.replaced_log import Replaced, add_replaced

log = logging.getLogger(__name__)

BEAT_S = 1.0
ANSWER_S = 1.0
"""For an answer; a question is asked again at the next beat."""


class LoaderWatch:
    """`run` is for as long as the planner runs. `step`: the next one to be planned, for the record."""

    def __init__(self, pool: LoaderPool, store: Store, clock: Clock, step: Callable[[], int]) -> None:
        self._pool, self._store, self._clock, self._step = pool, store, clock, step
        self._core = Stragglers()
        self._done: dict[str, int] = {}  # by address: pieces of work heard of
        self._names: Mapping[str, str] = {}
        self._unwritten: list[Replaced] = []
        self.replaced: list[Replaced] = []

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            began = self._clock.monotonic()
            await self._beat()
            await asyncio.sleep(max(BEAT_S - (self._clock.monotonic() - began), 0.0))

    async def _beat(self) -> None:
        try:
            self._names = await self._pool.refresh()
        except StoreError as error:  # away: the loaders are where they were
            log.debug("loaders: %s", error)
        self._core.apply(Known(self._names), self._clock.monotonic())
        self._done = {address: self._done.get(address, 0) for address in self._names}
        await asyncio.gather(*(self._ask(address) for address in self._names))
        verdict = self._core.judge(self._clock.monotonic())
        if verdict is not None:
            self._act(verdict)
        await self._write()

    async def _ask(self, address: str) -> None:
        try:
            status = await self._pool.status(address, timeout_s=ANSWER_S)
        except PeerError as error:
            log.debug("%s: %s", self._names[address], error)
            self._core.apply(Unanswered(address), self._clock.monotonic())
            return
        except DataloaderError as error:  # an answer, if not the one that was asked for
            log.warning("%s: %s", self._names[address], error)
            self._core.apply(Answered(address, ()), self._clock.monotonic())
            return
        done, under_way = self._works(address, status)
        self._core.apply(Answered(address, done, under_way), self._clock.monotonic())

    def _works(self, address: str, status: loader_service_pb2.LoaderStatus) -> tuple[list[Work], list[Work]]:
        """Pieces done since the answer before, as far as they are told, and works under way."""
        columns = (status.work, status.work_units, status.work_s, status.work_share_s)
        works = [Work(*row) for row in zip(*columns, strict=False)]
        listed = max(len(works) - status.works_under_way, 0)
        new = min(status.works_done - self._done[address], listed)
        self._done[address] = status.works_done
        return works[listed - new : listed], works[listed:]

    def _act(self, verdict: Verdict) -> None:
        log.warning(
            "planner: %s at %s is %s and is replaced: it %s",
            verdict.name,
            verdict.loader,
            verdict.kind,
            verdict.why,
        )
        self._pool.drain(verdict.loader)
        row = Replaced(
            verdict.name, verdict.loader, verdict.kind, verdict.why, self._step(), self._clock.wall()
        )
        self.replaced.append(row)
        self._unwritten.append(row)

    async def _write(self) -> None:
        """What could not be written, since the store was away, is written at a later beat."""
        try:
            while self._unwritten:
                faultpoint.point("planner.replaced_named")
                await asyncio.to_thread(add_replaced, self._store, self._unwritten[0])
                faultpoint.point("planner.replaced_written")
                self._unwritten.pop(0)
        except StoreError as error:
            log.warning("planner: can't ask for a new loader yet: %s", error)


def replaced_messages(rows: list[Replaced]) -> list[planner_service_pb2.Replaced]:
    """For `PlannerStatus`."""
    return [
        planner_service_pb2.Replaced(
            loader=row.loader, address=row.address, kind=row.kind, why=row.why, step=row.step, at=row.at
        )
        for row in rows
    ]
