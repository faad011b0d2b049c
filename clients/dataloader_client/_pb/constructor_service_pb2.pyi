from dataloader_client._pb import common_pb2 as _common_pb2
from dataloader_client._pb import plan_pb2 as _plan_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReadRequest(_message.Message):
    __slots__ = ("session", "step", "coords", "attachment", "lease", "codecs", "link_bytes_per_s", "split")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    COORDS_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    CODECS_FIELD_NUMBER: _ClassVar[int]
    LINK_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    session: int
    step: int
    coords: _common_pb2.Coords
    attachment: int
    lease: int
    codecs: _containers.RepeatedScalarFieldContainer[str]
    link_bytes_per_s: float
    split: str
    def __init__(self, session: _Optional[int] = ..., step: _Optional[int] = ..., coords: _Optional[_Union[_common_pb2.Coords, _Mapping]] = ..., attachment: _Optional[int] = ..., lease: _Optional[int] = ..., codecs: _Optional[_Iterable[str]] = ..., link_bytes_per_s: _Optional[float] = ..., split: _Optional[str] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("session", "coords", "split")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    COORDS_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    session: int
    coords: _common_pb2.Coords
    split: str
    def __init__(self, session: _Optional[int] = ..., coords: _Optional[_Union[_common_pb2.Coords, _Mapping]] = ..., split: _Optional[str] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("session", "coords", "step", "step_time", "compute_time", "split")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    COORDS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEP_TIME_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_TIME_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    session: int
    coords: _common_pb2.Coords
    step: int
    step_time: float
    compute_time: float
    split: str
    def __init__(self, session: _Optional[int] = ..., coords: _Optional[_Union[_common_pb2.Coords, _Mapping]] = ..., step: _Optional[int] = ..., step_time: _Optional[float] = ..., compute_time: _Optional[float] = ..., split: _Optional[str] = ...) -> None: ...

class ReportResponse(_message.Message):
    __slots__ = ("wanted",)
    WANTED_FIELD_NUMBER: _ClassVar[int]
    wanted: bool
    def __init__(self, wanted: _Optional[bool] = ...) -> None: ...

class ConstructorStatus(_message.Message):
    __slots__ = ("job", "service_version", "protocol", "session", "mesh", "held_bytes", "limit_bytes", "first_step", "last_step", "trace", "shared_limit_bytes", "lent_bytes", "leases", "lent_total", "silent_ranks")
    class TraceEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    SERVICE_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    MESH_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    SHARED_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    LENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    LENT_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SILENT_RANKS_FIELD_NUMBER: _ClassVar[int]
    job: str
    service_version: str
    protocol: int
    session: int
    mesh: _common_pb2.Mesh
    held_bytes: int
    limit_bytes: int
    first_step: int
    last_step: int
    trace: _containers.ScalarMap[str, float]
    shared_limit_bytes: int
    lent_bytes: int
    leases: int
    lent_total: int
    silent_ranks: int
    def __init__(self, job: _Optional[str] = ..., service_version: _Optional[str] = ..., protocol: _Optional[int] = ..., session: _Optional[int] = ..., mesh: _Optional[_Union[_common_pb2.Mesh, _Mapping]] = ..., held_bytes: _Optional[int] = ..., limit_bytes: _Optional[int] = ..., first_step: _Optional[int] = ..., last_step: _Optional[int] = ..., trace: _Optional[_Mapping[str, float]] = ..., shared_limit_bytes: _Optional[int] = ..., lent_bytes: _Optional[int] = ..., leases: _Optional[int] = ..., lent_total: _Optional[int] = ..., silent_ranks: _Optional[int] = ...) -> None: ...
