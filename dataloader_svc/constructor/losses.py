"""What ranks lost, on its way to the planner: of many ranks in one message, and one on its way at a time.

Unlike times (`reports.py`) it is answered only when the planner has it in the store: a rank keeps what is not
answered, and says it again. So nothing is kept here, and nothing is lost with this process.
"""

from __future__ import annotations

import asyncio

from dataloader_client import methods
from dataloader_client._pb.control_service_pb2 import LossesRequest, LossesResponse
from dataloader_svc.constructor.peers import Peers
from dataloader_svc.errors import Overloaded

TIMEOUT_S = 10.0
MOST = 16_384
"""Reports that may wait: some steps of the largest jobs."""


class Losses:
    """`report` what ranks say. Belongs to one event loop; `stop` ends what it started."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._waiting = LossesRequest()
        self._answer: asyncio.Future[LossesResponse] = asyncio.get_running_loop().create_future()
        self._sending: asyncio.Task[None] | None = None

    async def report(self, request: LossesRequest) -> LossesResponse:
        """The planner's answer to the message that these went with. Raises what it raised: say it again."""
        if not request.steps:
            return LossesResponse()
        if len(self._waiting.steps) + len(request.steps) > MOST:
            raise Overloaded(f"{len(self._waiting.steps)} reports of losses wait for the planner")
        self._waiting.steps.extend(request.steps)
        answer = self._answer
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        return await asyncio.shield(answer)

    async def _send(self) -> None:
        """Until nothing waits: what comes while one message is on its way goes into the next."""
        try:
            while self._waiting.steps:
                message, answer = self._waiting, self._answer
                self._waiting = LossesRequest()
                self._answer = asyncio.get_running_loop().create_future()
                try:
                    planner = await self._peers.planner()
                    found = await planner.call(methods.REPORT_LOSSES, message, timeout_s=TIMEOUT_S)
                    answer.set_result(found)
                except Exception as error:  # whatever it is, it is told to those who wait
                    answer.set_exception(error)
                    answer.exception()  # seen: they may have gone
        finally:
            self._sending = None

    async def stop(self) -> None:
        """Whoever waits is told by the end of its call."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
