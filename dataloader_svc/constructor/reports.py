"""Step times of ranks on their way to the planner: many in one message, and one message on its way at a time.

What a trainer measured is of use, not of need: where the planner does not answer, or the times pile up, they
are dropped, and a trainer never hears of it.
"""

from __future__ import annotations

import asyncio
import logging

from dataloader_client import methods
from dataloader_client._pb import constructor_service_pb2, planner_service_pb2
from dataloader_svc.constructor.peers import Peers
from dataloader_svc.errors import DataloaderError

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
MOST = 65_536
"""Reports that may wait: some steps of the largest jobs, 4 MB."""


class Reports:
    """`add` what ranks say; it is sent by and by. Belongs to one event loop; `stop` ends what it started."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._waiting = planner_service_pb2.StepTimes()
        self._sending: asyncio.Task[None] | None = None
        self.dropped = 0

    def add(self, report: constructor_service_pb2.ReportRequest) -> None:
        """Take in one report. Those of a session that has been left make room for a newer one's."""
        waiting = self._waiting
        if report.session != waiting.session:
            if report.session < waiting.session:
                return
            waiting.Clear()
            waiting.session = report.session
        if len(waiting.step) >= MOST:
            self.dropped += 1
            return
        waiting.step.append(report.step)
        waiting.dp_rank.append(report.coords.dp)
        waiting.step_time.append(report.step_time)
        waiting.compute_time.append(report.compute_time)
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        """Until nothing waits: what comes while one message is on its way goes into the next."""
        try:
            while len(self._waiting.step):
                message, session = self._waiting, self._waiting.session
                self._waiting = planner_service_pb2.StepTimes(session=session)
                try:
                    planner = await self._peers.planner()
                    await planner.call(methods.PLANNER_REPORT, message, timeout_s=TIMEOUT_S)
                except DataloaderError as error:
                    self.dropped += len(message.step)
                    log.debug("%d step times did not reach the planner: %s", len(message.step), error)
        finally:
            self._sending = None

    async def stop(self) -> None:
        """Drop what waits."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
