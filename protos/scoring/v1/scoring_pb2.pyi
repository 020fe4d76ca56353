from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_UNSPECIFIED: _ClassVar[Priority]
    REAL_TIME: _ClassVar[Priority]
    NORMAL: _ClassVar[Priority]
    BATCH: _ClassVar[Priority]

class Path(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PATH_UNSPECIFIED: _ClassVar[Path]
    LATENCY: _ClassVar[Path]
    DYNAMIC: _ClassVar[Path]
    THROUGHPUT: _ClassVar[Path]
    PRECOMPUTED: _ClassVar[Path]
    DEFERRED: _ClassVar[Path]

class DeferredState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEFERRED_STATE_UNSPECIFIED: _ClassVar[DeferredState]
    ACCEPTED: _ClassVar[DeferredState]
    CLAIMED: _ClassVar[DeferredState]
    SCORED: _ClassVar[DeferredState]
    PUBLISHED: _ClassVar[DeferredState]
    FAILED: _ClassVar[DeferredState]
    EXPIRED: _ClassVar[DeferredState]

class ReleaseState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RELEASE_STATE_UNSPECIFIED: _ClassVar[ReleaseState]
    RELEASE_ACTIVE: _ClassVar[ReleaseState]
    RELEASE_CANARY: _ClassVar[ReleaseState]
    RELEASE_LOADING: _ClassVar[ReleaseState]
    RELEASE_FAILED: _ClassVar[ReleaseState]
PRIORITY_UNSPECIFIED: Priority
REAL_TIME: Priority
NORMAL: Priority
BATCH: Priority
PATH_UNSPECIFIED: Path
LATENCY: Path
DYNAMIC: Path
THROUGHPUT: Path
PRECOMPUTED: Path
DEFERRED: Path
DEFERRED_STATE_UNSPECIFIED: DeferredState
ACCEPTED: DeferredState
CLAIMED: DeferredState
SCORED: DeferredState
PUBLISHED: DeferredState
FAILED: DeferredState
EXPIRED: DeferredState
RELEASE_STATE_UNSPECIFIED: ReleaseState
RELEASE_ACTIVE: ReleaseState
RELEASE_CANARY: ReleaseState
RELEASE_LOADING: ReleaseState
RELEASE_FAILED: ReleaseState

class ScoreRequest(_message.Message):
    __slots__ = ("texts", "priority", "timeout_ms", "top_k", "release", "request_id", "text_pairs", "allow_deferred", "model")
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_PAIRS_FIELD_NUMBER: _ClassVar[int]
    ALLOW_DEFERRED_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    priority: Priority
    timeout_ms: int
    top_k: int
    release: str
    request_id: str
    text_pairs: _containers.RepeatedScalarFieldContainer[str]
    allow_deferred: bool
    model: str
    def __init__(self, texts: _Optional[_Iterable[str]] = ..., priority: _Optional[_Union[Priority, str]] = ..., timeout_ms: _Optional[int] = ..., top_k: _Optional[int] = ..., release: _Optional[str] = ..., request_id: _Optional[str] = ..., text_pairs: _Optional[_Iterable[str]] = ..., allow_deferred: bool = ..., model: _Optional[str] = ...) -> None: ...

class Label(_message.Message):
    __slots__ = ("name", "score")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    name: str
    score: float
    def __init__(self, name: _Optional[str] = ..., score: _Optional[float] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("labels", "tokens", "truncated", "vector", "abstained", "heads")
    class HeadsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: HeadResult
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[HeadResult, _Mapping]] = ...) -> None: ...
    LABELS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    ABSTAINED_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    labels: _containers.RepeatedCompositeFieldContainer[Label]
    tokens: int
    truncated: bool
    vector: _containers.RepeatedScalarFieldContainer[float]
    abstained: bool
    heads: _containers.MessageMap[str, HeadResult]
    def __init__(self, labels: _Optional[_Iterable[_Union[Label, _Mapping]]] = ..., tokens: _Optional[int] = ..., truncated: bool = ..., vector: _Optional[_Iterable[float]] = ..., abstained: bool = ..., heads: _Optional[_Mapping[str, HeadResult]] = ...) -> None: ...

class HeadResult(_message.Message):
    __slots__ = ("labels", "vector", "abstained")
    LABELS_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    ABSTAINED_FIELD_NUMBER: _ClassVar[int]
    labels: _containers.RepeatedCompositeFieldContainer[Label]
    vector: _containers.RepeatedScalarFieldContainer[float]
    abstained: bool
    def __init__(self, labels: _Optional[_Iterable[_Union[Label, _Mapping]]] = ..., vector: _Optional[_Iterable[float]] = ..., abstained: bool = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("results", "path", "release", "precision", "batch_size", "queue_us", "compute_us", "request_id", "reason", "slack_us", "ticket", "model")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_US_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SLACK_US_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[Result]
    path: Path
    release: str
    precision: str
    batch_size: int
    queue_us: int
    compute_us: int
    request_id: str
    reason: str
    slack_us: int
    ticket: Ticket
    model: str
    def __init__(self, results: _Optional[_Iterable[_Union[Result, _Mapping]]] = ..., path: _Optional[_Union[Path, str]] = ..., release: _Optional[str] = ..., precision: _Optional[str] = ..., batch_size: _Optional[int] = ..., queue_us: _Optional[int] = ..., compute_us: _Optional[int] = ..., request_id: _Optional[str] = ..., reason: _Optional[str] = ..., slack_us: _Optional[int] = ..., ticket: _Optional[_Union[Ticket, _Mapping]] = ..., model: _Optional[str] = ...) -> None: ...

class Ticket(_message.Message):
    __slots__ = ("request_id", "ticket")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    ticket: str
    def __init__(self, request_id: _Optional[str] = ..., ticket: _Optional[str] = ...) -> None: ...

class StreamError(_message.Message):
    __slots__ = ("code", "message", "retry_after_ms")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    retry_after_ms: int
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class ScoreStreamResponse(_message.Message):
    __slots__ = ("request_id", "response", "error")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    response: ScoreResponse
    error: StreamError
    def __init__(self, request_id: _Optional[str] = ..., response: _Optional[_Union[ScoreResponse, _Mapping]] = ..., error: _Optional[_Union[StreamError, _Mapping]] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("request", "deliver_within_ms")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    DELIVER_WITHIN_MS_FIELD_NUMBER: _ClassVar[int]
    request: ScoreRequest
    deliver_within_ms: int
    def __init__(self, request: _Optional[_Union[ScoreRequest, _Mapping]] = ..., deliver_within_ms: _Optional[int] = ...) -> None: ...

class SubmitResponse(_message.Message):
    __slots__ = ("request_id", "state", "duplicate", "ticket")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    state: DeferredState
    duplicate: bool
    ticket: str
    def __init__(self, request_id: _Optional[str] = ..., state: _Optional[_Union[DeferredState, str]] = ..., duplicate: bool = ..., ticket: _Optional[str] = ...) -> None: ...

class SubmitStreamResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[SubmitOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[SubmitOutcome, _Mapping]]] = ...) -> None: ...

class SubmitOutcome(_message.Message):
    __slots__ = ("request_id", "response", "error")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    response: SubmitResponse
    error: StreamError
    def __init__(self, request_id: _Optional[str] = ..., response: _Optional[_Union[SubmitResponse, _Mapping]] = ..., error: _Optional[_Union[StreamError, _Mapping]] = ...) -> None: ...

class GetResultRequest(_message.Message):
    __slots__ = ("request_id", "ticket")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    ticket: str
    def __init__(self, request_id: _Optional[str] = ..., ticket: _Optional[str] = ...) -> None: ...

class WatchResultsRequest(_message.Message):
    __slots__ = ("request_ids", "tickets")
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    TICKETS_FIELD_NUMBER: _ClassVar[int]
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    tickets: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_ids: _Optional[_Iterable[str]] = ..., tickets: _Optional[_Iterable[str]] = ...) -> None: ...

class GetResultResponse(_message.Message):
    __slots__ = ("request_id", "state", "response", "computed_by", "failure")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_BY_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    state: DeferredState
    response: ScoreResponse
    computed_by: str
    failure: str
    def __init__(self, request_id: _Optional[str] = ..., state: _Optional[_Union[DeferredState, str]] = ..., response: _Optional[_Union[ScoreResponse, _Mapping]] = ..., computed_by: _Optional[str] = ..., failure: _Optional[str] = ...) -> None: ...

class LookupRequest(_message.Message):
    __slots__ = ("model", "ids", "top_k")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    model: str
    ids: _containers.RepeatedScalarFieldContainer[str]
    top_k: int
    def __init__(self, model: _Optional[str] = ..., ids: _Optional[_Iterable[str]] = ..., top_k: _Optional[int] = ...) -> None: ...

class LookupResponse(_message.Message):
    __slots__ = ("results", "release", "ds", "precision", "model")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    DS_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[LookupResult]
    release: str
    ds: str
    precision: str
    model: str
    def __init__(self, results: _Optional[_Iterable[_Union[LookupResult, _Mapping]]] = ..., release: _Optional[str] = ..., ds: _Optional[str] = ..., precision: _Optional[str] = ..., model: _Optional[str] = ...) -> None: ...

class LookupResult(_message.Message):
    __slots__ = ("id", "result")
    ID_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    id: str
    result: Result
    def __init__(self, id: _Optional[str] = ..., result: _Optional[_Union[Result, _Mapping]] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class LaneDescription(_message.Message):
    __slots__ = ("name", "precision", "device", "max_batch_size", "max_concurrent_requests", "serving", "p95_target_ms", "rate_target", "waiting", "slow_here", "call_ms", "call_budget_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONCURRENT_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    P95_TARGET_MS_FIELD_NUMBER: _ClassVar[int]
    RATE_TARGET_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    SLOW_HERE_FIELD_NUMBER: _ClassVar[int]
    CALL_MS_FIELD_NUMBER: _ClassVar[int]
    CALL_BUDGET_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    precision: str
    device: str
    max_batch_size: int
    max_concurrent_requests: int
    serving: bool
    p95_target_ms: float
    rate_target: float
    waiting: int
    slow_here: bool
    call_ms: float
    call_budget_ms: float
    def __init__(self, name: _Optional[str] = ..., precision: _Optional[str] = ..., device: _Optional[str] = ..., max_batch_size: _Optional[int] = ..., max_concurrent_requests: _Optional[int] = ..., serving: bool = ..., p95_target_ms: _Optional[float] = ..., rate_target: _Optional[float] = ..., waiting: _Optional[int] = ..., slow_here: bool = ..., call_ms: _Optional[float] = ..., call_budget_ms: _Optional[float] = ...) -> None: ...

class ReleaseDescription(_message.Message):
    __slots__ = ("id", "state", "share", "failure")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    id: str
    state: ReleaseState
    share: float
    failure: str
    def __init__(self, id: _Optional[str] = ..., state: _Optional[_Union[ReleaseState, str]] = ..., share: _Optional[float] = ..., failure: _Optional[str] = ...) -> None: ...

class ReplicaDescription(_message.Message):
    __slots__ = ("id", "address", "release", "draining", "releases", "tls")
    ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    RELEASES_FIELD_NUMBER: _ClassVar[int]
    TLS_FIELD_NUMBER: _ClassVar[int]
    id: str
    address: str
    release: str
    draining: bool
    releases: _containers.RepeatedScalarFieldContainer[str]
    tls: bool
    def __init__(self, id: _Optional[str] = ..., address: _Optional[str] = ..., release: _Optional[str] = ..., draining: bool = ..., releases: _Optional[_Iterable[str]] = ..., tls: bool = ...) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("release", "labels", "max_tokens", "lanes", "replicas", "redis_available", "releases", "output", "pairs", "operators_policy", "model", "models", "heads")
    class OperatorsPolicyEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    REDIS_AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    RELEASES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    OPERATORS_POLICY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    release: str
    labels: _containers.RepeatedScalarFieldContainer[str]
    max_tokens: int
    lanes: _containers.RepeatedCompositeFieldContainer[LaneDescription]
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaDescription]
    redis_available: bool
    releases: _containers.RepeatedCompositeFieldContainer[ReleaseDescription]
    output: str
    pairs: bool
    operators_policy: _containers.ScalarMap[str, float]
    model: str
    models: _containers.RepeatedCompositeFieldContainer[ModelDescription]
    heads: _containers.RepeatedCompositeFieldContainer[HeadDescription]
    def __init__(self, release: _Optional[str] = ..., labels: _Optional[_Iterable[str]] = ..., max_tokens: _Optional[int] = ..., lanes: _Optional[_Iterable[_Union[LaneDescription, _Mapping]]] = ..., replicas: _Optional[_Iterable[_Union[ReplicaDescription, _Mapping]]] = ..., redis_available: bool = ..., releases: _Optional[_Iterable[_Union[ReleaseDescription, _Mapping]]] = ..., output: _Optional[str] = ..., pairs: bool = ..., operators_policy: _Optional[_Mapping[str, float]] = ..., model: _Optional[str] = ..., models: _Optional[_Iterable[_Union[ModelDescription, _Mapping]]] = ..., heads: _Optional[_Iterable[_Union[HeadDescription, _Mapping]]] = ...) -> None: ...

class ModelDescription(_message.Message):
    __slots__ = ("name", "release", "is_default")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    IS_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    name: str
    release: str
    is_default: bool
    def __init__(self, name: _Optional[str] = ..., release: _Optional[str] = ..., is_default: bool = ...) -> None: ...

class HeadDescription(_message.Message):
    __slots__ = ("name", "output", "labels")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    name: str
    output: str
    labels: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., output: _Optional[str] = ..., labels: _Optional[_Iterable[str]] = ...) -> None: ...
