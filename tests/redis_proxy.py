"""A proxy in front of Redis that loses, delays and repeats what clients say, drawn by a seed."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from dataloader_svc.sample import keyed_rng

FATES = ("passes", "request lost", "answer lost", "sent twice", "again later")


@dataclass
class RedisProxy:
    """Forwards to `port`; `address` is its own. `fates` counts what became of requests.

    chances   fate -> probability of it; the rest passes
    """

    port: int
    chances: Mapping[str, float]
    seed: int = 0
    fates: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._rng = keyed_rng(self.seed, "redis proxy")
        self._lock = threading.Lock()
        self._held: list[bytes] = []
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.getsockname()[1]}"

    def close(self) -> None:
        """End all connections and threads."""
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self.port)) as server:
            with self._lock:
                self._open |= {client, server}
            with contextlib.suppress(OSError):
                for request in _requests(client):
                    if not self._pass_on(request, client, server):
                        break
            with self._lock:
                self._open -= {client, server}

    def _pass_on(self, request: bytes, client: socket.socket, server: socket.socket) -> bool:
        """Whether the connection lives on."""
        with self._lock:
            fate = self._fate(request)
            self.fates[fate] += 1
            late, self._held = self._held, []
            if fate == "again later":
                self._held.append(request)
        if fate == "request lost":
            return False
        if fate == "sent twice":
            self._send_aside(request)
        server.sendall(request)
        answer = server.recv(2**20)
        if fate == "answer lost" or not answer:
            return False
        client.sendall(answer)
        # Whatever is left of a long answer: it ends before the client may speak again.
        server.settimeout(0.02)
        with contextlib.suppress(TimeoutError):
            while len(answer) >= 2**14:
                answer = server.recv(2**20)
                client.sendall(answer)
        server.settimeout(None)
        for held in late:
            self._send_aside(held)
        return True

    def _fate(self, request: bytes) -> str:
        if b"EVAL" not in request[:20]:
            return "passes"
        names, weights = list(self.chances), np.array(list(self.chances.values()))
        at = int(np.searchsorted(np.cumsum(weights), self._rng.random(), side="right"))
        return names[at] if at < len(names) else "passes"

    def _send_aside(self, request: bytes) -> None:
        """Over a connection of its own, as one that a client gave up arrives."""
        with socket.create_connection(("127.0.0.1", self.port)) as aside:
            aside.sendall(request)
            aside.recv(2**16)


def _requests(client: socket.socket) -> Iterator[bytes]:
    """Whole requests (arrays of bulk strings) of a connection, until it ends."""
    data = bytearray()
    while True:
        end = _request_end(data)
        if end:
            yield bytes(data[:end])
            del data[:end]
        elif part := client.recv(2**20):
            data += part
        else:
            return


def _request_end(data: bytearray) -> int:
    """Length of the first request, 0 where it isn't all there."""
    at = data.find(b"\r\n") + 2
    if at < 2:
        return 0
    for _ in range(int(data[1 : at - 2])):
        line = data.find(b"\r\n", at)
        if line < 0:
            return 0
        at = line + 2 + int(data[at + 1 : line]) + 2
    return at if at <= len(data) else 0


@contextlib.contextmanager
def redis_proxy(port: int, chances: Mapping[str, float], *, seed: int = 0) -> Iterator[RedisProxy]:
    """One that runs; closed at the end."""
    assert set(chances) <= set(FATES)
    proxy = RedisProxy(port, chances, seed)
    try:
        yield proxy
    finally:
        proxy.close()
