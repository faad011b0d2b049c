"""Who may call a server, and how much at once: decided on a call's metadata, before its body is taken in.

`Guard` is asked by `servicers.py` when nothing but the head of a call has arrived (16 KiB at most): what it
refuses costs a status. It knows tokens, the job's name and a number of calls; not what the calls do.
`ServerTls` makes a listening port's credentials, whose files are read again when they change.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import grpc

from dataloader_client.credentials import AUTHORIZATION, JOB, read_authorities, read_pair, read_tokens
from dataloader_client.errors import DataServiceError
from dataloader_svc.clock import Clock, SystemClock
from dataloader_svc.config.schema.security import SHORTEST_TOKEN
from dataloader_svc.errors import AccessDenied, ConfigError, Overloaded, StateError

log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 1.0
_SAY_AGAIN_S = 10.0

Pairs = Iterable[tuple[str, str | bytes]]
FileState = tuple[tuple[int, int, int], ...]


class Tokens:
    """The tokens that are accepted: one, or those of a file, which is looked at again every second.

    A file that can't be read any more leaves what was read last. ConfigError where it can't at first.
    """

    def __init__(
        self, token: str | None = None, *, file: Path | None = None, clock: Clock | None = None
    ) -> None:
        assert (token is None) != (file is None), "one of them"
        self._file, self._clock = file, clock or SystemClock()
        self._looked = self._clock.monotonic()
        self._state: FileState = ()
        self._digests: list[bytes] = []
        if token is not None:
            self._digests = [_digest(f"Bearer {token}")]
        elif (problem := self._read()) is not None:
            raise ConfigError(problem)

    def allow(self, header: str) -> bool:
        """Whether an `authorization` is one of them. Takes as long whichever it is, and however near."""
        self._look()
        given = _digest(header)
        same = [hmac.compare_digest(given, digest) for digest in self._digests]
        return any(same)

    def _look(self) -> None:
        now = self._clock.monotonic()
        if self._file is None or now - self._looked < _LOOK_AGAIN_S:
            return
        self._looked = now
        if _state_of([self._file]) != self._state and (problem := self._read()) is not None:
            log.warning("%s; the tokens of before are still accepted", problem)

    def _read(self) -> str | None:
        assert self._file is not None
        self._state = _state_of([self._file])
        try:
            tokens = read_tokens(self._file)
        except DataServiceError as error:
            return str(error)
        if any(len(token) < SHORTEST_TOKEN for token in tokens):
            return (
                f"token file {self._file}: a token has at least {SHORTEST_TOKEN} letters; for one that "
                "can't be guessed: openssl rand -hex 32"
            )
        self._digests = [_digest(f"Bearer {token}") for token in tokens]
        return None


class Guard:
    """Lets calls in. `tokens`: None, anybody. `job`: the name that a call may be for."""

    def __init__(
        self,
        tokens: Tokens | None = None,
        *,
        job: str | None = None,
        max_calls: int = 1 << 20,
        clock: Clock | None = None,
    ) -> None:
        self._tokens, self._job, self._max_calls = tokens, job, max_calls
        self._clock = clock or SystemClock()
        self._calls = 0
        self._refused = 0
        self._said = -_SAY_AGAIN_S

    @contextmanager
    def call(self, metadata: Pairs, peer: Callable[[], str]) -> Iterator[None]:
        """Around a call. Raises AccessDenied, StateError (another job's) or Overloaded."""
        given = [(key, value) for key, value in metadata if key in (AUTHORIZATION, JOB)]
        if self._tokens is not None:
            self._check_token([value for key, value in given if key == AUTHORIZATION], peer)
        for key, value in given:
            if key == JOB and self._job is not None and value != self._job:
                name = unquote(str(value))
                raise StateError(f"this service serves job {self._job!r}, not {name!r}: check the address")
        if self._calls >= self._max_calls:
            raise Overloaded(f"{self._calls} calls are open, as many as security.max_calls allows")
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1

    def _check_token(self, given: Sequence[str | bytes], peer: Callable[[], str]) -> None:
        assert self._tokens is not None
        if len(given) == 1 and isinstance(given[0], str) and self._tokens.allow(given[0]):
            return
        self._refused += 1
        now = self._clock.monotonic()
        if now - self._said >= _SAY_AGAIN_S:  # whoever tries many does not fill the log
            log.warning("refused %d calls without the right token, the last from %s", self._refused, peer())
            self._said, self._refused = now, 0
        if not given:
            raise AccessDenied(
                "this service asks for a token: give DataServiceLoader token=, or set DATALOADER_TOKEN or "
                "DATALOADER_TOKEN_FILE"
            )
        raise AccessDenied(
            "the token is not this service's: check which service and which token it should be"
        )


@dataclass(frozen=True, slots=True)
class ServerTls:
    """A server's certificate and key; with `client_ca`, callers must have a certificate signed by it."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """For a port; files that change are read again at the next connection. ConfigError: no use."""
        files = [path for path in (self.certificate, self.key, self.client_ca) if path is not None]
        seen = _state_of(files)
        try:
            first = self._read()
        except DataServiceError as error:
            raise ConfigError(f"security.tls: {error}") from None

        def changed() -> grpc.ServerCertificateConfiguration | None:
            """In a thread of gRPC, at each handshake. What can't be used is left for what was before."""
            nonlocal seen
            now = _state_of(files)
            if now == seen:
                return None
            seen = now
            try:
                fresh = self._read()
            except DataServiceError as error:
                log.warning("%s; the certificate of before is still used", error)
                return None
            log.info("read the certificate %s again", self.certificate)
            return fresh

        # None means no change, which the types do not know.
        return grpc.dynamic_ssl_server_credentials(first, changed, self.client_ca is not None)  # type: ignore[arg-type]

    def _read(self) -> grpc.ServerCertificateConfiguration:
        certificate, key = read_pair(self.certificate, self.key)
        client_ca = None if self.client_ca is None else read_authorities(self.client_ca)
        return grpc.ssl_server_certificate_configuration([(key, certificate)], client_ca)


@dataclass(frozen=True, slots=True)
class Access:
    """How a server is reached.

    guard            who may call
    tls              None: plain
    max_connections  at a time; further ones are closed at once
    max_request      bytes of one message to the server
    """

    guard: Guard
    tls: ServerTls | None = None
    max_connections: int = 1 << 16
    max_request: int = 64 << 20

    def options(self) -> tuple[tuple[str, int], ...]:
        """For gRPC."""
        return (
            ("grpc.max_receive_message_length", self.max_request),
            ("grpc.max_allowed_incoming_connections", self.max_connections),
            ("grpc.server_handshake_timeout_ms", 10_000),
            ("grpc.max_metadata_size", 8 << 10),
            ("grpc.absolute_max_metadata_size", 16 << 10),
        )


def _digest(text: str) -> bytes:
    """Of a length that tells nothing."""
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape")).digest()


def _state_of(files: Sequence[Path]) -> FileState:
    """By which a change shows; zeros for what isn't there."""
    found = []
    for path in files:
        try:
            state = path.stat()  # follows links, as mounted secrets are
            found.append((state.st_ino, state.st_mtime_ns, state.st_size))
        except OSError:
            found.append((0, 0, 0))
    return tuple(found)
