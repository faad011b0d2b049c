from dataloader_client._pb import common_pb2 as _common_pb2
from dataloader_client._pb import plan_pb2 as _plan_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PlanDemand(_message.Message):
    __slots__ = ("session", "from_step", "up_to", "constructor")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    FROM_STEP_FIELD_NUMBER: _ClassVar[int]
    UP_TO_FIELD_NUMBER: _ClassVar[int]
    CONSTRUCTOR_FIELD_NUMBER: _ClassVar[int]
    session: int
    from_step: int
    up_to: int
    constructor: str
    def __init__(self, session: _Optional[int] = ..., from_step: _Optional[int] = ..., up_to: _Optional[int] = ..., constructor: _Optional[str] = ...) -> None: ...

class PlannerStatus(_message.Message):
    __slots__ = ("job", "generation", "next_step", "session", "mesh", "state_json", "fence")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NEXT_STEP_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    MESH_FIELD_NUMBER: _ClassVar[int]
    STATE_JSON_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    next_step: int
    session: int
    mesh: _common_pb2.Mesh
    state_json: str
    fence: int
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ..., next_step: _Optional[int] = ..., session: _Optional[int] = ..., mesh: _Optional[_Union[_common_pb2.Mesh, _Mapping]] = ..., state_json: _Optional[str] = ..., fence: _Optional[int] = ...) -> None: ...
