from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LineMetadata(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class LineCall(_message.Message):
    __slots__ = ("path", "metadata", "request")
    PATH_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    path: str
    metadata: _containers.RepeatedCompositeFieldContainer[LineMetadata]
    request: bytes
    def __init__(self, path: _Optional[str] = ..., metadata: _Optional[_Iterable[_Union[LineMetadata, _Mapping]]] = ..., request: _Optional[bytes] = ...) -> None: ...

class LineStatus(_message.Message):
    __slots__ = ("code", "text", "error")
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    code: str
    text: str
    error: str
    def __init__(self, code: _Optional[str] = ..., text: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...
