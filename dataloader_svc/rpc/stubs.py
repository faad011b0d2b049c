"""Calls to other roles: one line or channel a peer, deadlines on everything, our errors back.

A role on this host is called over a line (`line_peer.py`), any other over gRPC. Nothing is retried here: who
calls knows what else can be done (another loader, a later step).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from google.protobuf.message import Message

from dataloader_client import methods, wire
from dataloader_client.credentials import Credentials
from dataloader_client.transport import channel_options
from dataloader_svc.rpc.line_peer import LineCaller, OpenLine
from dataloader_svc.rpc.status import from_rpc

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


class Peer:
    """A role at an address. Use as an async context manager, or `close` it.

    credentials   what is shown to it: those of the job's roles, or a client's
    lines         call it over a line where it is a process of this host; never, where there is TLS
    """

    def __init__(
        self, address: str, name: str, credentials: Credentials | None = None, *, lines: bool = True
    ) -> None:
        self.address = address
        self.name = name
        credentials = credentials or Credentials()
        self._metadata = credentials.metadata("")
        self._channel = credentials.aio_channel(address, channel_options(address, OPTIONS))
        local = lines and credentials.tls is None
        self._lines = LineCaller(address, self._who()) if local else None

    async def call(
        self, method: methods.Unary[Request, Response], request: Request, *, timeout_s: float
    ) -> Response:
        """One message there and back. Raises what the other side raised, or PeerError."""
        line = self._line()
        if line is not None:
            answer = await line.call(method.path, self._metadata, request.SerializeToString(), timeout_s)
            return method.response.FromString(answer)
        stub = self._channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        try:
            response: Response = await stub(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error, self._who()) from None
        return response

    async def fetch(
        self, method: methods.RawStream[Request], request: Request, *, timeout_s: float
    ) -> wire.Frame:
        """The frame of a raw stream."""
        line = self._line()
        if line is not None:
            return await line.fetch(method.path, self._metadata, request.SerializeToString(), timeout_s)
        stub: Any = self._channel.unary_stream(
            method.path, request_serializer=method.request.SerializeToString
        )
        decoder = wire.Decoder()
        try:
            async for message in stub(request, timeout=timeout_s, metadata=self._metadata):
                decoder.feed(message)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error, self._who()) from None
        return decoder.finish()

    async def stream(
        self, method: methods.Bidirectional[Request, Response], requests: AsyncIterator[Request]
    ) -> AsyncGenerator[Response]:
        """Messages both ways until the other side ends or fails. `aclose` it where reading stops before."""
        line = self._line()
        if line is not None:
            sent = (request.SerializeToString() async for request in requests)
            async with aclosing(line.stream(method.path, self._metadata, sent)) as answers:
                async for answer in answers:
                    yield method.response.FromString(answer)
            return
        stub = self._channel.stream_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        call: Any = stub(metadata=self._metadata)
        # Fed here and not by gRPC, whose own task would wait on for the next request when the call is over.
        feeder = asyncio.create_task(_feed(call, requests))
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error, self._who()) from None
        except asyncio.CancelledError:
            if feeder.done() and not feeder.cancelled():
                feeder.result()  # what ended the call, if it failed
            raise
        finally:
            feeder.cancel()
            await asyncio.gather(feeder, return_exceptions=True)
            call.cancel()

    def _line(self) -> OpenLine | None:
        return None if self._lines is None else self._lines.open()

    def _who(self) -> str:
        return f"{self.name} at {self.address}"

    async def close(self) -> None:
        """End line and channel, and what is in flight on them."""
        if self._lines is not None:
            self._lines.close()
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


Connect = Callable[[str, str], Peer]
"""A channel to an address, of a role called so: `Peer`, with what a job's roles show each other."""


async def _feed(call: Any, requests: AsyncIterator[Message]) -> None:
    """Write each request as it comes; a call that is over says so to its reader."""
    try:
        async for request in requests:
            await call.write(request)
        await call.done_writing()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return
    except Exception:  # whatever it is, it is raised on
        call.cancel()  # wakes the reader, who raises it
        raise
