"""What is sent to the roles of a real service: valid requests, and by a seed what can be wrong with them.

Knows the messages and how to send them; not what an answer is worth (`rpc.py`).
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import grpc
import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from dataloader_client import methods
from dataloader_client._pb import (
    common_pb2,
    constructor_service_pb2,
    control_service_pb2,
    loader_service_pb2,
    plan_pb2,
    planner_service_pb2,
)
from dataloader_client.mesh import AXES
from dataloader_svc.rpc.servicers import SERVICES, Method
from tests.fuzz.mutate import mutated

WAIT_S = 2.0
"""For an answer: some reads wait for ever, as they should."""

Metadata = tuple[tuple[str, str], ...]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\x04\0\0\0\0\0"

INFINITY, NAN = float("inf"), float("nan")
NUMBERS = (0, 1, 2, 3, 7, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
DOUBLES = (0.0, -1.0, 1e-300, 1e308, INFINITY, -INFINITY, NAN)
TEXTS = ("", "notes", "tiny", "\0", "../../etc/passwd", "x" * 5000, "🙂" * 50, "${HOME}", "' OR 1=1 --")
LEAVES: tuple[Any, ...] = (
    None,
    -1,
    2**63,
    2**70,
    1e308,
    INFINITY,
    NAN,
    "",
    "x",
    [],
    {},
    [[]],
    True,
    "9" * 400,
)
ODD_JSON = ("", "{", "[" * 20_000, '{"version":1e999}', "9" * 5000, '{"version":1}', "null", "NaN", "[1,2]")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A role that listens, and what its callers show."""

    address: str
    service: str
    metadata: Metadata


@dataclass(frozen=True, slots=True)
class Case:
    """One call: of which RPC, and in which way it is wrong."""

    method: Method
    kind: str


CASES = tuple(
    Case(method, kind)
    for known in SERVICES.values()
    for method in known
    for kind in (
        *("noise", "mutated", "random", "odd", "wrong", "huge", "many"),
        *("silent", "replay", "stranger", "cut"),
        *(("state",) if method.request is plan_pb2.JoinRequest else ()),
        *(("session",) if method is methods.JOIN else ()),
    )
)
"""Every RPC in every way."""


class Requests:
    """Requests of a session that has been joined: valid ones, of RPCs that are not known here random ones.

    None changes what the job delivers, which is held against what it was.
    """

    def __init__(self, join: plan_pb2.JoinResponse, rng: np.random.Generator) -> None:
        self._join, self._rng = join, rng

    def valid(self, method: Method) -> Message:
        rng, session = self._rng, self._join.session
        step, coords = int(rng.integers(4)), common_pb2.Coords()
        source = str(rng.choice(list(self._join.sources)))
        block = int(rng.integers(2))
        made: dict[type[Message], Callable[[], Message]] = {
            plan_pb2.JoinRequest: lambda: plan_pb2.JoinRequest(
                protocol=methods.PROTOCOL, job=self._join.job, mesh=common_pb2.Mesh(dp=1), coords=coords
            ),
            constructor_service_pb2.ReadRequest: lambda: constructor_service_pb2.ReadRequest(
                session=session, step=step, coords=coords
            ),
            constructor_service_pb2.LeaveRequest: lambda: constructor_service_pb2.LeaveRequest(
                session=session, coords=coords
            ),
            constructor_service_pb2.ReportRequest: lambda: constructor_service_pb2.ReportRequest(
                session=session, step=step, coords=coords, step_time=0.5, compute_time=0.25
            ),
            control_service_pb2.LossesRequest: lambda: control_service_pb2.LossesRequest(
                steps=[
                    control_service_pb2.StepLosses(
                        session=session, step=step, source=[0], loss=[2.0], targets=[1.0]
                    )
                ]
            ),
            planner_service_pb2.PlanDemand: lambda: planner_service_pb2.PlanDemand(
                session=session, from_step=step, up_to=step + 1, constructor="constructor-9"
            ),
            planner_service_pb2.StepTimes: lambda: planner_service_pb2.StepTimes(
                session=session, step=[step], dp_rank=[0], step_time=[0.5], compute_time=[0.25]
            ),
            loader_service_pb2.DescribeRequest: lambda: loader_service_pb2.DescribeRequest(source=source),
            loader_service_pb2.BlockRequest: lambda: loader_service_pb2.BlockRequest(
                source=source, block=block
            ),
            loader_service_pb2.FetchRequest: lambda: loader_service_pb2.FetchRequest(
                sources=[source], source=[0], epoch=[0], position=[0], block=[0], start=[0], length=[4]
            ),
            control_service_pb2.MixtureChange: lambda: control_service_pb2.MixtureChange(
                id=rng.bytes(8).hex(), weights={"no such source": 1.0}
            ),
            common_pb2.Empty: common_pb2.Empty,
        }
        return made.get(method.request, lambda: self.random(method.request()))()

    def random(self, message: Message, depth: int = 0) -> Message:
        """`message` with some fields set to odd values of their own types."""
        for field in message.DESCRIPTOR.fields:
            if self._rng.random() < 0.4:
                continue
            if field.message_type is not None:
                if field.message_type.GetOptions().map_entry or depth > 3:
                    continue
                inner = getattr(message, field.name)
                self.random(inner.add() if field.is_repeated else inner, depth + 1)
                if not field.is_repeated:
                    inner.SetInParent()
            elif field.is_repeated:
                count = int(self._rng.choice([0, 1, 2, 3, 50]))
                getattr(message, field.name).extend(self._value(field) for _ in range(count))
            else:
                setattr(message, field.name, self._value(field))
        return message

    def odd(self, message: Message) -> Message:
        """`message` with one value that is odd, as deep in it as may be."""
        fields = [field for field in message.DESCRIPTOR.fields if not _is_compound(field)]
        if not fields:
            return message
        field = fields[int(self._rng.integers(len(fields)))]
        if field.message_type is not None:
            getattr(message, field.name).SetInParent()
            self.odd(getattr(message, field.name))
        elif field.is_repeated:
            values = getattr(message, field.name)
            values[:] = [*values[:-1], *(self._value(field) for _ in range(int(self._rng.integers(3))))]
        else:
            setattr(message, field.name, self._value(field))
        return message

    def _value(self, field: FieldDescriptor) -> Any:
        kind, rng = field.cpp_type, self._rng
        if kind == FieldDescriptor.CPPTYPE_STRING:
            text = str(rng.choice(TEXTS))
            return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return bool(rng.integers(2))
        if kind == FieldDescriptor.CPPTYPE_DOUBLE:
            return float(rng.choice(DOUBLES))
        most = 2**32 if kind == FieldDescriptor.CPPTYPE_UINT32 else 2**64
        numbers = [number for number in NUMBERS if number < most]
        return numbers[int(rng.integers(len(numbers)))]

    def state(self) -> str:
        """A state with one value that is no such value, or no state at all."""
        if self._rng.random() < 0.2:
            return str(self._rng.choice(ODD_JSON))
        values = json.loads(self._join.state_json)
        inner: Any = values
        while True:
            keys: Sequence[Any] = list(inner) if isinstance(inner, dict) else range(len(inner))
            key = keys[int(self._rng.integers(len(keys)))]
            if not (isinstance(inner[key], dict | list) and inner[key] and self._rng.random() < 0.8):
                break
            inner = inner[key]
        inner[key] = LEAVES[int(self._rng.integers(len(LEAVES)))]
        return json.dumps(values)


def _is_compound(field: FieldDescriptor) -> bool:
    """Messages by the number, and maps: those are damaged by `mutated`."""
    nested = field.message_type
    return nested is not None and bool(field.is_repeated or nested.GetOptions().map_entry)


def bodies(case: Case, requests: Requests, rng: np.random.Generator, limit: int) -> list[bytes]:
    """The messages of a call."""
    valid = requests.valid(case.method).SerializeToString()
    match case.kind:
        case "noise":
            return [rng.bytes(int(rng.choice([1, 2, 30, 1000])))]
        case "mutated":
            return [mutated(valid, rng)]
        case "random":
            return [requests.random(case.method.request()).SerializeToString()]
        case "odd":
            return [requests.odd(requests.valid(case.method)).SerializeToString()]
        case "wrong":
            others = [method for known in SERVICES.values() for method in known]
            return [requests.valid(others[int(rng.integers(len(others)))]).SerializeToString()]
        case "huge":
            size = int(rng.choice([limit // 2, limit - 1, limit + 1, 4 * limit]))
            return [valid + b"\x1a" + _varint(size) + bytes(size)]
        case "many":
            return [valid] * 5
        case "silent":
            return []
        case "session":
            mesh = {axis: int(rng.choice([0, 1, 1, 2, 3, 8, 2**10, 2**16])) for axis in AXES}
            coords = {axis: int(rng.integers(max(size, 1))) for axis, size in mesh.items()}
            request = plan_pb2.JoinRequest.FromString(valid)
            request.mesh.CopyFrom(common_pb2.Mesh(**mesh))
            request.coords.CopyFrom(common_pb2.Coords(**coords))
            return [request.SerializeToString()]
        case "state":
            request = plan_pb2.JoinRequest.FromString(valid)
            request.state_json, request.force = requests.state(), bool(rng.integers(2))
            return [request.SerializeToString()]
    return [valid]


def strange(rng: np.random.Generator, right: Metadata) -> Metadata:
    """Metadata that must not be let in."""
    given = dict(right)["authorization"]
    wrong = str(rng.choice(["", "Bearer", "Bearer x", given + "0", given[:-1], given.upper()]))
    return (("authorization", wrong), ("dataloader-job", "another")) if rng.random() < 0.8 else ()


def send(
    channel: grpc.Channel, case: Case, messages: Sequence[bytes], metadata: Metadata, most: int = 8
) -> tuple[grpc.StatusCode, str]:
    """Send them as one stream and take in the first answers: code and text that the call ended with."""
    call: Any = channel.stream_stream(case.method.path)(iter(messages), timeout=WAIT_S, metadata=metadata)
    with contextlib.suppress(grpc.RpcError):
        if sum(1 for _ in islice(call, most)) == most:
            call.cancel()
            return grpc.StatusCode.OK, ""
    return call.code(), call.details() or ""


def send_session(
    channel: grpc.Channel, messages: Sequence[bytes], metadata: Metadata
) -> tuple[grpc.StatusCode, str]:
    """Join with them, and where that is granted read in the session as one of its ranks does."""
    join: Any = channel.unary_unary(methods.JOIN.path)
    try:
        joined = plan_pb2.JoinResponse.FromString(join(messages[0], timeout=WAIT_S, metadata=metadata))
    except grpc.RpcError as error:
        return error.code(), error.details() or ""  # type: ignore[attr-defined]
    coords = plan_pb2.JoinRequest.FromString(messages[0]).coords
    read = constructor_service_pb2.ReadRequest(session=joined.session, step=joined.start_step, coords=coords)
    call: Any = channel.unary_stream(methods.READ.path)
    call = call(read.SerializeToString(), timeout=5 * WAIT_S, metadata=metadata)
    with contextlib.suppress(grpc.RpcError):
        for _ in call:
            pass
    return call.code(), call.details() or ""


def is_served(channel: grpc.Channel, service: str, metadata: Metadata) -> bool:
    """Whether a server has a service."""
    path = SERVICES[service][0].path
    call: Any = channel.unary_stream(path)(b"\xff", timeout=10 * WAIT_S, metadata=metadata)
    return call.code() is not grpc.StatusCode.UNIMPLEMENTED


def open_silent(channel: grpc.Channel, case: Case, metadata: Metadata) -> tuple[grpc.StatusCode, str]:
    """A call that says nothing, and is let go of by its caller."""
    over = threading.Event()

    def never() -> Iterator[bytes]:
        over.wait()
        yield from ()

    call: Any = channel.stream_stream(case.method.path)(never(), timeout=WAIT_S, metadata=metadata)
    call.cancel()
    over.set()
    return call.code(), ""


def cut(address: str, rng: np.random.Generator) -> socket.socket:
    """A connection that begins as HTTP/2 does, or not, and stops in the middle. The caller closes it."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=WAIT_S)
    rubbish = rng.bytes(int(rng.integers(1, 200)))
    headers = b"\0\0\x05\x01\x04\0\0\0\x01" + rng.bytes(int(rng.integers(0, 5)))
    begun = PREFACE + SETTINGS
    choices = (PREFACE, PREFACE[:10], rubbish, PREFACE + rubbish, begun, begun + headers)
    connection.sendall(choices[int(rng.integers(len(choices)))])
    return connection


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])
