"""Who is not let in gets a status before anything of his call is taken in, and learns nothing by it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dataloader_client import methods
from dataloader_client._pb import common_pb2, plan_pb2
from dataloader_client.credentials import Credentials
from dataloader_svc.errors import AccessDenied, ConfigError, Overloaded, PeerError, StateError
from dataloader_svc.rpc import servicers
from dataloader_svc.rpc.access import Access, Guard, Tokens
from dataloader_svc.rpc.servicers import start_server
from dataloader_svc.rpc.stubs import Peer

TOKEN, OTHER = "t" * 15 + "1", "t" * 15 + "2"
RIGHT = (("authorization", f"Bearer {TOKEN}"),)


class Planner:
    """Counts what reaches it; `Join` waits for `go`."""

    def __init__(self) -> None:
        self.joins = 0
        self.go = asyncio.Event()
        self.inside = asyncio.Event()
        self.left = asyncio.Event()

    async def join(self, request: plan_pb2.JoinRequest) -> plan_pb2.JoinResponse:
        self.joins += 1
        self.inside.set()
        try:
            await self.go.wait()
        finally:
            self.left.set()
        return plan_pb2.JoinResponse(job=request.job)

    async def plans(self, demands: AsyncIterator[Any]) -> AsyncIterator[plan_pb2.PlacedPlan]:
        async for demand in demands:
            yield plan_pb2.PlacedPlan(step=demand.up_to)

    async def status(self, _: common_pb2.Empty) -> common_pb2.Empty:
        return common_pb2.Empty()

    report = status


class FakeClock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now

    wall = monotonic


def guarded(**changes: Any) -> Access:
    limits = {name: changes.pop(name) for name in ("max_connections", "max_request") if name in changes}
    return Access(Guard(Tokens(TOKEN), **changes), **limits)


async def code_of(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), str(caught.value.details())


async def _refused(metadata: Any) -> None:
    planner = Planner()
    server, address = await start_server({methods.PLANNER: planner}, "127.0.0.1:0", access=guarded())
    async with grpc.aio.insecure_channel(address) as channel:
        for method in servicers.SERVICES[methods.PLANNER]:
            call = channel.unary_unary(method.path)(b"\xff" * 1000, metadata=metadata, timeout=60)
            code, text = await code_of(call)
            assert code is grpc.StatusCode.UNAUTHENTICATED
            assert TOKEN not in text
            assert OTHER not in text
    assert planner.joins == 0
    await server.stop(None)


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        (("authorization", ""),),
        (("authorization", TOKEN),),
        (("authorization", f"bearer {TOKEN}"),),
        (("authorization", f"Bearer {OTHER}"),),
        (("authorization", f"Bearer {TOKEN} "),),
        (("authorization", f"Bearer {TOKEN}x"),),
        (*RIGHT, *RIGHT),
        (*RIGHT, ("authorization", f"Bearer {OTHER}")),
        (("authorization-bin", TOKEN.encode()),),
    ],
)
def test_only_the_token_opens(metadata: Any) -> None:
    asyncio.run(_refused(metadata))


def test_the_refusal_does_not_wait_for_the_body() -> None:
    """A request that never comes, and one that is larger than any buffer."""

    async def scenario() -> None:
        server, address = await start_server({methods.PLANNER: Planner()}, "127.0.0.1:0", access=guarded())
        async with grpc.aio.insecure_channel(address) as channel:
            silent = channel.stream_stream(methods.PLANNER_JOIN.path)(timeout=60)
            assert await silent.code() is grpc.StatusCode.UNAUTHENTICATED
            huge = channel.unary_unary(methods.PLANNER_JOIN.path)(bytes(200 << 20), timeout=60)
            assert (await code_of(huge))[0] is grpc.StatusCode.UNAUTHENTICATED
        await server.stop(None)

    asyncio.run(scenario())


def test_a_role_that_is_refused_takes_its_peer_for_another() -> None:
    """It looks for one that answers, as when the address belongs to another service by now."""

    async def scenario() -> None:
        server, address = await start_server({methods.PLANNER: Planner()}, "127.0.0.1:0", access=guarded())
        async with Peer(address, "planner", Credentials(OTHER)) as peer:
            with pytest.raises(PeerError, match="UNAUTHENTICATED") as caught:
                await peer.call(methods.PLANNER_STATUS, common_pb2.Empty(), timeout_s=60)
            assert type(caught.value) is PeerError
        async with Peer(address, "planner", Credentials(TOKEN)) as peer:
            await peer.call(methods.PLANNER_STATUS, common_pb2.Empty(), timeout_s=60)
        await server.stop(None)

    asyncio.run(scenario())


def test_a_call_for_another_job_is_told_which_this_is() -> None:
    async def scenario() -> None:
        access = guarded(job="web")
        server, address = await start_server({methods.PLANNER: Planner()}, "127.0.0.1:0", access=access)
        async with grpc.aio.insecure_channel(address) as channel:
            status = channel.unary_unary(methods.PLANNER_STATUS.path)
            for job in ("web", ""):
                named = Credentials(TOKEN).metadata(job)
                await status(b"", metadata=named, timeout=60)
            code, text = await code_of(status(b"", metadata=Credentials(TOKEN).metadata("wéb"), timeout=60))
            assert code is grpc.StatusCode.FAILED_PRECONDITION
            assert text == "this service serves job 'web', not 'wéb': check the address"
            code, text = await code_of(status(b"", metadata=Credentials(OTHER).metadata("x"), timeout=60))
            assert code is grpc.StatusCode.UNAUTHENTICATED
            assert "web" not in text
        await server.stop(None)

    asyncio.run(scenario())


def test_calls_above_the_limit_are_told_to_come_again() -> None:
    async def scenario() -> None:
        planner = Planner()
        access = guarded(max_calls=2)
        server, address = await start_server({methods.PLANNER: planner}, "127.0.0.1:0", access=access)
        async with Peer(address, "planner", Credentials(TOKEN)) as peer:

            async def join() -> None:
                await peer.call(methods.PLANNER_JOIN, plan_pb2.JoinRequest(), timeout_s=60)

            first = [asyncio.create_task(join()) for _ in range(2)]
            while planner.joins < 2:
                await planner.inside.wait()
                planner.inside.clear()
            with pytest.raises(Overloaded, match=r"security\.max_calls"):
                await join()
            planner.go.set()
            await asyncio.gather(*first)
            await join()
        await server.stop(None)

    asyncio.run(scenario())


def test_callers_that_go_leave_nothing_behind() -> None:
    """However many have come and gone, there is room for one."""

    async def scenario() -> None:
        planner = Planner()
        access = guarded(max_calls=1)
        server, address = await start_server({methods.PLANNER: planner}, "127.0.0.1:0", access=access)
        async with grpc.aio.insecure_channel(address) as channel:
            for _ in range(20):
                call = channel.unary_unary(methods.PLANNER_JOIN.path)(b"", metadata=RIGHT, timeout=60)
                await planner.inside.wait()
                call.cancel()
                await planner.left.wait()
                planner.inside.clear()
                planner.left.clear()
            await channel.unary_unary(methods.PLANNER_STATUS.path)(b"", metadata=RIGHT, timeout=60)
        assert planner.joins == 20
        await server.stop(None)

    asyncio.run(scenario())


def test_connections_above_the_limit_are_closed() -> None:
    async def scenario() -> None:
        access = guarded(max_connections=2)
        server, address = await start_server({methods.PLANNER: Planner()}, "127.0.0.1:0", access=access)
        host, _, port = address.rpartition(":")
        held = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
        for reader, _ in held:
            await reader.read(1)  # the server's preface: the connection counts from then on
        further, writer = await asyncio.open_connection(host, int(port))
        assert await further.read() == b""
        for _, each in (*held, (further, writer)):
            each.close()
            await each.wait_closed()
        await server.stop(None)

    asyncio.run(scenario())


def test_a_request_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servicers, "REQUEST_S", 0.05)

    async def scenario() -> None:
        guard = Guard(Tokens(TOKEN), max_calls=1)
        server, address = await start_server(
            {methods.PLANNER: Planner()}, "127.0.0.1:0", access=Access(guard)
        )
        async with grpc.aio.insecure_channel(address) as channel:
            for method in servicers.SERVICES[methods.PLANNER]:
                call = channel.stream_stream(method.path)(metadata=RIGHT, timeout=30)
                assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                ended = channel.stream_stream(method.path)(metadata=RIGHT, timeout=30)
                await ended.done_writing()
                assert await ended.code() is grpc.StatusCode.INVALID_ARGUMENT
        await server.stop(None)

    asyncio.run(scenario())


def test_a_request_above_the_limit_is_not_taken_in() -> None:
    async def scenario() -> None:
        access = guarded(max_request=1000)
        server, address = await start_server({methods.PLANNER: Planner()}, "127.0.0.1:0", access=access)
        async with grpc.aio.insecure_channel(address) as channel:
            status = channel.unary_unary(methods.PLANNER_STATUS.path)
            code, text = await code_of(status(bytes(2000), metadata=RIGHT, timeout=60))
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "2000 vs. 1000" in text
            head = (("x-long", "x" * 20_000), *RIGHT)
            code, _ = await code_of(status(b"", metadata=head, timeout=60))
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        await server.stop(None)

    asyncio.run(scenario())


def test_tokens_of_a_file_change_while_it_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, clock = tmp_path / "tokens", FakeClock()
    file.write_text(f"# of the cluster\n\n {TOKEN} \n")
    tokens = Tokens(file=file, clock=clock)
    allowed = lambda token: tokens.allow(f"Bearer {token}")  # noqa: E731
    assert (allowed(TOKEN), allowed(OTHER)) == (True, False)
    file.write_text(f"{OTHER}\n{TOKEN}\n")
    assert not allowed(OTHER), "looked at once a second"
    clock.now = 1.5
    assert (allowed(TOKEN), allowed(OTHER)) == (True, True)
    file.write_text(f"{OTHER}\n")
    clock.now = 3
    assert (allowed(TOKEN), allowed(OTHER)) == (False, True)
    for text in ("", "short\n", f"{OTHER}\n{TOKEN} more\n"):
        file.write_text(text)
        clock.now += 2
        assert (allowed(TOKEN), allowed(OTHER)) == (False, True)
    file.unlink()
    clock.now += 2
    assert allowed(OTHER)
    assert caplog.text.count("are still accepted") == 4
    assert TOKEN not in caplog.text


@pytest.mark.parametrize("text", [None, "", "# only words\n", "short", f"{TOKEN} {OTHER}"])
def test_a_file_without_tokens_is_refused_at_start(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "tokens"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=f"token file {file}") as caught:
        Tokens(file=file)
    assert TOKEN not in str(caught.value)


def test_who_tries_many_tokens_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    guard = Guard(Tokens(TOKEN), clock=clock)
    wrong = [("authorization", f"Bearer {OTHER}")]
    with caplog.at_level(logging.WARNING):
        for number in range(1000):
            clock.now = number * 0.05
            with pytest.raises(AccessDenied), guard.call(wrong, lambda: "ipv4:10.0.0.7:1"):
                pytest.fail("it was let in")
    assert len(caplog.records) == 5
    assert sum(int(record.args[0]) for record in caplog.records) <= 1000  # type: ignore[index, arg-type]
    assert "10.0.0.7" in caplog.text
    assert OTHER not in caplog.text


def test_a_guard_lets_go_of_what_failed() -> None:
    guard = Guard(max_calls=1, job="a")
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), guard.call([], str):
            raise ZeroDivisionError
        with pytest.raises(StateError), guard.call([("dataloader-job", "b")], str):
            pytest.fail("it was let in")
    with guard.call([], str), pytest.raises(Overloaded), guard.call([], str):
        pytest.fail("it was let in")
