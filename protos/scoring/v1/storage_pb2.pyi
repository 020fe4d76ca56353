from protos.scoring.v1 import scoring_pb2 as _scoring_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeferredWork(_message.Message):
    __slots__ = ("request", "accepted_at_ms")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    request: _scoring_pb2.ScoreRequest
    accepted_at_ms: int
    def __init__(self, request: _Optional[_Union[_scoring_pb2.ScoreRequest, _Mapping]] = ..., accepted_at_ms: _Optional[int] = ...) -> None: ...

class ReplicaState(_message.Message):
    __slots__ = ("replica", "lanes", "load")
    class LoadEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: LaneLoad
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[LaneLoad, _Mapping]] = ...) -> None: ...
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    replica: _scoring_pb2.ReplicaDescription
    lanes: _containers.RepeatedCompositeFieldContainer[_scoring_pb2.LaneDescription]
    load: _containers.MessageMap[str, LaneLoad]
    def __init__(self, replica: _Optional[_Union[_scoring_pb2.ReplicaDescription, _Mapping]] = ..., lanes: _Optional[_Iterable[_Union[_scoring_pb2.LaneDescription, _Mapping]]] = ..., load: _Optional[_Mapping[str, LaneLoad]] = ...) -> None: ...

class LaneLoad(_message.Message):
    __slots__ = ("waiting", "running", "predicted_finish_ms", "load")
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FINISH_MS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    waiting: int
    running: int
    predicted_finish_ms: float
    load: float
    def __init__(self, waiting: _Optional[int] = ..., running: _Optional[int] = ..., predicted_finish_ms: _Optional[float] = ..., load: _Optional[float] = ...) -> None: ...

class PublishedScore(_message.Message):
    __slots__ = ("labels", "scores", "tokens", "truncated")
    LABELS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    labels: _containers.RepeatedScalarFieldContainer[int]
    scores: _containers.RepeatedScalarFieldContainer[float]
    tokens: int
    truncated: bool
    def __init__(self, labels: _Optional[_Iterable[int]] = ..., scores: _Optional[_Iterable[float]] = ..., tokens: _Optional[int] = ..., truncated: _Optional[bool] = ...) -> None: ...
