"""Reads over lines: one connection to the constructor for each read under way, kept for the next.

The constructor's answers over gRPC name a socket of its host (`wire.py`); who can connect to it asks there
from then on, at a tenth of the CPU. Whatever goes wrong is a LineLost: the read is asked again, over gRPC
where the socket is gone. Blocking; safe from several threads. Knows no steps, nor what is retried
(`transport.py`).
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Iterable

from dataloader_client import line as messages
from dataloader_client._pb import line_pb2
from dataloader_client.line import LineLost, Message, Receiver, connect
from dataloader_client.wire import MAX_PAYLOAD, Decoder

_MOST_IDLE = 8
"""Connections kept: as many as a loader reads ahead, and some."""


class CallFailed(Exception):
    """The service's answer is an error: gRPC's name of the code, text, and its own class or ""."""

    def __init__(self, status: line_pb2.LineStatus) -> None:
        super().__init__(status.text)
        self.code, self.text, self.error = status.code, status.text, status.error


class NoAnswer(Exception):
    """None came in time."""


class _Connection:
    """A line to the socket `name`, of which one call at a time makes use."""

    def __init__(self, line: socket.socket, name: str) -> None:
        self.line, self.name = line, name
        self._receiver, self._number = Receiver(line, MAX_PAYLOAD), 0
        self._waiting = select.poll()
        self._waiting.register(line, select.POLLIN)

    def ask(self, body: bytes) -> None:
        """Begin a call. LineLost."""
        self._number += 1
        try:
            Message.of(messages.CALL, self._number, body).send(self.line)
        except OSError as error:
            raise LineLost(str(error)) from None

    def next(self, until: float) -> Message:
        """What comes for the call. LineLost, CallFailed, NoAnswer, WireError."""
        while True:
            try:
                message = self._receiver.receive()
            except BlockingIOError:
                left = until - time.monotonic()
                if left <= 0 or not self._waiting.poll(left * 1000):
                    raise NoAnswer from None
                continue
            if message.call != self._number:
                continue  # of a call before
            if message.kind == messages.FAIL:
                raise CallFailed(line_pb2.LineStatus.FromString(message.body))
            if message.kind == messages.DATA:
                return message


class DirectCall:
    """A call under way: `take_in` its answer, once. `cancel` may be called from any thread, at any time."""

    def __init__(self, connection: _Connection, timeout_s: float, done: Callable[[DirectCall], None]) -> None:
        self._lock = threading.Lock()  # of the two below
        self._connection: _Connection | None = connection
        self._taking = False
        self._until = time.monotonic() + timeout_s
        self._done = done

    def take_in(self, decoder: Decoder) -> None:
        """Feed the frame that comes. LineLost, CallFailed, NoAnswer, WireError."""
        with self._lock:
            connection, self._taking = self._connection, True
        if connection is None:
            raise LineLost("it was given up")
        try:
            last = False
            while not last:
                message = connection.next(self._until)
                last = message.last
                _feed(decoder, message)
        except BaseException:
            self._end(connection)
            raise
        self._end(None)

    def free(self) -> _Connection | None:
        """The connection, for the next call, where the answer came to its end; once."""
        with self._lock:
            connection, self._connection = self._connection, None
        return connection

    def _end(self, broken: _Connection | None) -> None:
        if broken is not None:
            with self._lock:
                self._connection = None
            broken.line.close()
        self._done(self)

    def cancel(self) -> None:
        """End it; whoever is in `take_in` gets LineLost, and the service hears that nobody waits."""
        with self._lock:
            connection = self._connection
            if connection is None:
                return
            if self._taking:  # who takes it in closes it
                connection.line.shutdown(socket.SHUT_RDWR)
                return
            self._connection = None
        connection.line.close()
        self._done(self)


def _feed(decoder: Decoder, message: Message) -> None:
    if message.memory is None or not message.payload_bytes:
        decoder.feed(message.body)
        return
    # A copy: what the service has allocated is the service's, and a batch may be kept for long.
    decoder.feed(message.body, message.memory.copied(message.payload_bytes))
    message.memory.close()


class Direct:
    """To which constructor's line reads go, if to any: the one whose answers named it last.

    A socket that could not be connected to is not tried again until another is named.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of all below
        self._name = self._gone = ""
        self._idle: list[_Connection] = []
        self._busy: set[DirectCall] = set()
        self._closed = False

    def heard(self, name: str) -> None:
        """An answer over gRPC named this socket, or none ("")."""
        with self._lock:
            if name != self._name:
                self._drop_idle()
                self._name = "" if name == self._gone else name

    def start(
        self, path: str, metadata: Iterable[tuple[str, str]], request: bytes, timeout_s: float
    ) -> DirectCall | None:
        """Begin a call; None where it has to go over gRPC."""
        pairs = (line_pb2.LineMetadata(key=key, value=value) for key, value in metadata)
        body = line_pb2.LineCall(path=path, metadata=pairs, request=request).SerializeToString()
        with self._lock:
            connection = self._free()
            if connection is None:
                return None
            call = DirectCall(connection, timeout_s, self._ended)
            self._busy.add(call)
        try:
            connection.ask(body)
        except LineLost:
            call.cancel()
            self.lose()
            return None
        return call

    def lose(self) -> None:
        """A line has ended: those of the same constructor will have, too."""
        with self._lock:
            self._drop_idle()

    def _free(self) -> _Connection | None:
        if self._idle:
            return self._idle.pop()
        if not self._name or self._closed:
            return None
        line = connect(self._name)
        if line is None:
            self._name, self._gone = "", self._name
            return None
        return _Connection(line, self._name)

    def _ended(self, call: DirectCall) -> None:
        with self._lock:
            self._busy.discard(call)
            connection = call.free()
            if connection is None:
                return
            if self._closed or connection.name != self._name or len(self._idle) >= _MOST_IDLE:
                connection.line.close()
            else:
                self._idle.append(connection)

    def _drop_idle(self) -> None:
        for connection in self._idle:
            connection.line.close()
        self._idle.clear()

    def close(self) -> None:
        """End what is under way. Idempotent."""
        with self._lock:
            self._closed = True
            self._drop_idle()
            busy = list(self._busy)
        for call in busy:
            call.cancel()
