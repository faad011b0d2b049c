"""Errors keep their class and text; frames and streams arrive whole; rubbish gets a status."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from dataloader_client import methods
from dataloader_client._pb import common_pb2, loader_service_pb2, plan_pb2, planner_service_pb2
from dataloader_client.wire import Frame
from dataloader_svc.errors import (
    DataloaderError,
    MeshError,
    Overloaded,
    PeerError,
    RoleFailed,
    SessionSuperseded,
    SourceError,
    StateError,
)
from dataloader_svc.rpc.servicers import start_server
from dataloader_svc.rpc.status import RoleName
from dataloader_svc.rpc.stubs import Peer


class Planner:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    async def join(self, request: plan_pb2.JoinRequest) -> plan_pb2.JoinResponse:
        if self.error:
            raise self.error
        return plan_pb2.JoinResponse(job=request.job.upper())

    async def plans(
        self, demands: AsyncIterator[planner_service_pb2.PlanDemand]
    ) -> AsyncIterator[plan_pb2.PlacedPlan]:
        async for demand in demands:
            if self.error and demand.up_to == 3:
                raise self.error
            yield plan_pb2.PlacedPlan(step=demand.up_to)

    async def status(self, _: common_pb2.Empty) -> planner_service_pb2.PlannerStatus:
        return planner_service_pb2.PlannerStatus(job="j")

    async def report(self, _: planner_service_pb2.StepTimes) -> common_pb2.Empty:
        return common_pb2.Empty()


class Loader:
    async def fetch(self, request: loader_service_pb2.FetchRequest) -> Frame:
        return Frame({"ids": np.arange(request.step, dtype=np.int32)}, {"read_s": 0.5})

    async def other(self, _: object) -> Frame:
        raise AssertionError("not called in these tests")

    describe = probe = release = status = other


async def _joins_with(error: DataloaderError) -> None:
    error.add_note("asked by rank 3")
    server, address = await start_server({methods.PLANNER: Planner(error)}, "127.0.0.1:0")
    async with Peer(address, "planner") as peer:
        with pytest.raises(type(error)) as caught:
            await peer.call(methods.PLANNER_JOIN, plan_pb2.JoinRequest(), timeout_s=60)
        assert type(caught.value) is type(error)
        assert str(error) in str(caught.value)
        assert "asked by rank 3" in str(caught.value)
    await server.stop(None)


@pytest.mark.parametrize(
    "error",
    [
        MeshError("8 sequences do not fit dp=3"),
        StateError("seed differs"),
        SourceError("web: no such file"),
        SessionSuperseded("join again"),
        Overloaded("1 GiB held"),
    ],
)
def test_an_error_arrives_as_itself(error: DataloaderError) -> None:
    asyncio.run(_joins_with(error))


def test_calls_frames_and_streams() -> None:
    async def scenario() -> None:
        services = {methods.PLANNER: Planner(SessionSuperseded("gone")), methods.LOADER: Loader()}
        services[methods.PLANNER].error = None
        server, address = await start_server(services, "127.0.0.1:0")
        async with Peer(address, "both") as peer:
            answer = await peer.call(methods.PLANNER_JOIN, plan_pb2.JoinRequest(job="web"), timeout_s=60)
            assert answer.job == "WEB"
            frame = await peer.fetch(
                methods.FETCH, loader_service_pb2.FetchRequest(step=700_000), timeout_s=10
            )
            assert np.array_equal(frame.arrays["ids"], np.arange(700_000))
            assert frame.meta == {"read_s": 0.5}

            async def demands() -> AsyncIterator[planner_service_pb2.PlanDemand]:
                for step in (1, 2, 3):
                    yield planner_service_pb2.PlanDemand(up_to=step)

            steps = [plan.step async for plan in peer.stream(methods.PLANS, demands())]
            assert steps == [1, 2, 3]

            services[methods.PLANNER].error = SessionSuperseded("gone")
            got = []
            with pytest.raises(SessionSuperseded, match="gone"):
                async for plan in peer.stream(methods.PLANS, demands()):
                    got.append(plan.step)
            assert got == [1, 2]
        await server.stop(None)

    asyncio.run(scenario())


def test_a_stream_whose_server_goes_leaves_no_task() -> None:
    """The reader hears of it while the requests wait for more; nothing goes on waiting after that."""

    async def scenario() -> None:
        server, address = await start_server({methods.PLANNER: Planner()}, "127.0.0.1:0")

        async def demands() -> AsyncIterator[planner_service_pb2.PlanDemand]:
            yield planner_service_pb2.PlanDemand(up_to=1)
            await asyncio.Event().wait()

        async with Peer(address, "planner") as peer:
            with pytest.raises(PeerError, match=f"planner at {address}"):
                async for plan in peer.stream(methods.PLANS, demands()):
                    assert plan.step == 1
                    await server.stop(None)
            assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


def test_requests_that_fail_end_the_stream() -> None:
    async def scenario() -> None:
        server, address = await start_server({methods.PLANNER: Planner()}, "127.0.0.1:0")

        async def demands() -> AsyncIterator[planner_service_pb2.PlanDemand]:
            yield planner_service_pb2.PlanDemand(up_to=1)
            raise ZeroDivisionError

        async with Peer(address, "planner") as peer:
            with pytest.raises(ZeroDivisionError):
                async for _ in peer.stream(methods.PLANS, demands()):
                    pass
        await server.stop(None)

    asyncio.run(scenario())


def test_what_is_not_ours_is_told_as_a_mistake_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        server, address = await start_server(
            {methods.PLANNER: Planner(ZeroDivisionError("x"))},
            "127.0.0.1:0",
            role=RoleName("planner-0", Path("/run/planner-0.log")),
        )
        async with Peer(address, "planner") as peer:
            said = (
                r"^planner-0 failed in Join: ZeroDivisionError: x\. "
                r".*its log, /run/planner-0\.log, has the traceback.*start the trainers again"
            )
            with pytest.raises(RoleFailed, match=said):
                await peer.call(methods.PLANNER_JOIN, plan_pb2.JoinRequest(), timeout_s=60)
        await server.stop(None)

    asyncio.run(scenario())
    assert "ZeroDivisionError" in caplog.text


def test_nobody_there() -> None:
    async def scenario() -> None:
        server, address = await start_server({methods.PLANNER: Planner()}, "127.0.0.1:0")
        await server.stop(None)
        async with Peer(address, "planner") as peer:
            with pytest.raises(PeerError, match=f"planner at {address}"):
                await peer.call(methods.PLANNER_STATUS, common_pb2.Empty(), timeout_s=60)

    asyncio.run(scenario())


def test_a_port_in_use_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        server, address = await start_server({methods.PLANNER: Planner()}, "127.0.0.1:0")
        with pytest.raises(DataloaderError, match=f"can't listen on {address}"):
            await start_server({methods.PLANNER: Planner()}, address)
        await server.stop(None)

    asyncio.run(scenario())


def test_bytes_that_are_no_request_get_a_status() -> None:
    async def scenario() -> None:
        server, address = await start_server({methods.PLANNER: Planner()}, "127.0.0.1:0")
        async with grpc.aio.insecure_channel(address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(methods.PLANNER_JOIN.path)(b"\xff\xff", timeout=60)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await server.stop(None)

    asyncio.run(scenario())
