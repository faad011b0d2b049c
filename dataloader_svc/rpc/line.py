"""An end of a line on an event loop: messages out, in order and without blocking it, and in as they come.

What the messages are: `dataloader_client/line.py`. Who calls and who answers: `line_peer.py` and
`line_server.py`. An end that has been silent for too long is given up, so that a process that stands still is
noticed as one that died is: whoever calls pings, and who is called hears that.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable

from dataloader_client.errors import WireError
from dataloader_client.line import PING, PONG, LineLost, Message, Receiver

SILENCE_S = 20.0
"""Between two looks at an end that nothing is asked of, as gRPC's keepalive has it."""

PATIENCE_S = 10.0
"""For the answer to a ping, and between two pings while a call is open."""

_AT_ONCE = 64  # messages taken in before others on the loop have their turn


class Line:
    """A connected socket. Belongs to one event loop.

    heard   is given each message but pings, in order; what it raises as LineLost or WireError ends the line
    ended   is called once, when the line is over, from whichever side
    most    bytes of memory that may come with a message
    pings   whether this end is the caller's
    busy    whether a call is open: only then silence means anything
    """

    def __init__(
        self,
        line: socket.socket,
        *,
        heard: Callable[[Message], None],
        ended: Callable[[], None],
        busy: Callable[[], bool],
        most: int,
        pings: bool,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._line, self._receiver = line, Receiver(line, most)
        self._heard, self._ended, self._busy = heard, ended, busy
        self._unsent: deque[tuple[Message, asyncio.Future[None]]] = deque()
        self.over = False
        self._pings = pings
        self._watched = False  # the other end has pinged: it does so while it waits for us
        self._asked = False  # a ping of ours, and nothing was heard since
        self._last = self._loop.time()
        line.setblocking(False)
        self._loop.add_reader(line, self._hear)
        self._timer = self._loop.call_later(SILENCE_S, self._look)
        if pings:
            self.post(Message(PING))

    async def send(self, message: Message) -> None:
        """Hand a message to the system; waits while the other end takes none. LineLost."""
        waiting = self._begin(message)
        if waiting is not None:
            await waiting

    def post(self, message: Message) -> None:
        """The same without waiting, and without hearing what became of it."""
        with contextlib.suppress(LineLost):
            self._begin(message)

    def _begin(self, message: Message) -> asyncio.Future[None] | None:
        if self.over:
            raise LineLost("the line is over")
        if not self._unsent:
            if self._send(message):
                return None
            self._loop.add_writer(self._line, self._flush)
        done = self._loop.create_future()
        self._unsent.append((message, done))
        return done

    def _send(self, message: Message) -> bool:
        """False: there is no room now. LineLost."""
        try:
            message.send(self._line)
        except BlockingIOError:
            return False
        except OSError as error:
            self.end()
            raise LineLost(str(error)) from None
        if message.memory is not None:
            message.memory.close()
        return True

    def _flush(self) -> None:
        with contextlib.suppress(LineLost):
            while self._unsent and self._send(self._unsent[0][0]):
                _, done = self._unsent.popleft()
                if not done.done():
                    done.set_result(None)
            if not self._unsent:
                self._loop.remove_writer(self._line)

    def _hear(self) -> None:
        self._last, self._asked = self._loop.time(), False
        try:
            for _ in range(_AT_ONCE):
                if self.over:
                    return
                self._take(self._receiver.receive())
        except BlockingIOError:
            return
        except (LineLost, WireError, OSError):
            self.end()

    def _take(self, message: Message) -> None:
        if message.kind == PING:
            self._watched = True
            self.post(Message(PONG))
        elif message.kind != PONG:
            self._heard(message)

    def _look(self) -> None:
        """At times: end it where nothing has come for too long."""
        wait = SILENCE_S
        if self._asked or (self._watched and not self._pings and self._silent > SILENCE_S + 2 * PATIENCE_S):
            self.end()
            return
        if self._pings and self._busy():
            self._asked, wait = True, PATIENCE_S
            self.post(Message(PING))
        self._timer = self._loop.call_later(wait, self._look)

    @property
    def _silent(self) -> float:
        """Seconds since anything was heard, while a call is open."""
        return self._loop.time() - self._last if self._busy() else 0.0

    def end(self) -> None:
        """Close it. Idempotent; who waits to send hears of it."""
        if self.over:
            return
        self.over = True
        self._timer.cancel()
        self._loop.remove_reader(self._line)
        self._loop.remove_writer(self._line)
        self._line.close()
        unsent, self._unsent = self._unsent, deque()
        for _, done in unsent:
            if not done.done():
                done.set_exception(LineLost("the line is over"))
                done.exception()  # seen: who waited may be gone
        self._ended()
