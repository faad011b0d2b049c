"""What people and trainers ask of the job as a whole, passed on to the planner: ControlService at the address
that they know.
"""

from __future__ import annotations

from dataloader_client import methods
from dataloader_client._pb import common_pb2, control_service_pb2
from dataloader_svc.constructor.losses import Losses
from dataloader_svc.constructor.peers import Peers

TIMEOUT_S = 30.0
"""Of a question to the planner; whoever asked asks again."""


class Control:
    """Handler of ControlService in a constructor. `peers` are its service's; `stop` ends what it started."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._losses = Losses(peers)

    async def stop(self) -> None:
        await self._losses.stop()

    async def set_mixture(
        self, request: control_service_pb2.MixtureChange
    ) -> control_service_pb2.MixtureChange:
        planner = await self._peers.planner()
        return await planner.call(methods.SET_MIXTURE, request, timeout_s=TIMEOUT_S)

    async def commit(self, request: control_service_pb2.CommitRequest) -> control_service_pb2.CommitResponse:
        planner = await self._peers.planner()
        return await planner.call(methods.COMMIT, request, timeout_s=TIMEOUT_S)

    async def report_losses(
        self, request: control_service_pb2.LossesRequest
    ) -> control_service_pb2.LossesResponse:
        return await self._losses.report(request)

    async def show_mixture(self, request: common_pb2.Empty) -> control_service_pb2.MixtureStatus:
        planner = await self._peers.planner()
        return await planner.call(methods.SHOW_MIXTURE, request, timeout_s=TIMEOUT_S)
