from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LinkCall(_message.Message):
    __slots__ = ("number", "method", "request", "left_us", "metadata", "cancelled")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    LEFT_US_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    number: int
    method: str
    request: bytes
    left_us: int
    metadata: _containers.RepeatedScalarFieldContainer[bytes]
    cancelled: bool
    def __init__(self, number: _Optional[int] = ..., method: _Optional[str] = ..., request: _Optional[bytes] = ..., left_us: _Optional[int] = ..., metadata: _Optional[_Iterable[bytes]] = ..., cancelled: bool = ...) -> None: ...

class LinkCalls(_message.Message):
    __slots__ = ("calls",)
    CALLS_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[LinkCall]
    def __init__(self, calls: _Optional[_Iterable[_Union[LinkCall, _Mapping]]] = ...) -> None: ...

class LinkAnswer(_message.Message):
    __slots__ = ("number", "response", "code", "details", "trailers", "leaving")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    TRAILERS_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    number: int
    response: bytes
    code: int
    details: str
    trailers: _containers.RepeatedScalarFieldContainer[bytes]
    leaving: bool
    def __init__(self, number: _Optional[int] = ..., response: _Optional[bytes] = ..., code: _Optional[int] = ..., details: _Optional[str] = ..., trailers: _Optional[_Iterable[bytes]] = ..., leaving: bool = ...) -> None: ...

class LinkAnswers(_message.Message):
    __slots__ = ("answers",)
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[LinkAnswer]
    def __init__(self, answers: _Optional[_Iterable[_Union[LinkAnswer, _Mapping]]] = ...) -> None: ...
