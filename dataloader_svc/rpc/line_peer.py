"""Calls to a role of this host over a line: what `stubs.py` does over gRPC, with the same errors.

`LineCaller` keeps one line to an address, made anew when it has ended; where there is none, `stubs.py` calls
over gRPC. Calls share the line: each has a number, and takes its messages from a queue of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence

from dataloader_client import line as messages
from dataloader_client import wire
from dataloader_client._pb import line_pb2
from dataloader_client.errors import WireError
from dataloader_client.line import LineLost, Message, connect, name_beside
from dataloader_svc.errors import PeerError
from dataloader_svc.rpc.line import Line
from dataloader_svc.rpc.status import error_of

MOST = wire.MAX_PAYLOAD + (64 << 20)
"""Bytes that come along with a message: a frame's payload and its header."""

Pairs = Sequence[tuple[str, str]]


class LineCaller:
    """The line to `address`. Belongs to one event loop; `close` ends it. `who` is called, for errors."""

    def __init__(self, address: str, who: str) -> None:
        self._name, self._who = name_beside(address), who
        self._open: OpenLine | None = None

    def open(self) -> OpenLine | None:
        """The line, made where there is none; None where the other side has none either."""
        if self._open is None or self._open.over:
            found = connect(self._name)
            self._open = None if found is None else OpenLine(found, self._who)
        return self._open

    def close(self) -> None:
        """Calls that are open end with PeerError."""
        if self._open is not None:
            self._open.end()


class OpenLine:
    """A line, and the calls over it. All raise what the other side raised, or PeerError."""

    def __init__(self, line: socket.socket, who: str) -> None:
        self._who = who
        self._numbers = itertools.count(1)
        self._calls: dict[int, _Answers] = {}
        self._line = Line(
            line,
            heard=self._heard,
            ended=self._ended,
            busy=lambda: bool(self._calls),
            most=MOST,
            pings=True,
        )

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._line.over

    def end(self) -> None:
        """End it, with all calls."""
        self._line.end()

    async def call(self, path: str, metadata: Pairs, request: bytes, timeout_s: float) -> bytes:
        """One message there and back."""
        with self._begun(path) as (number, answers):
            async with self._within(timeout_s):
                await self._call(number, path, metadata, request)
                return (await answers.next()).body

    async def fetch(self, path: str, metadata: Pairs, request: bytes, timeout_s: float) -> wire.Frame:
        """The frame of a raw stream; its arrays lie in memory that the other side has written."""
        decoder = wire.Decoder()
        with self._begun(path) as (number, answers):
            async with self._within(timeout_s):
                await self._call(number, path, metadata, request)
                while True:
                    message = await answers.next()
                    decoder.feed(message.body, message.payload())
                    if message.memory is not None:
                        message.memory.close()
                    if message.last:
                        return decoder.finish()

    async def stream(
        self, path: str, metadata: Pairs, requests: AsyncIterator[bytes]
    ) -> AsyncGenerator[bytes]:
        """Messages both ways until the other side ends. `aclose` it where reading stops before."""
        with self._begun(path) as (number, answers):
            feeder = asyncio.create_task(self._feed(number, path, metadata, requests, answers))
            try:
                while (message := await answers.next()).kind != messages.END:
                    yield message.body
            finally:
                feeder.cancel()
                await asyncio.gather(feeder, return_exceptions=True)

    async def _feed(
        self, number: int, path: str, metadata: Pairs, requests: AsyncIterator[bytes], answers: _Answers
    ) -> None:
        """Send each request as it comes. What `requests` raises, the reader of the stream gets."""
        try:
            first = True
            async for request in requests:
                if first:
                    await self._call(number, path, metadata, request)
                else:
                    await self._line.send(Message.of(messages.DATA, number, request))
                first = False
            await self._line.send(Message(messages.END, number))
        except Exception as error:
            answers.fail(error)

    async def _call(self, number: int, path: str, metadata: Pairs, request: bytes) -> None:
        pairs = (line_pb2.LineMetadata(key=key, value=value) for key, value in metadata)
        called = line_pb2.LineCall(path=path, metadata=pairs, request=request)
        await self._line.send(Message.of(messages.CALL, number, called.SerializeToString()))

    @contextlib.contextmanager
    def _begun(self, path: str) -> Iterator[tuple[int, _Answers]]:
        """Around a call: its number and answers. The other side hears where nobody waits any more."""
        number, answers = next(self._numbers), _Answers()
        self._calls[number] = answers
        try:
            yield number, answers
        except (LineLost, OSError) as error:  # no OSError but of memory for a request: the next may have it
            raise PeerError(f"{self._who}: UNAVAILABLE: {error}") from None
        except WireError as error:
            raise PeerError(f"{self._who}: {path}: {error}") from None
        finally:
            del self._calls[number]
            if not answers.over:
                self._line.post(Message(messages.CANCEL, number))

    @contextlib.asynccontextmanager
    async def _within(self, timeout_s: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except TimeoutError:
            raise PeerError(f"{self._who}: DEADLINE_EXCEEDED: no answer in {timeout_s:g} s") from None

    def _heard(self, message: Message) -> None:
        answers = self._calls.get(message.call)
        if answers is None:
            return  # it was given up
        if message.kind != messages.FAIL:
            answers.put(message)
            return
        status = line_pb2.LineStatus.FromString(message.body)
        answers.fail(error_of(status.error, status.text, status.code, self._who))

    def _ended(self) -> None:
        for answers in self._calls.values():
            answers.fail(LineLost("the line has ended"))


class _Answers:
    """What came for a call and was not taken yet. `over`: its last message has come."""

    def __init__(self) -> None:
        self.over = False
        self._came: deque[Message] = deque()
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, message: Message) -> None:
        self.over = self.over or message.last or message.kind == messages.END
        self._came.append(message)
        self._wake()

    def fail(self, error: Exception) -> None:
        self.over, self._error = True, self._error or error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> Message:
        """Raises what ended the call, when all that came before is taken."""
        while not self._came:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._came.popleft()
