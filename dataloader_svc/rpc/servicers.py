"""Serves objects over gRPC: one handler object a service, its methods named after the RPCs in snake case.

A servicer knows no role but its name, for errors. It asks the guard (`access.py`), parses, calls, turns
errors into status codes, and cuts frames into messages.
Handlers are coroutines `(request) -> response`; for raw streams they return a `Frame`, or are async
generators that yield one and are resumed when all of it has been sent (closed, when it could not be); for
bidirectional streams they are async generators over an async iterator of requests.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from dataloader_client import methods, wire
from dataloader_svc.errors import ConfigError, DataloaderError
from dataloader_svc.rpc.access import Access, Guard
from dataloader_svc.rpc.status import RoleName, code_of

log = logging.getLogger(__name__)

Parse = Callable[[bytes], Message]
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
    methods.CONTROL: (
        methods.SET_MIXTURE,
        methods.SHOW_MIXTURE,
        methods.COMMIT,
        methods.REPORT_LOSSES,
    ),
}

REQUEST_S = 30.0
"""For a request to come in whole. Who sends a byte now and then holds nothing for longer."""

MOST_TEXT = 6_000
"""Bytes of an error on the wire; above 8 KiB, gRPC's clients begin to drop them, and say something else."""

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
    server: grpc.aio.Server, service: str, handler: object, role: RoleName, guard: Guard | None = None
) -> None:
    """Serve `handler` as `service` (a key of SERVICES) on `server`, to whom `guard` lets in."""
    guard = guard or Guard()
    handlers = {method.name: _handler(method, handler, role, guard) for method in SERVICES[service]}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(f"dataloader.v1.{service}", handlers),)
    )


def _handler(
    method: Method, handler: object, role: RoleName, guard: Guard
) -> grpc.RpcMethodHandler[Any, Any]:
    """Every kind of call as a stream both ways, which is the same on the wire: gRPC would take in the whole
    request of the other kinds, and wait for it without limit, before it asks us.
    """
    call = getattr(handler, re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower())
    answer = _unary if isinstance(method, methods.Unary) else _raw
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
            await _abort(context, method, role, error)
            raise

    return grpc.stream_stream_rpc_method_handler(serve)


async def _unary(call: Any, parse: Parse, data: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    response: Message = await call(parse(await _request(data)))
    yield response.SerializeToString()


async def _raw(call: Any, parse: Parse, data: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(_frames(call(parse(await _request(data))))) as frames:
        async for frame in frames:
            for message in wire.encode(frame):
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
        raise _BadCall(
            grpc.StatusCode.DEADLINE_EXCEEDED, f"the request did not come within {REQUEST_S:g} s"
        ) from None
    raise _BadCall(grpc.StatusCode.INVALID_ARGUMENT, "the call ended without a request")


class _BadCall(Exception):
    """A call that is none, whatever it is for."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


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
    if isinstance(error, _BadCall):
        await context.abort(error.code, f"{method.path}: {error}")
    if isinstance(error, DecodeError):
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{method.path}: request can't be parsed")
    if not isinstance(error, DataloaderError):
        log.error("%s failed", method.path, exc_info=error)
        error = role.mistake(f"in {method.name}", error)
    text = shortened("\n".join([str(error), *getattr(error, "__notes__", ())]))
    await context.abort(code_of(error), text, ((methods.ERROR_KEY, type(error).__name__),))


def shortened(text: str) -> str:
    """`text`, without its middle where it is too long for a status, in which odd bytes take three.

    What isn't Unicode, as names of files may be, is spelled out: gRPC would never answer.
    """
    text = text.encode("utf-8", "backslashreplace").decode()
    sizes = [1 if " " <= letter <= "~" and letter != "%" else 3 * len(letter.encode()) for letter in text]
    if sum(sizes) <= MOST_TEXT:
        return text
    left, right = _fitting(sizes), _fitting(sizes[::-1])
    return f"{text[:left]} [...] {text[len(text) - right :]}"


def _fitting(sizes: Sequence[int]) -> int:
    """How many fit into almost half of MOST_TEXT."""
    ends = itertools.accumulate(sizes)
    return sum(1 for _ in itertools.takewhile(lambda end: end < MOST_TEXT // 2 - 10, ends))


async def start_server(
    services: dict[str, object],
    address: str,
    *,
    role: RoleName | None = None,
    access: Access | None = None,
) -> tuple[grpc.aio.Server, str]:
    """A started server of `services` and the address it listens on (port 0 asks for a free one).

    `role` is who answers, for errors; `access` who may call: anybody, by default. Raises ConfigError where
    the address can't be bound, naming it, and where certificates are no use.
    """
    access = access or Access(Guard())
    server = grpc.aio.server(options=(*OPTIONS, *access.options()))
    for service, handler in services.items():
        attach(server, service, handler, role or RoleName(service), access.guard)
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
    await server.start()
    return server, f"{host}:{bound}"
