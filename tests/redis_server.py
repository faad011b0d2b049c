"""A real redis-server on a free loopback port, with the settings that docs/store.md asks for."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

START_S = 20.0
NAME = "redis-server"
needs_redis = pytest.mark.skipif(
    shutil.which(NAME) is None, reason="redis-server is not installed: apt-get install redis-server"
)


def free_port() -> int:
    """A port of the loopback address that nobody has just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RedisServer:
    """One server; `start` again after `kill` continues with the same files on the same port.

    options   further lines of its configuration, `name value`
    """

    def __init__(self, folder: Path, *options: str, port: int | None = None) -> None:
        self.folder = folder
        self.port = port or free_port()
        self.lines = [
            "bind 127.0.0.1",
            "daemonize no",
            "save ''",
            "appendonly yes",
            "appendfsync always",
            "repl-diskless-sync-delay 0",
            f"dir {folder}",
            f"logfile {folder}/redis.log",
            f"port {self.port}",
            *options,
        ]
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, job: str) -> str:
        """What a user writes after `store:`."""
        return f"redis://{self.address}/0?job={job}"

    def client(self, **options: object) -> redis.Redis:
        """A connection for the test's own questions."""
        return redis.Redis(port=self.port, **options)  # type: ignore[arg-type]

    def start(self, *arguments: str) -> None:
        """Start it and wait until it answers."""
        config = self.folder / "redis.conf"
        if not config.exists():  # a sentinel and a cluster's node write to theirs
            config.write_text("\n".join(self.lines) + "\n")
        self._process = subprocess.Popen([NAME, str(config), *arguments], stdout=subprocess.DEVNULL)
        self.wait()

    def wait(self) -> None:
        """Until it answers a PING and has loaded its files; be it that it wants a password first."""
        assert self._process is not None
        until = time.monotonic() + START_S
        while time.monotonic() < until and self._process.poll() is None:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), 1.0) as probe,
            ):
                probe.sendall(b"PING\r\n")
                if probe.recv(100).startswith((b"+PONG", b"-NOAUTH")):
                    return
            time.sleep(0.02)  # outside of the service, nothing says when a server is ready
        raise AssertionError(f"{NAME} does not answer: {(self.folder / 'redis.log').read_text()[-2000:]}")

    def kill(self) -> None:
        """SIGKILL, and fine where it doesn't run: every write is on disk."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def redis_server(folder: Path, *options: str) -> Iterator[RedisServer]:
    """A server that runs; killed at the end."""
    server = RedisServer(folder, *options)
    server.start()
    try:
        yield server
    finally:
        server.kill()
