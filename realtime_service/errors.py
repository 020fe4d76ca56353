"""How a request can end other than with an answer, and the one table from errors to gRPC status codes.

TandemError
├── MessageTooLarge  a message is larger than any valid request
├── Overloaded       predicted to finish too late, or the lane is full; carries a retry hint
├── DeadlineExpired  the deadline passed before an answer was there
├── ScoringFailed    the engine failed; the text says nothing of why, the log does
├── NotFound         no request of that id was submitted, or its result is no longer kept
└── ReleaseError
    └── UnfitRelease  a release must not serve here; no caller meets it
"""

from enum import StrEnum

import grpc

from shared_model.errors import BadInput, QueueFull, ReleaseError, StoreUnavailable, TandemError, UnknownRelease


class Overloaded(TandemError):
    """`retry_after` is in seconds."""

    def __init__(self, why: str, retry_after: float) -> None:
        super().__init__(f"{why}; retry in {retry_after * 1000:.0f} ms")
        self.retry_after = retry_after


class MessageTooLarge(TandemError):
    """A message is larger than any valid request."""


class DeadlineExpired(TandemError):
    """The request's deadline passed."""


class ScoringFailed(TandemError):
    """The engine failed while it ran the request."""


class NotFound(TandemError):
    """No such submitted request."""


class Unfit(StrEnum):
    """In which way a release failed its probe: a label of a metric."""

    CRASHED = "crashed"
    HUNG = "hung"
    REFUSED = "refused"


class UnfitRelease(ReleaseError):
    """A release must not take traffic here; its text says why."""

    def __init__(self, how: Unfit, why: str) -> None:
        super().__init__(why)
        self.how = how


#: Whose fault it was, as a status code. What is not here is our bug: INTERNAL, with no text of the exception.
STATUS: dict[type[TandemError], grpc.StatusCode] = {
    BadInput: grpc.StatusCode.INVALID_ARGUMENT,
    UnknownRelease: grpc.StatusCode.INVALID_ARGUMENT,
    MessageTooLarge: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    QueueFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    DeadlineExpired: grpc.StatusCode.DEADLINE_EXCEEDED,
    StoreUnavailable: grpc.StatusCode.UNAVAILABLE,
    NotFound: grpc.StatusCode.NOT_FOUND,
    ScoringFailed: grpc.StatusCode.INTERNAL,
}


def status_of(error: Exception) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]:
    """(code, message, trailers) a caller sees for an error."""
    code = STATUS.get(type(error))  # type: ignore[arg-type]
    if code is None:
        return grpc.StatusCode.INTERNAL, "internal error; the service's log has the details", ()
    trailers = (("retry-after-ms", f"{error.retry_after * 1000:.0f}"),) if isinstance(error, Overloaded) else ()
    return code, str(error), trailers
