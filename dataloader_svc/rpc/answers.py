"""What is served, and how a call ends: the same for gRPC (`servicers.py`) and for lines (`line_server.py`).

A handler object a service, its methods named after the RPCs in snake case. Handlers are coroutines
`(request) -> response`; for raw streams they return a `Frame`, or are async generators that yield one and are
resumed when all of it has been sent (closed, when it could not be); for bidirectional streams they are async
generators over an async iterator of requests.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from dataloader_client import methods, wire
from dataloader_svc.errors import DataloaderError
from dataloader_svc.rpc.status import RoleName, code_of

log = logging.getLogger(__name__)

Method = methods.Unary[Any, Any] | methods.RawStream[Any] | methods.Bidirectional[Any, Any]

SERVICES: dict[str, tuple[Method, ...]] = {
    methods.CONSTRUCTOR: (
        methods.JOIN,
        methods.READ,
        methods.LEAVE,
        methods.REPORT,
        methods.CONSTRUCTOR_STATUS,
    ),
    methods.PLANNER: (
        methods.PLANNER_JOIN,
        methods.PLANS,
        methods.PLANNER_STATUS,
        methods.PLANNER_REPORT,
    ),
    methods.LOADER: (
        methods.DESCRIBE,
        methods.PROBE,
        methods.FETCH,
        methods.RELEASE,
        methods.LOADER_STATUS,
    ),
    methods.CONTROL: (
        methods.SET_MIXTURE,
        methods.SHOW_MIXTURE,
        methods.COMMIT,
        methods.REPORT_LOSSES,
    ),
}

MOST_TEXT = 6_000
"""Bytes of an error on the wire; above 8 KiB, gRPC's clients begin to drop them, and say something else."""


def handler_of(method: Method, handler: object) -> Any:
    """The function of a handler object that answers a method."""
    return getattr(handler, re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower())


class BadCall(Exception):
    """A call that is none, whatever it is for."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


async def frames_of(result: Awaitable[wire.Frame] | AsyncGenerator[wire.Frame]) -> AsyncGenerator[wire.Frame]:
    """The frame of either kind of raw-stream handler."""
    if not isinstance(result, AsyncGenerator):
        yield await result
        return
    async with aclosing(result):
        async for frame in result:
            yield frame


@dataclass(frozen=True, slots=True)
class Failure:
    """How a call ends that was not answered. `error`: the class of ours, if it is one."""

    code: grpc.StatusCode
    text: str
    error: str = ""

    @classmethod
    def of(cls, error: Exception, method: Method, role: RoleName) -> Failure:
        """Only what is not ours is logged with its traceback."""
        if isinstance(error, BadCall):
            return cls(error.code, f"{method.path}: {error}")
        if isinstance(error, DecodeError):
            return cls(grpc.StatusCode.INVALID_ARGUMENT, f"{method.path}: request can't be parsed")
        if not isinstance(error, DataloaderError):
            log.error("%s failed", method.path, exc_info=error)
            error = role.mistake(f"in {method.name}", error)
        text = shortened("\n".join([str(error), *getattr(error, "__notes__", ())]))
        return cls(code_of(error), text, type(error).__name__)


def shortened(text: str) -> str:
    """`text`, without its middle where it is too long for a status, in which odd bytes take three.

    What isn't Unicode, as names of files may be, is spelled out: gRPC would never answer.
    """
    text = text.encode("utf-8", "backslashreplace").decode()
    sizes = [1 if " " <= letter <= "~" and letter != "%" else 3 * len(letter.encode()) for letter in text]
    if sum(sizes) <= MOST_TEXT:
        return text
    left, right = _fitting(sizes), _fitting(sizes[::-1])
    return f"{text[:left]} [...] {text[len(text) - right :]}"


def _fitting(sizes: Sequence[int]) -> int:
    """How many fit into almost half of MOST_TEXT."""
    ends = itertools.accumulate(sizes)
    return sum(1 for _ in itertools.takewhile(lambda end: end < MOST_TEXT // 2 - 10, ends))
