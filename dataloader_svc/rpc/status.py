"""Our errors <-> gRPC status, both ways; the only file that translates.

A status carries the error's class name in trailing metadata (`methods.ERROR_KEY`), so that the other side
raises the same class with the same text. What is not ours becomes RoleFailed, in the words of
`RoleName.mistake`, and is logged where it happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from dataloader_client.methods import ERROR_KEY
from dataloader_svc import errors
from dataloader_svc.errors import DataloaderError, RoleFailed


@dataclass(slots=True)
class RoleName:
    """A role as errors name it: `constructor-0`, and its log where it has one. A shadow gets another."""

    name: str
    log: Path | None = None

    def mistake(self, doing: str, error: BaseException) -> RoleFailed:
        """What is told of an exception that nobody raised on purpose, to whoever must stop for it."""
        log = "its log" if self.log is None else f"its log, {self.log},"
        return RoleFailed(
            f"{self.name} failed {doing}: {type(error).__name__}: {error}. This is a mistake of the service, "
            f"not of the data or of the trainer; {log} has the traceback. Nothing is lost: start the "
            "trainers again from their last state_dict. If it comes again at the same place, restart "
            "`dataloader-svc serve`; if it still does, report it with that log"
        )


_CODES: dict[type[DataloaderError], grpc.StatusCode] = {
    errors.MeshError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.SessionSuperseded: grpc.StatusCode.FAILED_PRECONDITION,
    errors.StateError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.AccessDenied: grpc.StatusCode.UNAUTHENTICATED,
    errors.VersionError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.PeerError: grpc.StatusCode.UNAVAILABLE,
    errors.NotLeader: grpc.StatusCode.UNAVAILABLE,
    errors.RoleFailed: grpc.StatusCode.INTERNAL,
    errors.StoreError: grpc.StatusCode.DATA_LOSS,
    errors.DataError: grpc.StatusCode.DATA_LOSS,
}

_BY_NAME: dict[str, type[DataloaderError]] = {
    cls.__name__: cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, DataloaderError)
}


def code_of(error: DataloaderError) -> grpc.StatusCode:
    """The status code of an error, by its nearest class in the table."""
    for cls in type(error).__mro__:
        if cls in _CODES:
            return _CODES[cls]
    return grpc.StatusCode.UNKNOWN


def from_rpc(error: grpc.RpcError | grpc.aio.AioRpcError, peer: str) -> DataloaderError:
    """The error that the other side raised, or a PeerError that names `peer` where it raised none of ours."""
    metadata: Any = error.trailing_metadata() or ()  # the stubs do not know that it iterates as pairs
    name = next((str(value) for key, value in metadata if key == ERROR_KEY), "")
    return error_of(name, error.details() or "", error.code().name, peer)


def error_of(name: str, text: str, code: str, peer: str) -> DataloaderError:
    """The same of a status as it stands on a line: class of ours or "", text, name of gRPC's code."""
    cls, text = _BY_NAME.get(name), text or code
    if cls is None or cls in (errors.ConfigProblems, errors.BadSample, errors.AccessDenied):
        return errors.PeerError(f"{peer}: {code}: {text}")
    return cls(text)
