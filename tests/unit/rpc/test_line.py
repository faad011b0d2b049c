"""Calls over lines: the same answers and errors as over gRPC, and what happens to them when an end goes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataloader_client import line as messages
from dataloader_client import methods
from dataloader_client._pb import common_pb2, line_pb2, loader_service_pb2, plan_pb2, planner_service_pb2
from dataloader_client.credentials import TLS, Credentials
from dataloader_client.errors import WireError
from dataloader_client.line import (
    HEAD,
    MOST_INLINE,
    LineLost,
    Memory,
    Message,
    Receiver,
    connect,
    name_beside,
)
from dataloader_client.wire import Frame
from dataloader_svc.errors import Overloaded, PeerError
from dataloader_svc.rpc import line as line_module
from dataloader_svc.rpc.access import Access, Guard, ServerTls, Tokens
from dataloader_svc.rpc.line_server import IN_A_THREAD, SMALL, LineServer
from dataloader_svc.rpc.servicers import Server, start_server
from dataloader_svc.rpc.status import RoleName
from dataloader_svc.rpc.stubs import Peer

TOKEN = "t" * 32


class Planner:
    """Join echoes the job; a job called "wait" waits until `let_go`. Plans answers each demand."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.waiting = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.ended = asyncio.Event()  # of a stream

    async def join(self, request: plan_pb2.JoinRequest) -> plan_pb2.JoinResponse:
        if request.job == "wait":
            self.waiting.set()
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        return plan_pb2.JoinResponse(job=request.job, sources=list(request.state_json))

    async def plans(
        self, demands: AsyncIterator[planner_service_pb2.PlanDemand]
    ) -> AsyncIterator[plan_pb2.PlacedPlan]:
        try:
            async for demand in demands:
                yield plan_pb2.PlacedPlan(step=demand.up_to)
        finally:
            self.ended.set()

    async def status(self, _: common_pb2.Empty) -> planner_service_pb2.PlannerStatus:
        return planner_service_pb2.PlannerStatus(job="j")

    async def report(self, _: planner_service_pb2.StepTimes) -> common_pb2.Empty:
        return common_pb2.Empty()


class Loader:
    """Fetch answers with as many numbers as the step; Probe is an async generator."""

    def __init__(self) -> None:
        self.sent = 0

    async def fetch(self, request: loader_service_pb2.FetchRequest) -> Frame:
        names = {f"n{number}": number for number in range(request.max_bytes)}
        return Frame({"ids": np.arange(request.step, dtype=np.uint8)}, names)

    async def probe(self, _: loader_service_pb2.BlockRequest) -> AsyncIterator[Frame]:
        yield Frame({"ids": np.arange(5)}, {"end": True})
        self.sent += 1

    async def other(self, _: object) -> Frame:
        raise AssertionError("not called in these tests")

    describe = release = status = other


def run(scenario: Callable[[Planner, Loader, Server, str], Coroutine[Any, Any, None]], **access: Any) -> None:
    async def main() -> None:
        planner, loader = Planner(), Loader()
        services = {methods.PLANNER: planner, methods.LOADER: loader}
        given = {"access": Access(**access)} if access else {}
        server, address = await start_server(services, "127.0.0.1:0", **given)
        try:
            await scenario(planner, loader, server, address)
        finally:
            await server.stop(None)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


async def demand(*steps: int) -> AsyncIterator[planner_service_pb2.PlanDemand]:
    for step in steps:
        yield planner_service_pb2.PlanDemand(up_to=step)


async def raw(address: str) -> tuple[socket.socket, Receiver]:
    """A line by hand."""
    line = connect(name_beside(address))
    assert line is not None
    return line, Receiver(line, 1 << 20)


async def next_message(line: socket.socket, receiver: Receiver) -> Message:
    while True:
        try:
            return receiver.receive()
        except BlockingIOError:
            readable = asyncio.Event()
            asyncio.get_running_loop().add_reader(line, readable.set)
            await readable.wait()
            asyncio.get_running_loop().remove_reader(line)


def call(path: str, request: bytes = b"", **metadata: str) -> bytes:
    pairs = [line_pb2.LineMetadata(key=key, value=value) for key, value in metadata.items()]
    return line_pb2.LineCall(path=path, metadata=pairs, request=request).SerializeToString()


def test_calls_frames_and_streams_take_the_line_and_no_channel() -> None:
    async def scenario(_: Planner, loader: Loader, __: Server, address: str) -> None:
        async with Peer(address, "both") as peer:
            await peer._channel.close()  # nothing is left but the line
            answer = await peer.call(methods.PLANNER_JOIN, plan_pb2.JoinRequest(job="web"), timeout_s=10)
            assert answer.job == "web"
            for size in (0, 1, SMALL, SMALL + 1, MOST_INLINE + 1, IN_A_THREAD + 1):
                request = loader_service_pb2.FetchRequest(step=size)
                frame = await peer.fetch(methods.FETCH, request, timeout_s=10)
                assert np.array_equal(frame.arrays["ids"], np.arange(size, dtype=np.uint8))
            frame = await peer.fetch(methods.PROBE, loader_service_pb2.BlockRequest(), timeout_s=10)
            assert (frame.meta, loader.sent) == ({"end": True}, 1)
            steps = [plan.step async for plan in peer.stream(methods.PLANS, demand(1, 2, 3))]
            assert steps == [1, 2, 3]

    run(scenario)


def test_bodies_above_a_datagram_go_as_memory_also_beside_a_payload() -> None:
    async def scenario(_: Planner, __: Loader, ___: Server, address: str) -> None:
        async with Peer(address, "both") as peer:
            await peer._channel.close()
            text = "x" * (3 * MOST_INLINE)
            request = plan_pb2.JoinRequest(job="web", state_json=text)
            answer = await peer.call(methods.PLANNER_JOIN, request, timeout_s=10)
            assert "".join(answer.sources) == text
            for size in (0, SMALL, MOST_INLINE):
                request = loader_service_pb2.FetchRequest(step=size, max_bytes=10_000)
                frame = await peer.fetch(methods.FETCH, request, timeout_s=10)
                assert (len(frame.meta), frame.arrays["ids"].nbytes) == (10_000, size)

    run(scenario)


def test_a_request_above_the_limit_ends_the_line_and_none_after_it() -> None:
    async def scenario(_: Planner, __: Loader, ___: Server, address: str) -> None:
        async with Peer(address, "both") as peer:
            request = plan_pb2.JoinRequest(state_json="x" * (1 << 20))
            with pytest.raises(PeerError, match=f"both at {address}"):
                await peer.call(methods.PLANNER_JOIN, request, timeout_s=10)
            answer = await peer.call(methods.PLANNER_STATUS, common_pb2.Empty(), timeout_s=10)
            assert answer.job == "j"

    run(scenario, guard=Guard(), max_request=1 << 19)


def test_the_token_is_asked_for_at_each_call() -> None:
    async def scenario(_: Planner, __: Loader, ___: Server, address: str) -> None:
        async with Peer(address, "planner", Credentials(TOKEN)) as peer:
            await peer._channel.close()
            await peer.call(methods.PLANNER_STATUS, common_pb2.Empty(), timeout_s=10)
        async with Peer(address, "planner", Credentials("o" * 32)) as peer:
            await peer._channel.close()
            with pytest.raises(PeerError, match="UNAUTHENTICATED: the token is not this service's"):
                await peer.call(methods.PLANNER_STATUS, common_pb2.Empty(), timeout_s=10)
            with pytest.raises(PeerError, match="UNAUTHENTICATED"):
                await anext(peer.stream(methods.PLANS, demand(1)))

    run(scenario, guard=Guard(Tokens(TOKEN)))


def test_too_many_calls_are_refused_and_free_again_when_given_up() -> None:
    async def scenario(planner: Planner, _: Loader, __: Server, address: str) -> None:
        async with Peer(address, "planner") as peer:
            waiting = asyncio.create_task(
                peer.call(methods.PLANNER_JOIN, plan_pb2.JoinRequest(job="wait"), timeout_s=60)
            )
            await planner.waiting.wait()
            with pytest.raises(Overloaded):
                await peer.call(methods.PLANNER_STATUS, common_pb2.Empty(), timeout_s=10)
            waiting.cancel()
            await planner.cancelled.wait()
            await peer.call(methods.PLANNER_STATUS, common_pb2.Empty(), timeout_s=10)

    run(scenario, guard=Guard(max_calls=1))


def test_a_deadline_is_an_error_here_and_a_cancellation_there() -> None:
    async def scenario(planner: Planner, _: Loader, __: Server, address: str) -> None:
        async with Peer(address, "planner") as peer:
            request, timeout_s = plan_pb2.JoinRequest(job="wait"), 0.01
            while not planner.waiting.is_set():  # a call may be given up before it begins there
                timeout_s *= 2
                with pytest.raises(PeerError, match="planner at .*DEADLINE_EXCEEDED"):
                    await peer.call(methods.PLANNER_JOIN, request, timeout_s=timeout_s)
            await planner.cancelled.wait()

    run(scenario)


def test_a_stream_that_is_left_ends_at_the_other_side() -> None:
    async def scenario(planner: Planner, _: Loader, __: Server, address: str) -> None:
        async def forever() -> AsyncIterator[planner_service_pb2.PlanDemand]:
            yield planner_service_pb2.PlanDemand(up_to=1)
            await asyncio.Event().wait()

        async with Peer(address, "planner") as peer:
            stream = peer.stream(methods.PLANS, forever())
            assert (await anext(stream)).step == 1
            await stream.aclose()
            await peer.call(methods.PLANNER_STATUS, common_pb2.Empty(), timeout_s=10)  # behind the CANCEL
        await planner.ended.wait()

    run(scenario)


def test_a_server_that_stops_lets_calls_end_and_refuses_new_ones() -> None:
    async def scenario(planner: Planner, _: Loader, server: Server, address: str) -> None:
        async with Peer(address, "planner") as peer:
            request = plan_pb2.JoinRequest(job="wait")
            waiting = asyncio.create_task(peer.call(methods.PLANNER_JOIN, request, timeout_s=60))
            await planner.waiting.wait()
            stopping = asyncio.create_task(server.stop(60))
            await asyncio.sleep(0)
            with pytest.raises(PeerError, match="UNAVAILABLE: .* is stopping"):
                await peer.call(methods.PLANNER_STATUS, common_pb2.Empty(), timeout_s=10)
            planner.let_go.set()
            assert (await waiting).job == "wait"
            await stopping

    run(scenario)


def test_one_that_is_killed_is_heard_of_at_once(tmp_path: Path) -> None:
    """Another process serves and is killed in the middle of a call: that fails, and the next finds nobody."""
    script = tmp_path / "server.py"
    script.write_text(
        "import asyncio, sys\n"
        f"sys.path[:0] = {sys.path!r}\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_line import Planner, methods, start_server\n"
        "async def main():\n"
        "    server, address = await start_server({methods.PLANNER: Planner()}, '127.0.0.1:0')\n"
        "    print(address, flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()

        async def scenario() -> None:
            async with Peer(address, "planner") as peer:
                answer = await peer.call(methods.PLANNER_STATUS, common_pb2.Empty(), timeout_s=30)
                assert answer.job == "j"
                request = plan_pb2.JoinRequest(job="wait")
                waiting = asyncio.create_task(peer.call(methods.PLANNER_JOIN, request, timeout_s=600))
                await asyncio.sleep(0)
                os.kill(process.pid, signal.SIGKILL)
                with pytest.raises(PeerError, match="planner at .*UNAVAILABLE"):
                    await waiting
                with pytest.raises(PeerError):
                    await peer.call(methods.PLANNER_STATUS, common_pb2.Empty(), timeout_s=30)

        asyncio.run(scenario())


@pytest.mark.parametrize(
    "rubbish",
    [
        b"",
        b"short",
        HEAD.pack(messages.CALL, 0, 0, 1, 0, 0) + b"\xff\xff",
        HEAD.pack(messages.DATA, 0, 0, 1, 100, 0),
        HEAD.pack(99, 0, 0, 1, 0, 0),
        HEAD.pack(messages.PONG, 0, 0, 0, 1 << 40, 0),
    ],
)
def test_rubbish_ends_its_own_line_only(rubbish: bytes) -> None:
    async def scenario(_: Planner, __: Loader, ___: Server, address: str) -> None:
        line, receiver = await raw(address)
        with line:
            line.send(rubbish)
            with pytest.raises(LineLost):
                await next_message(line, receiver)
        async with Peer(address, "planner") as peer:
            await peer.call(methods.PLANNER_STATUS, common_pb2.Empty(), timeout_s=10)

    run(scenario)


def test_a_call_that_there_is_not_and_a_request_that_is_none_get_a_status() -> None:
    async def scenario(_: Planner, __: Loader, ___: Server, address: str) -> None:
        line, receiver = await raw(address)
        with line:
            for number, (path, code) in enumerate(
                [("/dataloader.v1.No/Such", "UNIMPLEMENTED"), (methods.PLANNER_JOIN.path, "INVALID_ARGUMENT")]
            ):
                Message(messages.CALL, number, call(path, b"\xff\xff")).send(line)
                answer = await next_message(line, receiver)
                assert (answer.kind, answer.call) == (messages.FAIL, number)
                assert line_pb2.LineStatus.FromString(answer.body).code == code

    run(scenario)


def test_memory_that_could_shrink_or_is_not_as_large_as_said_is_refused() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    descriptor = os.memfd_create("loose", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, 4096)
    with ours, theirs:
        loose = Memory(descriptor, 4096)
        Message(messages.DATA, 1, b"x", memory=loose, payload_bytes=4096).send(ours)
        with pytest.raises(WireError, match="not sealed"):
            Receiver(theirs, 1 << 20).receive()
        good = Memory.of([b"x" * 100])
        good.num_bytes = 200
        Message(messages.DATA, 1, b"x", memory=good, payload_bytes=200).send(ours)
        with pytest.raises(WireError, match="200 bytes"):
            Receiver(theirs, 1 << 20).receive()


def test_messages_of_a_socket_that_is_full_come_in_order() -> None:
    async def scenario(_: Planner, __: Loader, ___: Server, ____: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        heard: list[int] = []
        done = asyncio.Event()

        def take(message: Message) -> None:
            heard.append(message.call)
            if len(heard) == 200:
                done.set()

        one = line_module.Line(ours, heard=take, ended=lambda: None, busy=lambda: False, most=0, pings=False)
        for number in range(200):
            one.post(Message(messages.DATA, number, bytes(8000)))
        assert one._unsent, "more than the socket takes"
        other = line_module.Line(
            theirs, heard=take, ended=lambda: None, busy=lambda: False, most=0, pings=False
        )
        await done.wait()
        assert heard == list(range(200))
        one.end()
        with pytest.raises(LineLost):
            await one.send(Message(messages.PING))
        other.end()

    run(scenario)


def test_an_end_that_stands_still_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """By who calls, where a ping is not answered; by who is called, where no pings come any more."""
    monkeypatch.setattr(line_module, "SILENCE_S", 0.01)
    monkeypatch.setattr(line_module, "PATIENCE_S", 0.01)

    async def scenario(_: Planner, __: Loader, ___: Server, ____: str) -> None:
        for pings in (True, False):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            over = asyncio.Event()
            one = line_module.Line(
                ours,
                heard=lambda _: None,
                ended=over.set,
                busy=lambda: True,
                most=0,
                pings=pings,
            )
            if not pings:
                Message(messages.PING).send(theirs)
            await over.wait()
            assert one.over
            theirs.close()

    run(scenario)


def test_lines_that_are_idle_or_answer_pings_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_module, "SILENCE_S", 0.001)
    monkeypatch.setattr(line_module, "PATIENCE_S", 30.0)
    looks = asyncio.Queue[None]()
    look = line_module.Line._look

    def counted(self: line_module.Line) -> None:
        look(self)
        looks.put_nowait(None)

    monkeypatch.setattr(line_module.Line, "_look", counted)

    async def scenario(planner: Planner, _: Loader, __: Server, address: str) -> None:
        async with Peer(address, "planner") as peer:
            line = peer._line()
            for _ in range(6):
                await looks.get()
            request = plan_pb2.JoinRequest(job="wait")
            waiting = asyncio.create_task(peer.call(methods.PLANNER_JOIN, request, timeout_s=60))
            await planner.waiting.wait()
            for _ in range(6):
                await looks.get()
            planner.let_go.set()
            assert (await waiting).job == "wait"
            assert peer._line() is line

    run(scenario)


def test_where_there_is_tls_there_is_no_line(tmp_path: Path) -> None:
    async def scenario(_: Planner, __: Loader, ___: Server, address: str) -> None:
        tls = ServerTls(tmp_path / "certificate", tmp_path / "key")
        host = address.rpartition(":")[0]
        assert LineServer.open(f"{host}:1", {}, RoleName("planner-0"), Access(Guard(), tls)) is None
        assert connect(name_beside(f"{host}:1")) is None
        assert Peer(address, "planner", Credentials(tls=TLS()))._line() is None

    run(scenario)
