from dataloader_client._pb import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MixtureChange(_message.Message):
    __slots__ = ("id", "at_step", "weights", "over", "known_from", "rule")
    class WeightsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    AT_STEP_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FROM_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    id: str
    at_step: int
    weights: _containers.ScalarMap[str, float]
    over: int
    known_from: int
    rule: str
    def __init__(self, id: _Optional[str] = ..., at_step: _Optional[int] = ..., weights: _Optional[_Mapping[str, float]] = ..., over: _Optional[int] = ..., known_from: _Optional[int] = ..., rule: _Optional[str] = ...) -> None: ...

class MixtureEntry(_message.Message):
    __slots__ = ("step", "ramp", "weights")
    class WeightsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STEP_FIELD_NUMBER: _ClassVar[int]
    RAMP_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    step: int
    ramp: bool
    weights: _containers.ScalarMap[str, float]
    def __init__(self, step: _Optional[int] = ..., ramp: _Optional[bool] = ..., weights: _Optional[_Mapping[str, float]] = ...) -> None: ...

class StepLosses(_message.Message):
    __slots__ = ("session", "dp_rank", "cp_rank", "step", "source", "loss", "targets")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    CP_RANK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    session: int
    dp_rank: int
    cp_rank: int
    step: int
    source: _containers.RepeatedScalarFieldContainer[int]
    loss: _containers.RepeatedScalarFieldContainer[float]
    targets: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, session: _Optional[int] = ..., dp_rank: _Optional[int] = ..., cp_rank: _Optional[int] = ..., step: _Optional[int] = ..., source: _Optional[_Iterable[int]] = ..., loss: _Optional[_Iterable[float]] = ..., targets: _Optional[_Iterable[float]] = ...) -> None: ...

class LossesRequest(_message.Message):
    __slots__ = ("steps",)
    STEPS_FIELD_NUMBER: _ClassVar[int]
    steps: _containers.RepeatedCompositeFieldContainer[StepLosses]
    def __init__(self, steps: _Optional[_Iterable[_Union[StepLosses, _Mapping]]] = ...) -> None: ...

class LossesResponse(_message.Message):
    __slots__ = ("decided",)
    DECIDED_FIELD_NUMBER: _ClassVar[int]
    decided: int
    def __init__(self, decided: _Optional[int] = ...) -> None: ...

class AdaptiveStatus(_message.Message):
    __slots__ = ("rule", "decided", "next", "reported", "ranks", "expected", "losses", "refused", "problem")
    class LossesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    RULE_FIELD_NUMBER: _ClassVar[int]
    DECIDED_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    REPORTED_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    rule: str
    decided: int
    next: int
    reported: int
    ranks: int
    expected: int
    losses: _containers.ScalarMap[str, float]
    refused: int
    problem: str
    def __init__(self, rule: _Optional[str] = ..., decided: _Optional[int] = ..., next: _Optional[int] = ..., reported: _Optional[int] = ..., ranks: _Optional[int] = ..., expected: _Optional[int] = ..., losses: _Optional[_Mapping[str, float]] = ..., refused: _Optional[int] = ..., problem: _Optional[str] = ...) -> None: ...

class MixtureStatus(_message.Message):
    __slots__ = ("next_step", "unit", "weights", "drawn", "schedule", "changes", "adaptive")
    class WeightsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class DrawnEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NEXT_STEP_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    DRAWN_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    ADAPTIVE_FIELD_NUMBER: _ClassVar[int]
    next_step: int
    unit: str
    weights: _containers.ScalarMap[str, float]
    drawn: _containers.ScalarMap[str, float]
    schedule: _containers.RepeatedCompositeFieldContainer[MixtureEntry]
    changes: _containers.RepeatedCompositeFieldContainer[MixtureChange]
    adaptive: AdaptiveStatus
    def __init__(self, next_step: _Optional[int] = ..., unit: _Optional[str] = ..., weights: _Optional[_Mapping[str, float]] = ..., drawn: _Optional[_Mapping[str, float]] = ..., schedule: _Optional[_Iterable[_Union[MixtureEntry, _Mapping]]] = ..., changes: _Optional[_Iterable[_Union[MixtureChange, _Mapping]]] = ..., adaptive: _Optional[_Union[AdaptiveStatus, _Mapping]] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("session", "coords", "step")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    COORDS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    session: int
    coords: _common_pb2.Coords
    step: int
    def __init__(self, session: _Optional[int] = ..., coords: _Optional[_Union[_common_pb2.Coords, _Mapping]] = ..., step: _Optional[int] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ("committed", "first")
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    committed: int
    first: int
    def __init__(self, committed: _Optional[int] = ..., first: _Optional[int] = ...) -> None: ...
