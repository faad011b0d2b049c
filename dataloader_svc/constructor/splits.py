"""The parts of a job in one process, at one address: each request goes to the service of its split.

Training and evaluation have a planner each, and so sessions of their own that are numbered alike; a request
says which it means. Knows nothing of what they deliver.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping

from dataloader_client._pb import common_pb2, constructor_service_pb2, plan_pb2
from dataloader_client.wire import Frame
from dataloader_svc.constructor.service import ConstructorService
from dataloader_svc.errors import ConfigError
from dataloader_svc.registry import nearest

TRAINING = ""

_SUMMED = (
    "held_bytes",
    "limit_bytes",
    "shared_limit_bytes",
    "lent_bytes",
    "leases",
    "lent_total",
    "silent_ranks",
)


class Splits:
    """Handler of ConstructorService. `services` by split; that of TRAINING is there."""

    def __init__(self, services: Mapping[str, ConstructorService]) -> None:
        self._services = services
        self.control = services[TRAINING].control

    async def start(self) -> None:
        for service in self._services.values():
            await service.start()

    async def stop(self) -> None:
        for service in self._services.values():
            await service.stop()

    def _of(self, split: str) -> ConstructorService:
        service = self._services.get(split)
        if service is None:
            raise ConfigError(self._lacks(split))
        return service

    def _lacks(self, split: str) -> str:
        known = [name for name in self._services if name != TRAINING]
        if not known:
            return f"this job has no split {split!r}: its configuration says nothing under `evaluation:`"
        return f"this job has no split {split!r}; besides training: {', '.join(known)}{nearest(split, known)}"

    async def join(self, request: plan_pb2.JoinRequest) -> plan_pb2.JoinResponse:
        """The answer names the split, so that a client knows that the service knows of splits."""
        response = await self._of(request.split).join(request)
        response.split = request.split
        return response

    def read(self, request: constructor_service_pb2.ReadRequest) -> AsyncGenerator[Frame]:
        """A frame of that split's session."""
        return self._of(request.split).read(request)

    async def leave(self, request: constructor_service_pb2.LeaveRequest) -> common_pb2.Empty:
        """A rank reads no more of that split."""
        return await self._of(request.split).leave(request)

    async def report(
        self, request: constructor_service_pb2.ReportRequest
    ) -> constructor_service_pb2.ReportResponse:
        """What a rank measured in a step of that split."""
        return await self._of(request.split).report(request)

    async def status(self, request: common_pb2.Empty) -> constructor_service_pb2.ConstructorStatus:
        """Of training, with the memory of all."""
        total, *others = [await service.status(request) for service in self._services.values()]
        for status in others:
            for name in _SUMMED:
                setattr(total, name, getattr(total, name) + getattr(status, name))
        return total
