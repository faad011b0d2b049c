from dataloader_client._pb import common_pb2 as _common_pb2
from dataloader_client._pb import plan_pb2 as _plan_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
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

class StepTimes(_message.Message):
    __slots__ = ("session", "step", "dp_rank", "step_time", "compute_time")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    STEP_TIME_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_TIME_FIELD_NUMBER: _ClassVar[int]
    session: int
    step: _containers.RepeatedScalarFieldContainer[int]
    dp_rank: _containers.RepeatedScalarFieldContainer[int]
    step_time: _containers.RepeatedScalarFieldContainer[float]
    compute_time: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, session: _Optional[int] = ..., step: _Optional[_Iterable[int]] = ..., dp_rank: _Optional[_Iterable[int]] = ..., step_time: _Optional[_Iterable[float]] = ..., compute_time: _Optional[_Iterable[float]] = ...) -> None: ...

class Calibration(_message.Message):
    __slots__ = ("steps", "fixed", "per_unit", "error", "outliers", "observations", "drifts", "slow", "factors", "from_step")
    class SlowEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    STEPS_FIELD_NUMBER: _ClassVar[int]
    FIXED_FIELD_NUMBER: _ClassVar[int]
    PER_UNIT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    OUTLIERS_FIELD_NUMBER: _ClassVar[int]
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    DRIFTS_FIELD_NUMBER: _ClassVar[int]
    SLOW_FIELD_NUMBER: _ClassVar[int]
    FACTORS_FIELD_NUMBER: _ClassVar[int]
    FROM_STEP_FIELD_NUMBER: _ClassVar[int]
    steps: int
    fixed: float
    per_unit: _containers.RepeatedScalarFieldContainer[float]
    error: float
    outliers: float
    observations: int
    drifts: int
    slow: _containers.ScalarMap[int, float]
    factors: _containers.RepeatedScalarFieldContainer[float]
    from_step: int
    def __init__(self, steps: _Optional[int] = ..., fixed: _Optional[float] = ..., per_unit: _Optional[_Iterable[float]] = ..., error: _Optional[float] = ..., outliers: _Optional[float] = ..., observations: _Optional[int] = ..., drifts: _Optional[int] = ..., slow: _Optional[_Mapping[int, float]] = ..., factors: _Optional[_Iterable[float]] = ..., from_step: _Optional[int] = ...) -> None: ...

class Replaced(_message.Message):
    __slots__ = ("loader", "address", "kind", "why", "step", "at")
    LOADER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    loader: str
    address: str
    kind: str
    why: str
    step: int
    at: float
    def __init__(self, loader: _Optional[str] = ..., address: _Optional[str] = ..., kind: _Optional[str] = ..., why: _Optional[str] = ..., step: _Optional[int] = ..., at: _Optional[float] = ...) -> None: ...

class PlannerStatus(_message.Message):
    __slots__ = ("job", "generation", "next_step", "session", "mesh", "state_json", "fence", "calibration", "replaced")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NEXT_STEP_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    MESH_FIELD_NUMBER: _ClassVar[int]
    STATE_JSON_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    next_step: int
    session: int
    mesh: _common_pb2.Mesh
    state_json: str
    fence: int
    calibration: Calibration
    replaced: _containers.RepeatedCompositeFieldContainer[Replaced]
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ..., next_step: _Optional[int] = ..., session: _Optional[int] = ..., mesh: _Optional[_Union[_common_pb2.Mesh, _Mapping]] = ..., state_json: _Optional[str] = ..., fence: _Optional[int] = ..., calibration: _Optional[_Union[Calibration, _Mapping]] = ..., replaced: _Optional[_Iterable[_Union[Replaced, _Mapping]]] = ...) -> None: ...
