"""How a request can end other than with an answer, and the one table from errors to gRPC status codes.

TandemError
├── MessageTooLarge  a message is larger than any valid request
├── Overloaded       predicted to finish too late, or the lane is full; carries a retry hint
├── DeadlineExpired  the deadline passed before an answer was there
├── ScoringFailed    the engine failed; the text says nothing of why, the log does
├── Unauthenticated  the caller's token is not valid, or no longer, or missing where one is required
├── PermissionDenied the caller may not do this
├── NotFound         what the caller names is not here: a submitted request, a model
├── ReplicaUnavailable  this replica cannot answer the request now: another may, or this one in a moment
├── ModelLoading     a replica has begun to load the model that the caller names; carries a retry hint
├── UnknownMethod    what only replicas may call, called by something else
├── Relayed          another replica was asked and said so: its status goes to the caller as it came
└── ReleaseError
    └── UnfitRelease  a release must not serve here; no caller meets it
"""

import functools
from dataclasses import dataclass
from enum import StrEnum

import grpc
from google.rpc import error_details_pb2, status_pb2

from realtime_service.rpc.retryable import RETRY_AFTER, Trailers, retry_after
from shared_model.errors import (
    AlreadyExists,
    BadInput,
    QueueFull,
    ReleaseError,
    StoreUnavailable,
    TandemError,
    UnknownRelease,
)

#: Trailer with the milliseconds after which gRPC retries a call by itself; a negative number forbids the retry.
PUSHBACK = "grpc-retry-pushback-ms"
NEVER_AGAIN = (PUSHBACK, "-1")
#: Room in the deferred stream comes from idle lanes and the nightly run, not within milliseconds.
QUEUE_FULL_RETRY_SECONDS = 5.0
#: A small model is opened and warmed in about so many seconds.
LOADING_RETRY_SECONDS = 2.0
#: The shortest hint.
LEAST_RETRY_SECONDS = 0.001


class Overloaded(TandemError):
    """`retry_after` is in seconds, and at least LEAST_RETRY_SECONDS."""

    def __init__(self, why: str, retry_after: float) -> None:
        self.why = why
        self.retry_after = max(LEAST_RETRY_SECONDS, retry_after)
        super().__init__(f"{why}; retry in {self.retry_after * 1000:.0f} ms")


class MessageTooLarge(TandemError):
    """A message is larger than any valid request."""


class DeadlineExpired(TandemError):
    """The request's deadline passed."""


class ScoringFailed(TandemError):
    """The engine failed while it ran the request."""


class Unauthenticated(TandemError):
    """The token that names the caller is not valid, or no longer, or missing where one is required. `unknown_key`: the
    id of its key, where no key of that id is known yet."""

    def __init__(self, why: str, unknown_key: str = "") -> None:
        super().__init__(why)
        self.unknown_key = unknown_key


class PermissionDenied(TandemError):
    """The caller is known, and may not do this."""


class NotFound(TandemError):
    """The submitted request, result or model that the caller names is not here."""


class ReplicaUnavailable(TandemError):
    """Nothing is wrong with the request, as far as anybody knows, but this replica cannot answer it now."""


class ModelLoading(TandemError):
    """The model that the caller names is not loaded here, and is being loaded because it was asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(f"model: {name!r} is being loaded here; retry in {LOADING_RETRY_SECONDS:g} s")


class UnknownMethod(TandemError):
    """Only replicas may call this method; others learn no more than that of one that does not exist."""

    def __init__(self) -> None:
        super().__init__("Method not found!")


class Relayed(TandemError):
    """Another replica's refusal or failure, in its own words."""

    def __init__(self, code: grpc.StatusCode, message: str, trailers: Trailers = ()) -> None:
        super().__init__(message)
        self.code = code
        self.trailers = trailers


class Unfit(StrEnum):
    """In which way a release failed its probe, or its timing: a label of a metric."""

    CRASHED = "crashed"
    HUNG = "hung"
    REFUSED = "refused"
    SLOW = "slow"


class UnfitRelease(ReleaseError):
    """A release must not take traffic here; its text says why."""

    def __init__(self, how: Unfit, why: str) -> None:
        super().__init__(why)
        self.how = how


#: `Relayed` brings its own status. An error that is missing here is our bug: INTERNAL, without the exception's text.
STATUS: dict[type[TandemError], grpc.StatusCode] = {
    BadInput: grpc.StatusCode.INVALID_ARGUMENT,
    UnknownRelease: grpc.StatusCode.INVALID_ARGUMENT,
    MessageTooLarge: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    QueueFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    DeadlineExpired: grpc.StatusCode.DEADLINE_EXCEEDED,
    StoreUnavailable: grpc.StatusCode.UNAVAILABLE,
    ReplicaUnavailable: grpc.StatusCode.UNAVAILABLE,
    ModelLoading: grpc.StatusCode.UNAVAILABLE,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    NotFound: grpc.StatusCode.NOT_FOUND,
    UnknownMethod: grpc.StatusCode.UNIMPLEMENTED,
    AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    ScoringFailed: grpc.StatusCode.INTERNAL,
}

#: Said instead of an error's own line, where that quotes a library.
_SAID: dict[type[Exception], str] = {
    StoreUnavailable: "deferred work cannot be stored or read now; try again with the same request id"
}
#: Characters of a message: it may quote the caller, it travels twice and percent-encoded, and clients take 8 KB.
_MAX_SAID = 300
_INTERNAL = "internal error; the service's log has the details"


@dataclass(frozen=True, slots=True)
class Status:
    """The end of a call for its caller. `retry_after`: seconds until a retry may succeed, None where none can;
    `relayed`: another replica's trailers, which are passed on."""

    code: grpc.StatusCode
    message: str
    retry_after: float | None = None
    relayed: Trailers = ()

    @property
    def retry_after_ms(self) -> int:
        """0 where trying again is no help."""
        return 0 if self.retry_after is None else max(1, round(self.retry_after * 1000))

    def trailers(self, left: float | None = None) -> Trailers:
        """The hint three times: google.rpc.RetryInfo for libraries, a plain number for people and small clients, and
        gRPC's own trailer for its retries. `left`: seconds of the caller's deadline; after it, a retry is no help."""
        if self.relayed:
            return self.relayed
        if self.retry_after is None:
            return (NEVER_AGAIN,) if self.code is grpc.StatusCode.RESOURCE_EXHAUSTED else ()
        in_time = left is None or self.retry_after < left
        return _hints(self.code, self.message, self.retry_after_ms, in_time)


@functools.lru_cache(1_024)
def _hints(code: grpc.StatusCode, message: str, retry_after_ms: int, in_time: bool) -> Trailers:
    """Kept, because a burst is refused with the same few hints, and making one costs as much as deciding."""
    details = status_pb2.Status(code=code.value[0], message=message)
    hint = error_details_pb2.RetryInfo()
    hint.retry_delay.FromMilliseconds(retry_after_ms)
    details.details.add().Pack(hint)
    plain = str(retry_after_ms)
    return (
        (RETRY_AFTER, plain),
        (PUSHBACK, plain) if in_time else NEVER_AGAIN,
        ("grpc-status-details-bin", details.SerializeToString()),
    )


def status_of(error: Exception) -> Status:
    if isinstance(error, Relayed):
        return Status(error.code, str(error), retry_after(error.trailers), error.trailers)
    code = STATUS.get(type(error))  # type: ignore[arg-type]
    if code is None:
        return Status(grpc.StatusCode.INTERNAL, _INTERNAL)
    hint = {QueueFull: QUEUE_FULL_RETRY_SECONDS, ModelLoading: LOADING_RETRY_SECONDS}.get(type(error))
    if isinstance(error, Overloaded):
        hint = error.retry_after
    return Status(code, _SAID.get(type(error), str(error))[:_MAX_SAID], hint)
