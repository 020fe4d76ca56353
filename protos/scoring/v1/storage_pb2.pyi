from protos.scoring.v1 import scoring_pb2 as _scoring_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeferredWork(_message.Message):
    __slots__ = ("request", "accepted_at_ms", "traceparent")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    request: _scoring_pb2.ScoreRequest
    accepted_at_ms: int
    traceparent: str
    def __init__(self, request: _Optional[_Union[_scoring_pb2.ScoreRequest, _Mapping]] = ..., accepted_at_ms: _Optional[int] = ..., traceparent: _Optional[str] = ...) -> None: ...

class ReplicaState(_message.Message):
    __slots__ = ("profile", "wanted", "waiting", "max_concurrent_requests", "predicted_finish_ms", "real_time_finish_ms", "per_text_ms", "load", "counter", "sent_at_ms", "figures", "mac")
    class WantedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    MAX_CONCURRENT_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FINISH_MS_FIELD_NUMBER: _ClassVar[int]
    REAL_TIME_FINISH_MS_FIELD_NUMBER: _ClassVar[int]
    PER_TEXT_MS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    SENT_AT_MS_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    profile: bytes
    wanted: _containers.ScalarMap[str, float]
    waiting: _containers.RepeatedScalarFieldContainer[int]
    max_concurrent_requests: _containers.RepeatedScalarFieldContainer[int]
    predicted_finish_ms: _containers.RepeatedScalarFieldContainer[float]
    real_time_finish_ms: _containers.RepeatedScalarFieldContainer[float]
    per_text_ms: _containers.RepeatedScalarFieldContainer[float]
    load: _containers.RepeatedScalarFieldContainer[float]
    counter: int
    sent_at_ms: int
    figures: bytes
    mac: bytes
    def __init__(self, profile: _Optional[bytes] = ..., wanted: _Optional[_Mapping[str, float]] = ..., waiting: _Optional[_Iterable[int]] = ..., max_concurrent_requests: _Optional[_Iterable[int]] = ..., predicted_finish_ms: _Optional[_Iterable[float]] = ..., real_time_finish_ms: _Optional[_Iterable[float]] = ..., per_text_ms: _Optional[_Iterable[float]] = ..., load: _Optional[_Iterable[float]] = ..., counter: _Optional[int] = ..., sent_at_ms: _Optional[int] = ..., figures: _Optional[bytes] = ..., mac: _Optional[bytes] = ...) -> None: ...

class Figures(_message.Message):
    __slots__ = ("releases",)
    RELEASES_FIELD_NUMBER: _ClassVar[int]
    releases: _containers.RepeatedCompositeFieldContainer[ReleaseFigures]
    def __init__(self, releases: _Optional[_Iterable[_Union[ReleaseFigures, _Mapping]]] = ...) -> None: ...

class ReleaseFigures(_message.Message):
    __slots__ = ("release", "failed", "lanes")
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    release: str
    failed: int
    lanes: _containers.RepeatedCompositeFieldContainer[LaneFigures]
    def __init__(self, release: _Optional[str] = ..., failed: _Optional[int] = ..., lanes: _Optional[_Iterable[_Union[LaneFigures, _Mapping]]] = ...) -> None: ...

class LaneFigures(_message.Message):
    __slots__ = ("path", "answered", "late", "slow", "seconds")
    PATH_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    SLOW_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    path: str
    answered: int
    late: int
    slow: int
    seconds: float
    def __init__(self, path: _Optional[str] = ..., answered: _Optional[int] = ..., late: _Optional[int] = ..., slow: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class ReplicaProfile(_message.Message):
    __slots__ = ("replica", "lanes", "pointer_version", "failures", "pinned", "variants", "slow_lanes", "models", "all_models")
    class FailuresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class VariantsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class ModelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: ServedModel
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[ServedModel, _Mapping]] = ...) -> None: ...
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    POINTER_VERSION_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    VARIANTS_FIELD_NUMBER: _ClassVar[int]
    SLOW_LANES_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    ALL_MODELS_FIELD_NUMBER: _ClassVar[int]
    replica: _scoring_pb2.ReplicaDescription
    lanes: _containers.RepeatedScalarFieldContainer[str]
    pointer_version: int
    failures: _containers.ScalarMap[str, str]
    pinned: bool
    variants: _containers.ScalarMap[str, str]
    slow_lanes: _containers.RepeatedScalarFieldContainer[str]
    models: _containers.MessageMap[str, ServedModel]
    all_models: bool
    def __init__(self, replica: _Optional[_Union[_scoring_pb2.ReplicaDescription, _Mapping]] = ..., lanes: _Optional[_Iterable[str]] = ..., pointer_version: _Optional[int] = ..., failures: _Optional[_Mapping[str, str]] = ..., pinned: bool = ..., variants: _Optional[_Mapping[str, str]] = ..., slow_lanes: _Optional[_Iterable[str]] = ..., models: _Optional[_Mapping[str, ServedModel]] = ..., all_models: bool = ...) -> None: ...

class ServedModel(_message.Message):
    __slots__ = ("pointer_version", "active", "canary", "on_demand")
    POINTER_VERSION_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    ON_DEMAND_FIELD_NUMBER: _ClassVar[int]
    pointer_version: int
    active: str
    canary: str
    on_demand: bool
    def __init__(self, pointer_version: _Optional[int] = ..., active: _Optional[str] = ..., canary: _Optional[str] = ..., on_demand: bool = ...) -> None: ...

class ReplicaStates(_message.Message):
    __slots__ = ("replicas",)
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    replicas: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, replicas: _Optional[_Iterable[bytes]] = ...) -> None: ...

class RoutingPolicy(_message.Message):
    __slots__ = ("version", "latency_below_ms", "throughput_above_ms", "p95_ms", "load_target", "quota", "quotas", "signature")
    class P95MsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class LoadTargetEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class QuotasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LATENCY_BELOW_MS_FIELD_NUMBER: _ClassVar[int]
    THROUGHPUT_ABOVE_MS_FIELD_NUMBER: _ClassVar[int]
    P95_MS_FIELD_NUMBER: _ClassVar[int]
    LOAD_TARGET_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    version: int
    latency_below_ms: float
    throughput_above_ms: float
    p95_ms: _containers.ScalarMap[str, float]
    load_target: _containers.ScalarMap[str, float]
    quota: float
    quotas: _containers.ScalarMap[str, float]
    signature: OperatorSignature
    def __init__(self, version: _Optional[int] = ..., latency_below_ms: _Optional[float] = ..., throughput_above_ms: _Optional[float] = ..., p95_ms: _Optional[_Mapping[str, float]] = ..., load_target: _Optional[_Mapping[str, float]] = ..., quota: _Optional[float] = ..., quotas: _Optional[_Mapping[str, float]] = ..., signature: _Optional[_Union[OperatorSignature, _Mapping]] = ...) -> None: ...

class OperatorSignature(_message.Message):
    __slots__ = ("version", "signer", "value")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SIGNER_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    version: int
    signer: bytes
    value: bytes
    def __init__(self, version: _Optional[int] = ..., signer: _Optional[bytes] = ..., value: _Optional[bytes] = ...) -> None: ...

class PublishedScore(_message.Message):
    __slots__ = ("labels", "scores", "tokens", "truncated", "abstained", "heads")
    LABELS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    ABSTAINED_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    labels: _containers.RepeatedScalarFieldContainer[int]
    scores: _containers.RepeatedScalarFieldContainer[float]
    tokens: int
    truncated: bool
    abstained: bool
    heads: _containers.RepeatedCompositeFieldContainer[PublishedHead]
    def __init__(self, labels: _Optional[_Iterable[int]] = ..., scores: _Optional[_Iterable[float]] = ..., tokens: _Optional[int] = ..., truncated: bool = ..., abstained: bool = ..., heads: _Optional[_Iterable[_Union[PublishedHead, _Mapping]]] = ...) -> None: ...

class PublishedHead(_message.Message):
    __slots__ = ("labels", "scores", "abstained")
    LABELS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    ABSTAINED_FIELD_NUMBER: _ClassVar[int]
    labels: _containers.RepeatedScalarFieldContainer[int]
    scores: _containers.RepeatedScalarFieldContainer[float]
    abstained: bool
    def __init__(self, labels: _Optional[_Iterable[int]] = ..., scores: _Optional[_Iterable[float]] = ..., abstained: bool = ...) -> None: ...
