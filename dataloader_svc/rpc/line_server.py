"""Answers calls that come over lines: what `servicers.py` does for gRPC, for processes of this host.

Listens at an abstract Unix socket named after the server's address, so that whoever knows the one knows the
other (`dataloader_client/line.py`). Processes of other users are turned away; all others are asked for the
same token, at each call, by the same guard as over gRPC. Where TLS is configured there are no lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import grpc
from google.protobuf.message import DecodeError

from dataloader_client import line as messages
from dataloader_client import methods, wire
from dataloader_client._pb import line_pb2
from dataloader_client.errors import WireError
from dataloader_client.line import LineLost, Message, is_ours, name_beside
from dataloader_svc.errors import Overloaded
from dataloader_svc.rpc.access import Access
from dataloader_svc.rpc.answers import SERVICES, Failure, Method, frames_of, handler_of
from dataloader_svc.rpc.line import Line
from dataloader_svc.rpc.status import RoleName

log = logging.getLogger(__name__)

MOST_LINES = 4096
"""Connections: more than processes of a job fit on a host; more are turned away."""

SMALL = 1 << 14
"""Bytes of a payload that is sent in a datagram: memory of its own costs more than to copy it twice."""

IN_A_THREAD = 4 << 20
"""Bytes of a payload that takes milliseconds to be copied, in which others on the loop would wait."""

_PAUSE_S = 1.0

Answers = Mapping[str, tuple[Method, Any]]
"""By path: the method, and the function that answers it."""


class LineServer:
    """`open` makes one. Belongs to one event loop; `stop` ends it.

    name   another socket of it, which nobody can guess: who was told it over the port is on this host
    """

    def __init__(
        self, listening: Sequence[socket.socket], name: str, answers: Answers, role: RoleName, access: Access
    ) -> None:
        self.name, self.answers, self.role, self.access = name, answers, role, access
        self.stopping = False
        self._listening = listening
        self._connections: set[_Connection] = set()
        self._pauses: set[asyncio.TimerHandle] = set()
        self._loop = asyncio.get_running_loop()
        for each in listening:
            self._loop.add_reader(each, self._accept, each)

    @classmethod
    def open(
        cls, address: str, services: Mapping[str, object], role: RoleName, access: Access
    ) -> Self | None:
        """Listen beside HOST:PORT. None: all goes over gRPC, since there is TLS, or no such sockets here."""
        if access.tls is not None or not hasattr(socket, "SOCK_SEQPACKET"):
            return None
        name = f"dataloader-svc/line/{os.getpid()}/{secrets.token_hex(16)}"
        with contextlib.ExitStack() as opened:
            try:
                messages.Memory.of([b"probe"]).check()
                listening = [_listening(each, opened) for each in (name_beside(address), name)]
            except (OSError, WireError) as error:
                log.warning("%s: called over gRPC on this host too: no Unix socket: %s", role.name, error)
                return None
            opened.pop_all()
        answers = {
            method.path: (method, handler_of(method, handler))
            for service, handler in services.items()
            for method in SERVICES[service]
        }
        return cls(listening, name, answers, role, access)

    def _accept(self, listening: socket.socket) -> None:
        try:
            while True:
                self._take(listening.accept()[0])
        except BlockingIOError:
            return
        except OSError as error:  # no descriptors; who waits would be reported again and again
            log.warning("can't take in a line, tries again in %g s: %s", _PAUSE_S, error)
            self._loop.remove_reader(listening)
            self._pauses.add(
                self._loop.call_later(_PAUSE_S, self._loop.add_reader, listening, self._accept, listening)
            )

    def _take(self, line: socket.socket) -> None:
        most = min(self.access.max_connections, MOST_LINES)
        if len(self._connections) >= most or not is_ours(line):
            line.close()
            return
        self._connections.add(_Connection(self, line))

    def forget(self, connection: _Connection) -> None:
        """Its line has ended."""
        self._connections.discard(connection)

    async def stop(self, grace: float | None) -> None:
        """Take no more calls; cancel those that have not ended after `grace` seconds, None: at once."""
        if self.stopping:
            return
        self.stopping = True
        for pause in self._pauses:
            pause.cancel()
        for listening in self._listening:
            self._loop.remove_reader(listening)
            listening.close()
        tasks = [task for each in self._connections for task in each.tasks]
        if tasks and grace:
            await asyncio.wait(tasks, timeout=grace)
        for connection in list(self._connections):
            connection.line.end()
        await asyncio.gather(*tasks, return_exceptions=True)


def _listening(name: str, opened: contextlib.ExitStack) -> socket.socket:
    """At the abstract Unix socket `name`; closed with `opened`. OSError."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    opened.enter_context(listening)
    listening.bind(f"\0{name}")
    listening.listen(128)
    return listening


@dataclass(slots=True)
class _Call:
    task: asyncio.Task[None]
    requests: asyncio.Queue[Message]


class _Connection:
    """A caller's line, and its calls."""

    def __init__(self, server: LineServer, line: socket.socket) -> None:
        self._server = server
        self._calls: dict[int, _Call] = {}
        self.line = Line(
            line,
            heard=self._heard,
            ended=self._ended,
            busy=lambda: bool(self._calls),
            most=server.access.max_request,
            pings=False,
        )

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """Of the calls that have not ended."""
        return [call.task for call in self._calls.values()]

    def _heard(self, message: Message) -> None:
        if message.memory is not None:
            message.memory.close()  # a request is read, not mapped
        number = message.call
        call = self._calls.get(number)
        match message.kind:
            case messages.CALL if call is None:
                self._begin(number, message.body)
            case messages.DATA | messages.END:
                if call is not None:
                    call.requests.put_nowait(message)
            case messages.CANCEL:
                if call is not None:
                    call.task.cancel()
            case _:
                raise WireError(f"message of kind {message.kind} for call {number}")

    def _begin(self, number: int, body: bytes) -> None:
        called = line_pb2.LineCall()
        try:
            called.ParseFromString(body)
        except DecodeError as error:
            raise WireError(f"no call: {error}") from None
        if self._server.stopping:
            self._fail(number, Failure(grpc.StatusCode.UNAVAILABLE, f"{self._server.role.name} is stopping"))
            return
        if called.path not in self._server.answers:
            self._fail(number, Failure(grpc.StatusCode.UNIMPLEMENTED, f"{called.path}: no such call"))
            return
        requests: asyncio.Queue[Message] = asyncio.Queue()
        task = asyncio.create_task(self._answer(number, called, requests))
        self._calls[number] = _Call(task, requests)
        task.add_done_callback(lambda _: self._calls.pop(number, None))

    async def _answer(self, number: int, called: line_pb2.LineCall, requests: asyncio.Queue[Message]) -> None:
        server = self._server
        method, call = server.answers[called.path]
        try:
            with server.access.guard.call(((pair.key, pair.value) for pair in called.metadata), self._who):
                request = method.request.FromString(called.request)
                if isinstance(method, methods.Unary):
                    response = await call(request)
                    await self._send(number, response.SerializeToString(), last=True)
                elif isinstance(method, methods.RawStream):
                    async with aclosing(frames_of(call(request))) as frames:
                        async for frame in frames:
                            await self._send_frame(number, frame)
                else:
                    async with aclosing(call(self._requests(method, request, requests))) as responses:
                        async for response in responses:
                            await self._send(number, response.SerializeToString())
                    await self.line.send(Message(messages.END, number))
        except LineLost:
            return  # nobody hears it
        except Exception as error:
            self._fail(number, Failure.of(error, method, server.role))

    async def _requests(
        self, method: Method, first: Any, requests: asyncio.Queue[Message]
    ) -> AsyncIterator[Any]:
        yield first
        while (message := await requests.get()).kind != messages.END:
            yield method.request.FromString(message.body)

    async def _send_frame(self, number: int, frame: wire.Frame) -> None:
        header, payload = wire.laid_out(frame)
        if 0 < sum(map(len, payload)) <= SMALL:
            await self._send(number, header)
            await self._send(number, b"".join(payload), last=True)
        else:
            await self._send(number, header, last=True, payload=payload)

    async def _send(
        self, number: int, body: bytes, *, last: bool = False, payload: Sequence[memoryview] = ()
    ) -> None:
        make = partial(Message.of, messages.DATA, number, body, last=last, payload=payload)
        large = sum(map(len, payload)) > IN_A_THREAD
        try:
            message = await asyncio.to_thread(make) if large else make()
        except OSError as error:
            raise Overloaded(f"{self._server.role.name} has no memory for an answer: {error}") from None
        await self.line.send(message)

    def _fail(self, number: int, failure: Failure) -> None:
        status = line_pb2.LineStatus(code=failure.code.name, text=failure.text, error=failure.error)
        self.line.post(Message(messages.FAIL, number, status.SerializeToString()))

    def _ended(self) -> None:
        self._server.forget(self)
        for call in self._calls.values():
            call.task.cancel()

    def _who(self) -> str:
        return "a process of this host"
