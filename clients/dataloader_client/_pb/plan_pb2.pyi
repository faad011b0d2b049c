from dataloader_client._pb import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Skipped(_message.Message):
    __slots__ = ("source", "epoch", "position", "shard", "row", "reason", "detail")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    source: int
    epoch: int
    position: int
    shard: str
    row: int
    reason: str
    detail: str
    def __init__(self, source: _Optional[int] = ..., epoch: _Optional[int] = ..., position: _Optional[int] = ..., shard: _Optional[str] = ..., row: _Optional[int] = ..., reason: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class Readmitted(_message.Message):
    __slots__ = ("source", "epoch", "position")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    source: int
    epoch: int
    position: int
    def __init__(self, source: _Optional[int] = ..., epoch: _Optional[int] = ..., position: _Optional[int] = ...) -> None: ...

class PlanRecord(_message.Message):
    __slots__ = ("version", "step", "sources", "sequence_offsets", "source", "epoch", "position", "start", "length", "patches", "block", "skipped", "digest", "state_json", "last", "metrics", "readmitted", "frames", "media")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    PATCHES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    STATE_JSON_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    READMITTED_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    version: int
    step: int
    sources: _containers.RepeatedScalarFieldContainer[str]
    sequence_offsets: _containers.RepeatedScalarFieldContainer[int]
    source: _containers.RepeatedScalarFieldContainer[int]
    epoch: _containers.RepeatedScalarFieldContainer[int]
    position: _containers.RepeatedScalarFieldContainer[int]
    start: _containers.RepeatedScalarFieldContainer[int]
    length: _containers.RepeatedScalarFieldContainer[int]
    patches: _containers.RepeatedScalarFieldContainer[int]
    block: _containers.RepeatedScalarFieldContainer[int]
    skipped: _containers.RepeatedCompositeFieldContainer[Skipped]
    digest: bytes
    state_json: str
    last: bool
    metrics: _containers.ScalarMap[str, float]
    readmitted: _containers.RepeatedCompositeFieldContainer[Readmitted]
    frames: _containers.RepeatedScalarFieldContainer[int]
    media: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, version: _Optional[int] = ..., step: _Optional[int] = ..., sources: _Optional[_Iterable[str]] = ..., sequence_offsets: _Optional[_Iterable[int]] = ..., source: _Optional[_Iterable[int]] = ..., epoch: _Optional[_Iterable[int]] = ..., position: _Optional[_Iterable[int]] = ..., start: _Optional[_Iterable[int]] = ..., length: _Optional[_Iterable[int]] = ..., patches: _Optional[_Iterable[int]] = ..., block: _Optional[_Iterable[int]] = ..., skipped: _Optional[_Iterable[_Union[Skipped, _Mapping]]] = ..., digest: _Optional[bytes] = ..., state_json: _Optional[str] = ..., last: _Optional[bool] = ..., metrics: _Optional[_Mapping[str, float]] = ..., readmitted: _Optional[_Iterable[_Union[Readmitted, _Mapping]]] = ..., frames: _Optional[_Iterable[int]] = ..., media: _Optional[_Iterable[int]] = ...) -> None: ...

class Listing(_message.Message):
    __slots__ = ("shards", "digest")
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    shards: int
    digest: str
    def __init__(self, shards: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...

class EpochListing(_message.Message):
    __slots__ = ("source", "epoch", "listing")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LISTING_FIELD_NUMBER: _ClassVar[int]
    source: int
    epoch: int
    listing: Listing
    def __init__(self, source: _Optional[int] = ..., epoch: _Optional[int] = ..., listing: _Optional[_Union[Listing, _Mapping]] = ...) -> None: ...

class PlacedPlan(_message.Message):
    __slots__ = ("record", "session", "dp_rank", "microbatch", "loader", "piece_loader", "metrics", "end_of_data", "step", "plan_seconds", "probe_wait_seconds", "masked", "generation", "listings", "encoder_rank")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    RECORD_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    MICROBATCH_FIELD_NUMBER: _ClassVar[int]
    LOADER_FIELD_NUMBER: _ClassVar[int]
    PIECE_LOADER_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    END_OF_DATA_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PLAN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PROBE_WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MASKED_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LISTINGS_FIELD_NUMBER: _ClassVar[int]
    ENCODER_RANK_FIELD_NUMBER: _ClassVar[int]
    record: PlanRecord
    session: int
    dp_rank: _containers.RepeatedScalarFieldContainer[int]
    microbatch: _containers.RepeatedScalarFieldContainer[int]
    loader: _containers.RepeatedScalarFieldContainer[str]
    piece_loader: _containers.RepeatedScalarFieldContainer[int]
    metrics: _containers.ScalarMap[str, float]
    end_of_data: bool
    step: int
    plan_seconds: float
    probe_wait_seconds: float
    masked: _containers.RepeatedScalarFieldContainer[int]
    generation: int
    listings: _containers.RepeatedCompositeFieldContainer[EpochListing]
    encoder_rank: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, record: _Optional[_Union[PlanRecord, _Mapping]] = ..., session: _Optional[int] = ..., dp_rank: _Optional[_Iterable[int]] = ..., microbatch: _Optional[_Iterable[int]] = ..., loader: _Optional[_Iterable[str]] = ..., piece_loader: _Optional[_Iterable[int]] = ..., metrics: _Optional[_Mapping[str, float]] = ..., end_of_data: _Optional[bool] = ..., step: _Optional[int] = ..., plan_seconds: _Optional[float] = ..., probe_wait_seconds: _Optional[float] = ..., masked: _Optional[_Iterable[int]] = ..., generation: _Optional[int] = ..., listings: _Optional[_Iterable[_Union[EpochListing, _Mapping]]] = ..., encoder_rank: _Optional[_Iterable[int]] = ...) -> None: ...

class SkippedSteps(_message.Message):
    __slots__ = ("first", "stop", "reason")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    first: int
    stop: int
    reason: str
    def __init__(self, first: _Optional[int] = ..., stop: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("protocol", "client_version", "job", "mesh", "coords", "state_json", "force", "session", "skip", "knows_skips", "split", "knows_dispatch")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CLIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    MESH_FIELD_NUMBER: _ClassVar[int]
    COORDS_FIELD_NUMBER: _ClassVar[int]
    STATE_JSON_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    KNOWS_SKIPS_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    KNOWS_DISPATCH_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    client_version: str
    job: str
    mesh: _common_pb2.Mesh
    coords: _common_pb2.Coords
    state_json: str
    force: bool
    session: int
    skip: _containers.RepeatedCompositeFieldContainer[SkippedSteps]
    knows_skips: bool
    split: str
    knows_dispatch: bool
    def __init__(self, protocol: _Optional[int] = ..., client_version: _Optional[str] = ..., job: _Optional[str] = ..., mesh: _Optional[_Union[_common_pb2.Mesh, _Mapping]] = ..., coords: _Optional[_Union[_common_pb2.Coords, _Mapping]] = ..., state_json: _Optional[str] = ..., force: _Optional[bool] = ..., session: _Optional[int] = ..., skip: _Optional[_Iterable[_Union[SkippedSteps, _Mapping]]] = ..., knows_skips: _Optional[bool] = ..., split: _Optional[str] = ..., knows_dispatch: _Optional[bool] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("session", "start_step", "mesh", "job", "service_version", "config_digest", "sources", "num_microbatches", "sequence_length", "address", "layout", "patch", "merge", "state_json", "skip", "split", "wants_losses", "encoder_placement")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    START_STEP_FIELD_NUMBER: _ClassVar[int]
    MESH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    SERVICE_VERSION_FIELD_NUMBER: _ClassVar[int]
    CONFIG_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    NUM_MICROBATCHES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    PATCH_FIELD_NUMBER: _ClassVar[int]
    MERGE_FIELD_NUMBER: _ClassVar[int]
    STATE_JSON_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    WANTS_LOSSES_FIELD_NUMBER: _ClassVar[int]
    ENCODER_PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    session: int
    start_step: int
    mesh: _common_pb2.Mesh
    job: str
    service_version: str
    config_digest: str
    sources: _containers.RepeatedScalarFieldContainer[str]
    num_microbatches: int
    sequence_length: int
    address: str
    layout: str
    patch: int
    merge: int
    state_json: str
    skip: _containers.RepeatedCompositeFieldContainer[SkippedSteps]
    split: str
    wants_losses: bool
    encoder_placement: str
    def __init__(self, session: _Optional[int] = ..., start_step: _Optional[int] = ..., mesh: _Optional[_Union[_common_pb2.Mesh, _Mapping]] = ..., job: _Optional[str] = ..., service_version: _Optional[str] = ..., config_digest: _Optional[str] = ..., sources: _Optional[_Iterable[str]] = ..., num_microbatches: _Optional[int] = ..., sequence_length: _Optional[int] = ..., address: _Optional[str] = ..., layout: _Optional[str] = ..., patch: _Optional[int] = ..., merge: _Optional[int] = ..., state_json: _Optional[str] = ..., skip: _Optional[_Iterable[_Union[SkippedSteps, _Mapping]]] = ..., split: _Optional[str] = ..., wants_losses: _Optional[bool] = ..., encoder_placement: _Optional[str] = ...) -> None: ...
