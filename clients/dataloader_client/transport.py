"""Join, read and leave: idempotent calls, repeated while the service is away (`failures.py`).

Everything here may be asked again at any time, so whatever is only "not there now" (a restarting role, a
refused connection, no memory at the moment) is retried with growing pauses until the caller's time is up,
and then becomes ServiceUnavailableError; whatever the service decided is raised at once. Blocking; safe from
several threads. All goes over gRPC, but reads over a line where the constructor is a process of this host
(`direct.py`). Knows nothing of the order of steps (`loader.py`) nor of what a frame holds (`batch.py`).
"""

from __future__ import annotations

import contextlib
import ipaddress
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from grpc.experimental import ChannelOptions

from dataloader_client import methods, wire
from dataloader_client._pb import common_pb2, constructor_service_pb2, plan_pb2
from dataloader_client.codecs import installed
from dataloader_client.credentials import Credentials
from dataloader_client.direct import Direct, DirectCall
from dataloader_client.errors import (
    AccessDeniedError,
    DataServiceError,
    SessionSupersededError,
)
from dataloader_client.failures import Retryable, Untrusted, retrying, translated
from dataloader_client.link import Link
from dataloader_client.mesh import AXES, Coords
from dataloader_client.shared import Lease, SharedMemoryLost, Sharing

# A read that a restarting service took and lost is never answered, and nothing tells. It is asked again after
# this time, doubled at every try so that a large step over a slow link comes through too.
_FIRST_PATIENCE_S = 30.0
_LEAVE_TIMEOUT_S = 1.0

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.keepalive_time_ms", 20_000),  # a peer that stopped without closing is noticed in half a minute
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A channel of our own: gRPC would else share one, and its back-off, between loaders of a process.
    ("grpc.use_local_subchannel_pool", 1),
    # The reading thread drives its stream itself. With the thread of gRPC (1.85.3) for it, one reconnect
    # in ten to a restarted server left a stream that never ended, not even at its deadline.
    (ChannelOptions.SingleThreadedUnaryStream, 1),
)


def channel_options(
    address: str, options: tuple[tuple[str, int], ...] = OPTIONS
) -> tuple[tuple[str, int], ...]:
    """`options`, and no proxy from the environment where `address` is this machine."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    return (*options, ("grpc.enable_http_proxy", 0)) if local else options


@dataclass(slots=True)
class PendingRead:
    """A read under way: the service may already be building and sending. `stop` ends it from outside."""

    request: constructor_service_pb2.ReadRequest
    stop: threading.Event
    patience_s: float = _FIRST_PATIENCE_S
    call: Any = None  # a DirectCall, or grpc's iterator of messages, whose type is private
    lease: Lease | None = None  # of what this try may be lent

    def cancel(self) -> None:
        """Let go of it; whoever is in `finish_read` gets Closed."""
        self.stop.set()
        self.call.cancel()
        self.abandon()

    def abandon(self) -> None:
        """Give back what was lent and not mapped."""
        if self.lease is not None:
            self.lease.abandon()


class Transport:
    """A client's connection to the service, and to the constructor that serves this rank.

    address     the service's public address, HOST:PORT
    timeout_s   how long the service may be away, or a step take, before a read fails
    credentials what is shown at each call; each names the job that was joined as well
    shared      map batches that a constructor on this host has built in shared memory
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float,
        credentials: Credentials | None = None,
        shared: bool = True,
    ) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self._credentials = credentials or Credentials()
        self._job = self._split = ""  # that were joined
        self._channel = self._credentials.channel(address, channel_options(address))
        self._sharing = Sharing(wanted=shared)
        self._direct = Direct() if self._credentials.tls is None else None
        self._lock = threading.Lock()  # of the two below: the prefetching thread may be redirected
        self._data_address = address
        self._data_channel = self._channel
        self._joined: tuple[plan_pb2.JoinRequest, int] | None = None  # and its session
        self._closed = threading.Event()
        self._link = Link()  # to whichever constructor: they are in one place

    def join(self, request: plan_pb2.JoinRequest, *, timeout_s: float) -> plan_pb2.JoinResponse:
        """Take part; remembers where this rank's constructor is. Retried for `timeout_s`."""
        what = f"nobody answers at {self.address}"
        response = retrying(lambda left: self._first_join(request, left), timeout_s, self._closed, what)
        self._joined = (request, response.session)
        self._job, self._split = response.job, response.split
        return response

    def _first_join(self, request: plan_pb2.JoinRequest, timeout_s: float) -> plan_pb2.JoinResponse:
        try:
            return self._join(request, timeout_s)
        except Untrusted as problem:
            raise AccessDeniedError(str(problem)) from None

    def _join(self, request: plan_pb2.JoinRequest, timeout_s: float) -> plan_pb2.JoinResponse:
        call = self._channel.unary_unary(
            methods.JOIN.path,
            request_serializer=methods.JOIN.request.SerializeToString,
            response_deserializer=methods.JOIN.response.FromString,
        )
        with translated(self.address, self._closed):
            response: plan_pb2.JoinResponse = call(
                request, timeout=timeout_s, metadata=self._metadata(request.job)
            )
        self._redirect(response.address or self.address)
        return response

    def _metadata(self, job: str = "") -> tuple[tuple[str, str], ...]:
        return self._credentials.metadata(job or self._job)

    def _redirect(self, address: str) -> None:
        with self._lock:
            if address == self._data_address:
                return
            if self._direct is not None:
                self._direct.heard("")  # another's line is no use
            before, self._data_address = self._data_channel, address
            self._data_channel = (
                self._channel
                if address == self.address
                else self._credentials.channel(address, channel_options(address))
            )
        if before is not self._channel:
            before.close()

    def _find_again(self, timeout_s: float) -> None:
        """Ask where this rank's constructor is now, unless it is the one that is asked."""
        if self._data_address == self.address or self._joined is None:
            return
        before, session = self._joined
        request = plan_pb2.JoinRequest(session=session)
        request.MergeFrom(before)
        if self._join(request, timeout_s).session != session:
            raise SessionSupersededError(f"session {session} is over: join again")

    def ask(
        self, method: methods.Unary[methods.Request, methods.Response], request: Any, *, timeout_s: float
    ) -> methods.Response:
        """A question to the service's public address; asked again for `timeout_s` while nobody answers."""

        def attempt(left_s: float) -> methods.Response:
            call = self._channel.unary_unary(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
            with translated(self.address, self._closed):
                response: methods.Response = call(request, timeout=left_s, metadata=self._metadata())
            return response

        return retrying(attempt, timeout_s, self._closed, f"nobody answers at {self.address}")

    def start_read(
        self, request: constructor_service_pb2.ReadRequest, stop: threading.Event | None = None
    ) -> PendingRead:
        """Ask for a step now; `finish_read` takes it in. `stop` ends the wait for it from another thread."""
        pending = PendingRead(request, stop or self._closed)
        with translated(self._data_address, pending.stop):
            self._open(pending, self.timeout_s)
        return pending

    def _open(self, pending: PendingRead, timeout_s: float) -> None:
        pending.abandon()
        pending.lease = lease = self._sharing.begin()
        request = constructor_service_pb2.ReadRequest(split=self._split)
        if lease is not None:  # of this try alone: nobody knows what became of one before
            request.attachment, request.lease = lease.attachment.number, lease.number
        request.MergeFrom(pending.request)
        patience_s, metadata = min(timeout_s, pending.patience_s), self._metadata()
        pending.patience_s *= 2
        if self._direct is not None:
            asked = request.SerializeToString()
            pending.call = self._direct.start(methods.READ.path, metadata, asked, patience_s)
            if pending.call is not None:
                return
        request.codecs.extend(installed())
        request.link_bytes_per_s = self._link.bytes_per_s
        stub: Any = self._data_channel.unary_stream(
            methods.READ.path, request_serializer=methods.READ.request.SerializeToString
        )
        pending.call = stub(request, timeout=patience_s, metadata=metadata)

    def finish_read(self, pending: PendingRead) -> wire.Frame:
        """The step's frame; asked for again while the service is away. Raises what the service raised."""
        first = True

        def attempt(left_s: float) -> wire.Frame:
            nonlocal first
            again, first = not first, False
            with translated(self._data_address, pending.stop):
                if again:
                    self._find_again(left_s)
                    self._open(pending, left_s)
                    if pending.stop.is_set():  # `cancel` may have met the call before this one
                        pending.call.cancel()
                return self._take_in(pending)

        what = f"step {pending.request.step} does not come from {self.address}"
        return retrying(attempt, self.timeout_s, pending.stop, what)

    def _take_in(self, pending: PendingRead) -> wire.Frame:
        lease = pending.lease
        decoder = wire.Decoder(map_shared=None if lease is None else lease.map)
        try:
            if isinstance(pending.call, DirectCall):
                pending.call.take_in(decoder)
            else:
                for message in self._link.watch(pending.call):
                    decoder.feed(message)
            frame = decoder.finish()
        except SharedMemoryLost as problem:
            assert lease is not None
            pending.call.cancel()
            self._sharing.lose(lease.attachment)
            raise Retryable(str(problem)) from None
        finally:
            pending.abandon()
        self._sharing.heard(frame.socket)
        if self._direct is not None and not isinstance(pending.call, DirectCall):
            self._direct.heard(frame.line)
        return frame

    def post(
        self,
        method: methods.Unary[methods.Request, methods.Response],
        request: methods.Request,
        timeout_s: float,
        done: Callable[[methods.Response | None], None],
    ) -> None:
        """Ask this rank's constructor, not waiting. `done` gets the answer or None, in a thread of gRPC."""

        def finished(call: Any) -> None:
            done(None if call.cancelled() or call.exception() is not None else call.result())

        with self._lock:
            channel = self._data_channel
        try:
            call: Any = channel.unary_unary(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
            future = call.future(request, timeout=timeout_s, metadata=self._metadata())
        except (ValueError, DataServiceError):  # gRPC's word for a closed channel; no token to be read
            done(None)
            return
        future.add_done_callback(finished)

    def leave(self, session: int, coords: Coords) -> None:
        """Say that this rank reads no more; unheard, it costs the service some memory for a while."""
        request = constructor_service_pb2.LeaveRequest(session=session, split=self._split)
        request.coords.CopyFrom(coords_message(coords))
        call: Any = self._data_channel.unary_unary(
            methods.LEAVE.path, request_serializer=methods.LEAVE.request.SerializeToString
        )
        # ValueError: the channel is closed; DataServiceError: the token can't be read any more
        with contextlib.suppress(grpc.RpcError, ValueError, DataServiceError):
            call(request, timeout=_LEAVE_TIMEOUT_S, metadata=self._metadata())

    def close(self) -> None:
        """End what is in flight; whoever waits gets Closed. Idempotent."""
        self._closed.set()
        if self._direct is not None:
            self._direct.close()
        self._data_channel.close()
        self._channel.close()


def coords_message(coords: Coords) -> common_pb2.Coords:
    """For the wire."""
    return common_pb2.Coords(**{axis: getattr(coords, axis) for axis in AXES})
