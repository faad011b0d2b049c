"""An S3 server on loopback, and a proxy before it that counts requests and lets them fail on demand.

The server is moto's; the proxy is of the standard library, so that what is counted and what is broken is
decided by code that shares nothing with the clients under test.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

BUCKET = "shards"
AUTHORIZATION = (
    "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
)
"""Moto looks for the service in it, and checks nothing."""


@dataclass(frozen=True)
class Request:
    """One that the proxy saw. `sent`: bytes of body, 0 with a fault."""

    method: str
    path: str
    range: str | None
    sent: int


Fault = Callable[["_Handler", bytes, http.client.HTTPResponse], None]
"""Answers in place of the proxy, given the real body and head."""


@dataclass
class Store:
    """A running server. `url`: the proxy's; `direct`: around it."""

    url: str
    direct: str
    requests: list[Request] = field(default_factory=list)
    faults: list[tuple[Callable[[str, str], bool], Fault]] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def upload(self, folder: Path, prefix: str = "") -> str:
        """Put every file below the folder into the bucket; `s3://bucket/prefix`."""
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            self.put(f"{prefix}{file.relative_to(folder)}", file.read_bytes())
        return f"s3://{BUCKET}/{prefix}".rstrip("/")

    def put(self, key: str, data: bytes) -> None:
        self._direct("PUT", f"/{BUCKET}/{key}", data)

    def fail(self, fault: Fault, *, times: int = 1, method: str = "GET", part: str = "") -> None:
        """The next `times` requests of this method, with `part` in their path, get this fault."""
        wanted = lambda found, path: found == method and part in path  # noqa: E731
        self.faults += [(wanted, fault)] * times

    def fault_for(self, method: str, path: str) -> Fault | None:
        for number, (wanted, fault) in enumerate(self.faults):
            if wanted(method, path):
                del self.faults[number]
                return fault
        return None

    def gets(self, part: str) -> list[Request]:
        return [request for request in self.requests if request.method == "GET" and part in request.path]

    def _direct(self, method: str, path: str, body: bytes = b"") -> None:
        host = self.direct.removeprefix("http://")
        with contextlib.closing(http.client.HTTPConnection(host, timeout=30)) as connection:
            headers = {"Authorization": AUTHORIZATION, "x-amz-acl": "public-read"}
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, (method, path, answer.status)


def error(status: int, code: str, message: str) -> Fault:
    """S3's own answer to a request that it can't or won't serve."""

    def answer(handler: _Handler, _body: bytes, _real: http.client.HTTPResponse) -> None:
        text = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
        handler.send_response(status)
        handler.send_header("Content-Type", "application/xml")
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(text)

    return answer


def truncated(handler: _Handler, body: bytes, real: http.client.HTTPResponse) -> None:
    """Half of the body, then the connection ends."""
    handler.head_of(real)
    handler.wfile.write(body[: len(body) // 2])
    handler.close_connection = True


def hanging(handler: _Handler, body: bytes, real: http.client.HTTPResponse) -> None:
    """A few bytes of the body, then nothing until the test ends."""
    handler.head_of(real)
    handler.wfile.write(body[:10])
    handler.wfile.flush()
    handler.store.released.wait()
    handler.close_connection = True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: Store

    def head_of(self, real: http.client.HTTPResponse) -> None:
        self.send_response_only(real.status)
        for name, value in real.getheaders():
            if name.lower() not in ("connection", "transfer-encoding"):
                self.send_header(name, value)
        self.end_headers()

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.store.fault_for(self.command, self.path)
        host = self.store.direct.removeprefix("http://")
        with contextlib.closing(http.client.HTTPConnection(host, timeout=30)) as connection:
            connection.request(self.command, self.path, body, dict(self.headers.items()))
            real = connection.getresponse()
            data = real.read()
            sent = 0 if fault is not None else len(data)
            # before the client has it, and goes on
            self.store.requests.append(Request(self.command, self.path, self.headers.get("Range"), sent))
            try:
                if fault is not None:
                    fault(self, data, real)
                else:
                    self.head_of(real)
                    self.wfile.write(data)
            except ConnectionError:  # the client has gone
                self.close_connection = True

    do_GET = do_HEAD = do_PUT = do_POST = _serve  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def object_store() -> Iterator[Store]:
    """A server with an empty bucket, behind a proxy."""
    from moto.server import ThreadedMotoServer

    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    _, port = moto.get_host_and_port()
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    proxy.daemon_threads = True
    store = Store(f"http://127.0.0.1:{proxy.server_port}", f"http://127.0.0.1:{port}")
    _Handler.store = store
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        store._direct("PUT", f"/{BUCKET}")
        yield store
    finally:
        store.released.set()
        proxy.shutdown()
        thread.join()
        proxy.server_close()
        moto.stop()
