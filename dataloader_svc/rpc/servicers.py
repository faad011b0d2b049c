"""Serves objects over gRPC, and beside it over lines to processes of this host.

A servicer knows no role but its name, for errors. It asks the guard (`access.py`), parses, calls
(`answers.py`), turns errors into status codes, and cuts frames into messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import Message

from dataloader_client import methods, wire
from dataloader_svc.errors import ConfigError
from dataloader_svc.rpc.access import Access, Guard
from dataloader_svc.rpc.answers import SERVICES, BadCall, Failure, Method, frames_of, handler_of
from dataloader_svc.rpc.line_server import LineServer
from dataloader_svc.rpc.status import RoleName

Parse = Callable[[bytes], Message]

REQUEST_S = 30.0
"""For a request to come in whole. Who sends a byte now and then holds nothing for longer."""

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.so_reuseport", 0),  # a port in use must be an error, not a second server on it
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)


def attach(
    server: grpc.aio.Server, service: str, handler: object, role: RoleName, guard: Guard, line: str
) -> None:
    """Serve `handler` as `service` (a key of SERVICES) on `server`, to whom `guard` lets in. `line`: where
    readers on this host can ask for the next frame.
    """
    handlers = {method.name: _handler(method, handler, role, guard, line) for method in SERVICES[service]}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(f"dataloader.v1.{service}", handlers),)
    )


def _handler(
    method: Method, handler: object, role: RoleName, guard: Guard, line: str
) -> grpc.RpcMethodHandler[Any, Any]:
    """Every kind of call as a stream both ways, which is the same on the wire: gRPC would take in the whole
    request of the other kinds, and wait for it without limit, before it asks us.
    """
    call = handler_of(method, handler)
    answer = _unary if isinstance(method, methods.Unary) else partial(_raw, line)
    if isinstance(method, methods.Bidirectional):
        answer = _bidirectional

    async def serve(
        data: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[bytes]:
        try:
            with guard.call(context.invocation_metadata() or (), context.peer):
                async with aclosing(answer(call, method.request.FromString, data)) as messages:
                    async for message in messages:
                        yield message
        except Exception as error:
            failure = Failure.of(error, method, role)
            named = ((methods.ERROR_KEY, failure.error),) if failure.error else ()
            await context.abort(failure.code, failure.text, named)
            raise

    return grpc.stream_stream_rpc_method_handler(serve)


async def _unary(call: Any, parse: Parse, data: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    response: Message = await call(parse(await _request(data)))
    yield response.SerializeToString()


async def _raw(line: str, call: Any, parse: Parse, data: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(frames_of(call(parse(await _request(data))))) as frames:
        async for frame in frames:
            # A service that shares no memory with readers is to be read through its port.
            for message in wire.encode(replace(frame, line=line if frame.socket else "")):
                yield message


async def _bidirectional(call: Any, parse: Parse, data: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    first = parse(await _request(data))

    async def requests() -> AsyncIterator[Message]:
        yield first
        async for item in data:
            yield parse(item)

    async for response in call(requests()):
        yield response.SerializeToString()


async def _request(data: AsyncIterator[bytes]) -> bytes:
    """The first message of a call, whose sender is given REQUEST_S for it."""
    try:
        async with asyncio.timeout(REQUEST_S):
            async for item in data:
                return item
    except TimeoutError:
        raise BadCall(
            grpc.StatusCode.DEADLINE_EXCEEDED, f"the request did not come within {REQUEST_S:g} s"
        ) from None
    raise BadCall(grpc.StatusCode.INVALID_ARGUMENT, "the call ended without a request")


class Server:
    """What `start_server` has started."""

    def __init__(self, server: grpc.aio.Server, lines: LineServer | None) -> None:
        self._server, self._lines = server, lines

    async def stop(self, grace: float | None) -> None:
        """Take no more calls; cancel those that have not ended after `grace` seconds, None: at once."""
        lines = () if self._lines is None else (self._lines.stop(grace),)
        await asyncio.gather(self._server.stop(grace), *lines)


async def start_server(
    services: dict[str, object],
    address: str,
    *,
    role: RoleName | None = None,
    access: Access | None = None,
) -> tuple[Server, str]:
    """A started server of `services` and the address it listens on (port 0 asks for a free one).

    `role` is who answers, for errors; `access` who may call: anybody, by default. Raises ConfigError where
    the address can't be bound, naming it, and where certificates are no use.
    """
    access = access or Access(Guard())
    role = role or RoleName(" and ".join(services))
    server = grpc.aio.server(options=(*OPTIONS, *access.options()))
    host, _, port = address.rpartition(":")
    try:
        if access.tls is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, access.tls.credentials())
    except RuntimeError:
        bound = 0
    if bound == 0:
        raise ConfigError(
            f"can't listen on {address}: the port is in use or the address is not this machine's; "
            f"choose another with --address {host or '127.0.0.1'}:PORT"
            + (f" (found port {port})" if not port.isdigit() else "")
        )
    address = f"{host}:{bound}"
    lines = LineServer.open(address, services, role, access)
    for service, handler in services.items():
        attach(server, service, handler, role, access.guard, "" if lines is None else lines.name)
    await server.start()
    return Server(server, lines), address
