"""Who a caller says it is, and how it knows whom it talks to: a token, TLS, the name of the job.

Read from arguments or, where none is given, from the environment. Files are read when they are used: the
token's for every call, so that it may be changed while a trainer runs; certificates for every channel. A
secret is in no `repr`, no error and no log. `docs/security.md` says what all this defends against.
"""

from __future__ import annotations

import os
import ssl
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, Self

import grpc

from dataloader_client.errors import DataServiceError

AUTHORIZATION = "authorization"
"""Metadata of every call: `Bearer TOKEN`."""

JOB = "dataloader-job"
"""Metadata of every call: the job that the caller means. A service of another refuses it."""

TOKEN_VARIABLE, TOKEN_FILE_VARIABLE = "DATALOADER_TOKEN", "DATALOADER_TOKEN_FILE"
_TLS_VARIABLES = {
    "ca": "DATALOADER_TLS_CA",
    "certificate": "DATALOADER_TLS_CERTIFICATE",
    "key": "DATALOADER_TLS_KEY",
    "name": "DATALOADER_TLS_NAME",
}
TLS_VARIABLE = "DATALOADER_TLS"
"""`1`: TLS, the service's certificate being signed by an authority that everybody knows."""

Options = tuple[tuple[str, int | str], ...]


@dataclass(frozen=True, slots=True)
class TLS:
    """How a channel is encrypted. Paths of PEM files.

    ca           authorities that may have signed the service's certificate; default: those everybody knows
    certificate  this trainer's own, where the service asks for one (mutual TLS), with its `key`
    name         the name that the service's certificate must have; default: the address's host
    """

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None
    name: str | None = None

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Reads the files. Raises DataServiceError that names one that can't be used."""
        ca = None if self.ca is None else read_authorities(self.ca)
        if self.certificate is None and self.key is None:
            return grpc.ssl_channel_credentials(ca)
        if self.certificate is None or self.key is None:
            raise DataServiceError("TLS: certificate and key go together; one of them is missing")
        certificate, key = read_pair(self.certificate, self.key)
        return grpc.ssl_channel_credentials(ca, key, certificate)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a caller shows, and asks to see. None of it: a plain connection, as on one machine."""

    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    tls: TLS | None = None

    @classmethod
    def of(
        cls,
        token: str | None = None,
        tls: TLS | str | os.PathLike[str] | bool | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Self:
        """Arguments as `DataServiceLoader` takes them, each from the environment where it is not given.

        tls   a TLS; a path: TLS(ca=path); True: TLS(); False: none, whatever the environment says
        """
        environ = os.environ if environ is None else environ
        file = None
        if token is None:
            token = environ.get(TOKEN_VARIABLE) or None
            named = environ.get(TOKEN_FILE_VARIABLE)
            file = Path(named) if named and token is None else None
        if token is not None:
            _bearer(token, "the token")  # what can't be sent is refused here, not at the first call
        if tls is None:
            tls = _tls_from(environ)
        elif isinstance(tls, bool):
            tls = TLS() if tls else None
        elif not isinstance(tls, TLS):
            tls = TLS(ca=Path(tls))
        return cls(token, file, tls)

    def metadata(self, job: str) -> tuple[tuple[str, str], ...]:
        """Of a call to the service of `job`; "": of any. Reads the token's file."""
        named = ((JOB, urllib.parse.quote(job, safe="")),) if job else ()
        if self.token is not None:
            return (*named, (AUTHORIZATION, _bearer(self.token, "the token")))
        if self.token_file is not None:
            tokens = read_tokens(self.token_file)
            return (*named, (AUTHORIZATION, _bearer(tokens[0], str(self.token_file))))
        return named

    def channel(self, address: str, options: Options) -> grpc.Channel:
        """To `address`, for blocking calls."""
        if self.tls is None:
            return grpc.insecure_channel(address, options=options)
        return grpc.secure_channel(address, self.tls.channel_credentials(), options=self._named(options))

    def aio_channel(self, address: str, options: Options) -> grpc.aio.Channel:
        """To `address`, for asyncio."""
        if self.tls is None:
            return grpc.aio.insecure_channel(address, options=options)
        return grpc.aio.secure_channel(address, self.tls.channel_credentials(), options=self._named(options))

    def _named(self, options: Options) -> Options:
        if self.tls is None or self.tls.name is None:
            return options
        return (*options, ("grpc.ssl_target_name_override", self.tls.name))


def read_tokens(path: str | Path) -> list[str]:
    """The tokens in a file, a line each; empty lines and those that begin with # are passed over.

    More than one serve a change: the service accepts all of them, a client sends the first. Raises
    DataServiceError that names the file, never what is in it.
    """
    text = _read(path, "token file").decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines()]
    tokens = [line for line in lines if line and not line.startswith("#")]
    if not tokens:
        raise DataServiceError(f"token file {path}: there is no token in it; write one on a line of its own")
    for token in tokens:
        _bearer(token, f"token file {path}")
    return tokens


def read_authorities(path: str | Path) -> bytes:
    """PEM certificates that are trusted, checked to be some. DataServiceError names the file."""
    data = _read(path, "certificates")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=data.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise DataServiceError(f"certificates {path}: holds no PEM certificate") from None
    return data


def read_pair(certificate: str | Path, key: str | Path) -> tuple[bytes, bytes]:
    """A PEM certificate (its chain behind it) and its key, checked to belong together.

    Raises DataServiceError that names the files.
    """
    data = _read(certificate, "certificate"), _read(key, "key")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, _no_password)
    except (ssl.SSLError, ValueError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise DataServiceError(
            f"certificate {certificate} and key {key} can't be used together: {reason}"
        ) from None
    return data


def _no_password() -> NoReturn:
    """Else OpenSSL would ask for one at the terminal."""
    raise ValueError("the key is encrypted: write it without a password, readable by its owner alone")


def _read(path: str | Path, what: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise DataServiceError(f"{what} {path}: can't be read: {error.strerror}") from None


def _bearer(token: str, where: str) -> str:
    if not token or not all("!" <= letter <= "~" for letter in token):
        raise DataServiceError(f"{where}: a token is made of printable ASCII letters without spaces")
    return f"Bearer {token}"


def _tls_from(environ: Mapping[str, str]) -> TLS | None:
    given = {name: environ[variable] for name, variable in _TLS_VARIABLES.items() if environ.get(variable)}
    wanted = environ.get(TLS_VARIABLE, "")
    if wanted not in ("", "0", "1"):
        raise DataServiceError(f"{TLS_VARIABLE} is {wanted!r}: 1 asks for TLS, 0 or nothing does not")
    return TLS(**given) if (given or wanted == "1") and wanted != "0" else None
