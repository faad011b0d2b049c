"""A slow link on one machine: a proxy that lets so many bytes a second through, from a service to clients."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

_PIECE = 16 * 1024
_BUFFER = 64 * 1024  # of sockets: what lies in them has not been through


class SlowLink:
    """`address` leads to a service, from which `num_bytes` came so far: at `bytes_per_s`, together."""

    def __init__(self, target: str, bytes_per_s: float) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0  # when the link has sent what was given to it
        self._lock = threading.Lock()
        self.num_bytes = 0
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._begin(self._accept)

    def _begin(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                service = socket.create_connection(self._target)
                for end in (client, service):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
                    self._open.append(end)
                self._begin(self._carry, client, service, False)
                self._begin(self._carry, service, client, True)

    def _carry(self, source: socket.socket, sink: socket.socket, slow: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_PIECE):
                if slow:
                    self._wait(len(data))
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _wait(self, num_bytes: int) -> None:
        with self._lock:
            self.num_bytes += num_bytes
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + num_bytes / self._bytes_per_s
            pause = self._free_at - now
        time.sleep(pause)  # the link itself, not a wait for something

    def close(self) -> None:
        """End all connections and threads."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for end in self._open:
            end.close()


@contextlib.contextmanager
def slow_link(target: str, bytes_per_s: float) -> Iterator[SlowLink]:
    """One for as long as it is needed."""
    link = SlowLink(target, bytes_per_s)
    try:
        yield link
    finally:
        link.close()
