"""What a call that failed means to a trainer, and how often it is made again.

Over gRPC and over lines a service's errors come with its own class and text, and are raised as their
counterparts; what is only "not there now" is Retryable. `transport.py` makes the calls.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc

from dataloader_client import methods
from dataloader_client.direct import CallFailed, NoAnswer
from dataloader_client.errors import (
    AccessDeniedError,
    DataServiceError,
    DataStoppedError,
    MeshMismatchError,
    MixtureError,
    ServiceUnavailableError,
    SessionSupersededError,
    StateMismatchError,
    VersionMismatchError,
    WireError,
)
from dataloader_client.line import LineLost

Result = TypeVar("Result")

BY_NAME: dict[str, type[DataServiceError]] = {
    "AccessDenied": AccessDeniedError,
    "MeshError": MeshMismatchError,
    "StateError": StateMismatchError,
    "MixtureError": MixtureError,
    "VersionError": VersionMismatchError,
    "SessionSuperseded": SessionSupersededError,
}

RETRYABLE_NAMES = frozenset({"PeerError", "Overloaded", "NotLeader"})
_RETRYABLE_CODES = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})

_NO_ANSWER = "{} took the call and gave no answer in time"
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.05, 2.0


class Retryable(Exception):
    """Not there now; `str` says what was heard."""


class Untrusted(Retryable):
    """The TLS handshake failed: final at first contact; later, certificates may just be changing."""


class Closed(Exception):
    """The transport was closed while somebody waited."""


@contextlib.contextmanager
def translated(where: str, stop: threading.Event) -> Iterator[None]:
    """Errors of gRPC and of lines as ours or Retryable; any at all as Closed once `stop` is set."""
    try:
        yield
    except (CallFailed, NoAnswer, LineLost) as error:
        if stop.is_set():
            raise Closed from None
        if isinstance(error, LineLost):
            raise Retryable(f"{where}: {error}") from None
        if isinstance(error, NoAnswer):
            raise Retryable(_NO_ANSWER.format(where)) from None
        raise meaning_of(error.error, grpc.StatusCode[error.code], error.text, where) from None
    except grpc.RpcError as error:
        if stop.is_set():
            raise Closed from None
        raise error_of(error, where) from None
    except ValueError as error:  # gRPC's word for a closed channel
        if stop.is_set():
            raise Closed from None
        raise Retryable(str(error)) from None


def retrying(
    attempt: Callable[[float], Result], timeout_s: float, stop: threading.Event, what: str
) -> Result:
    """The first attempt that is not Retryable; each is given the seconds left of `timeout_s`."""
    until = time.monotonic() + timeout_s
    pause = _FIRST_PAUSE_S
    while True:
        try:
            return attempt(max(until - time.monotonic(), _FIRST_PAUSE_S))
        except Retryable as problem:
            left = until - time.monotonic()
            if left <= 0:
                raise ServiceUnavailableError(
                    f"{what}, for {timeout_s:g} s now (last heard: {problem}). Does `dataloader-svc serve` "
                    "run, is this the address that it printed, and what does its log say?"
                ) from None
            if stop.wait(min(pause, left)):
                raise Closed from None
            pause = min(2 * pause, _LAST_PAUSE_S)


def error_of(error: grpc.RpcError, where: str) -> Exception:
    """What a failed call means to a trainer: one of our errors, or Retryable."""
    assert isinstance(error, grpc.Call)
    metadata: Any = error.trailing_metadata() or ()
    name = next((str(value) for key, value in metadata if key == methods.ERROR_KEY), "")
    return meaning_of(name, error.code(), error.details() or "", where)


def meaning_of(name: str, code: grpc.StatusCode, text: str, where: str) -> Exception:
    """The same of a status: the service's class of error or "", code and text."""
    if not name and (refused := _handshake(text)):
        return Untrusted(f"{where}: {refused}")
    if name in RETRYABLE_NAMES or (not name and code in _RETRYABLE_CODES):
        if "failed to connect" in text and "Socket closed" in text:
            text += " (so closes a service that wants TLS, or a certificate of the client: tls=)"
        return Retryable(text or code.name)
    if name:
        return BY_NAME.get(name, DataStoppedError)(text)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Retryable(_NO_ANSWER.format(where))
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return WireError(f"{where} is a gRPC server, but no dataloader-svc: check the address ({text})")
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return AccessDeniedError(f"{where} refuses this client: {text}")
    return DataStoppedError(f"{where} failed: {code.name}: {text}")


def _handshake(text: str) -> str:
    """What to do about a TLS handshake that failed, by gRPC's words for it; "" where none did."""
    if "CERTIFICATE_VERIFY_FAILED" in text:
        why = text.partition("CERTIFICATE_VERIFY_FAILED:")[2].strip().removesuffix(": OK")
        return f"its certificate is not accepted ({why}): check ca= of tls=, and that it has not expired"
    if "Hostname Verification" in text or "Peer name" in text:
        return f"its certificate has another name: connect by that, or give it as name= of tls= ({text})"
    if "WRONG_VERSION_NUMBER" in text:
        return "it does not speak TLS: leave tls= out, or check the address"
    return ""
