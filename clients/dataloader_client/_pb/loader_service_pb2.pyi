from dataloader_client._pb import common_pb2 as _common_pb2
from dataloader_client._pb import plan_pb2 as _plan_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ("source", "epoch", "listing", "grown")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LISTING_FIELD_NUMBER: _ClassVar[int]
    GROWN_FIELD_NUMBER: _ClassVar[int]
    source: str
    epoch: int
    listing: _plan_pb2.Listing
    grown: bool
    def __init__(self, source: _Optional[str] = ..., epoch: _Optional[int] = ..., listing: _Optional[_Union[_plan_pb2.Listing, _Mapping]] = ..., grown: _Optional[bool] = ...) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("source", "epoch", "num_rows", "digest", "block_starts", "num_shards", "listed_shards")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    BLOCK_STARTS_FIELD_NUMBER: _ClassVar[int]
    NUM_SHARDS_FIELD_NUMBER: _ClassVar[int]
    LISTED_SHARDS_FIELD_NUMBER: _ClassVar[int]
    source: str
    epoch: int
    num_rows: int
    digest: str
    block_starts: _containers.RepeatedScalarFieldContainer[int]
    num_shards: int
    listed_shards: int
    def __init__(self, source: _Optional[str] = ..., epoch: _Optional[int] = ..., num_rows: _Optional[int] = ..., digest: _Optional[str] = ..., block_starts: _Optional[_Iterable[int]] = ..., num_shards: _Optional[int] = ..., listed_shards: _Optional[int] = ...) -> None: ...

class BlockRequest(_message.Message):
    __slots__ = ("source", "epoch", "block", "reopen", "listing")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    REOPEN_FIELD_NUMBER: _ClassVar[int]
    LISTING_FIELD_NUMBER: _ClassVar[int]
    source: str
    epoch: int
    block: int
    reopen: bool
    listing: _plan_pb2.Listing
    def __init__(self, source: _Optional[str] = ..., epoch: _Optional[int] = ..., block: _Optional[int] = ..., reopen: _Optional[bool] = ..., listing: _Optional[_Union[_plan_pb2.Listing, _Mapping]] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("step", "sources", "source", "epoch", "position", "block", "start", "length", "max_bytes", "listings", "masked")
    STEP_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    LISTINGS_FIELD_NUMBER: _ClassVar[int]
    MASKED_FIELD_NUMBER: _ClassVar[int]
    step: int
    sources: _containers.RepeatedScalarFieldContainer[str]
    source: _containers.RepeatedScalarFieldContainer[int]
    epoch: _containers.RepeatedScalarFieldContainer[int]
    position: _containers.RepeatedScalarFieldContainer[int]
    block: _containers.RepeatedScalarFieldContainer[int]
    start: _containers.RepeatedScalarFieldContainer[int]
    length: _containers.RepeatedScalarFieldContainer[int]
    max_bytes: int
    listings: _containers.RepeatedCompositeFieldContainer[_plan_pb2.EpochListing]
    masked: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, step: _Optional[int] = ..., sources: _Optional[_Iterable[str]] = ..., source: _Optional[_Iterable[int]] = ..., epoch: _Optional[_Iterable[int]] = ..., position: _Optional[_Iterable[int]] = ..., block: _Optional[_Iterable[int]] = ..., start: _Optional[_Iterable[int]] = ..., length: _Optional[_Iterable[int]] = ..., max_bytes: _Optional[int] = ..., listings: _Optional[_Iterable[_Union[_plan_pb2.EpochListing, _Mapping]]] = ..., masked: _Optional[_Iterable[int]] = ...) -> None: ...

class LoaderStatus(_message.Message):
    __slots__ = ("held_bytes", "limit_bytes", "held_blocks", "reads", "rereads", "tokenizer_backend", "compared_documents", "differing_documents", "work", "work_units", "work_s", "work_share_s", "works_done", "works_under_way")
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    REREADS_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_BACKEND_FIELD_NUMBER: _ClassVar[int]
    COMPARED_DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    DIFFERING_DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    WORK_UNITS_FIELD_NUMBER: _ClassVar[int]
    WORK_S_FIELD_NUMBER: _ClassVar[int]
    WORK_SHARE_S_FIELD_NUMBER: _ClassVar[int]
    WORKS_DONE_FIELD_NUMBER: _ClassVar[int]
    WORKS_UNDER_WAY_FIELD_NUMBER: _ClassVar[int]
    held_bytes: int
    limit_bytes: int
    held_blocks: int
    reads: int
    rereads: int
    tokenizer_backend: str
    compared_documents: int
    differing_documents: int
    work: _containers.RepeatedScalarFieldContainer[str]
    work_units: _containers.RepeatedScalarFieldContainer[int]
    work_s: _containers.RepeatedScalarFieldContainer[float]
    work_share_s: _containers.RepeatedScalarFieldContainer[float]
    works_done: int
    works_under_way: int
    def __init__(self, held_bytes: _Optional[int] = ..., limit_bytes: _Optional[int] = ..., held_blocks: _Optional[int] = ..., reads: _Optional[int] = ..., rereads: _Optional[int] = ..., tokenizer_backend: _Optional[str] = ..., compared_documents: _Optional[int] = ..., differing_documents: _Optional[int] = ..., work: _Optional[_Iterable[str]] = ..., work_units: _Optional[_Iterable[int]] = ..., work_s: _Optional[_Iterable[float]] = ..., work_share_s: _Optional[_Iterable[float]] = ..., works_done: _Optional[int] = ..., works_under_way: _Optional[int] = ...) -> None: ...
