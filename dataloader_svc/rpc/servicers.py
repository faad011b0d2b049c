"""Serves objects over gRPC: one handler object a service, its methods named after the RPCs in snake case.

A servicer knows no role but its name, for errors. It parses, calls, turns errors into status codes, and cuts
frames into messages.
Handlers are coroutines `(request) -> response`; for raw streams they return a `Frame`, or are async
generators that yield one and are resumed when all of it has been sent (closed, when it could not be); for
bidirectional streams they are async generators over an async iterator of requests.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from dataloader_client import methods, wire
from dataloader_svc.errors import ConfigError, DataloaderError
from dataloader_svc.rpc.status import RoleName, code_of

log = logging.getLogger(__name__)

Method = methods.Unary[Any, Any] | methods.RawStream[Any] | methods.Bidirectional[Any, Any]

SERVICES: dict[str, tuple[Method, ...]] = {
    methods.CONSTRUCTOR: (
        methods.JOIN,
        methods.READ,
        methods.LEAVE,
        methods.REPORT,
        methods.CONSTRUCTOR_STATUS,
    ),
    methods.PLANNER: (
        methods.PLANNER_JOIN,
        methods.PLANS,
        methods.PLANNER_STATUS,
        methods.PLANNER_REPORT,
    ),
    methods.LOADER: (
        methods.DESCRIBE,
        methods.PROBE,
        methods.FETCH,
        methods.RELEASE,
        methods.LOADER_STATUS,
    ),
}

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.so_reuseport", 0),  # a port in use must be an error, not a second server on it
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)


def attach(server: grpc.aio.Server, service: str, handler: object, role: RoleName) -> None:
    """Serve `handler` as `service` (a key of SERVICES) on `server`."""
    handlers = {method.name: _handler(method, handler, role) for method in SERVICES[service]}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(f"dataloader.v1.{service}", handlers),)
    )


def _handler(method: Method, handler: object, role: RoleName) -> grpc.RpcMethodHandler[Any, Any]:
    call = getattr(handler, re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower())
    parse = method.request.FromString

    if isinstance(method, methods.Unary):

        async def unary(data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
            try:
                response: Message = await call(parse(data))
                return response.SerializeToString()
            except Exception as error:
                await _abort(context, method, role, error)
                raise

        return grpc.unary_unary_rpc_method_handler(unary)

    if isinstance(method, methods.RawStream):

        async def raw(data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[bytes]:
            try:
                async with aclosing(_frames(call(parse(data)))) as frames:
                    async for frame in frames:
                        for message in wire.encode(frame):
                            yield message
            except Exception as error:
                await _abort(context, method, role, error)
                raise

        return grpc.unary_stream_rpc_method_handler(raw)

    async def bidirectional(
        data: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[bytes]:
        try:
            async for response in call(parse(item) async for item in data):
                yield response.SerializeToString()
        except Exception as error:
            await _abort(context, method, role, error)
            raise

    return grpc.stream_stream_rpc_method_handler(bidirectional)


async def _frames(result: Awaitable[wire.Frame] | AsyncGenerator[wire.Frame]) -> AsyncGenerator[wire.Frame]:
    """The frame of either kind of raw-stream handler."""
    if not isinstance(result, AsyncGenerator):
        yield await result
        return
    async with aclosing(result):
        async for frame in result:
            yield frame


async def _abort(
    context: grpc.aio.ServicerContext[Any, Any], method: Method, role: RoleName, error: Exception
) -> None:
    """End the call with the status of `error`. Only what is not ours is logged with its traceback."""
    if isinstance(error, DecodeError):
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{method.path}: request can't be parsed")
    if not isinstance(error, DataloaderError):
        log.error("%s failed", method.path, exc_info=error)
        error = role.mistake(f"in {method.name}", error)
    text = "\n".join([str(error), *getattr(error, "__notes__", ())])
    await context.abort(code_of(error), text, ((methods.ERROR_KEY, type(error).__name__),))


async def start_server(
    services: dict[str, object], address: str, *, role: RoleName | None = None
) -> tuple[grpc.aio.Server, str]:
    """A started server of `services` and the address it listens on (port 0 asks for a free one).

    `role` is who answers, for errors. Raises ConfigError where the address can't be bound, naming it.
    """
    server = grpc.aio.server(options=OPTIONS)
    for service, handler in services.items():
        attach(server, service, handler, role or RoleName(service))
    host, _, port = address.rpartition(":")
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError:
        bound = 0
    if bound == 0:
        raise ConfigError(
            f"can't listen on {address}: the port is in use or the address is not this machine's; "
            f"choose another with --address {host or '127.0.0.1'}:PORT"
            + (f" (found port {port})" if not port.isdigit() else "")
        )
    await server.start()
    return server, f"{host}:{bound}"
