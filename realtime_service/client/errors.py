"""How a call can end other than with an answer. Each is a `grpc.RpcError` with `code()` and `details()`.

CallError (grpc.RpcError)
├── InvalidRequest    the request is at fault: repeating it is no help
│   └── NotFound      no request of that id was submitted, or its result is no longer kept
├── Overloaded        refused before any work was spent; `retry_after` says when to come back
├── DeadlineExceeded  no answer in time; the caller's patience is over, so nothing is tried again
├── Unavailable       no replica could be reached, or the connection broke, and other attempts did not help
└── ServiceFailed     the service's own fault; its log has the details
"""

import grpc

from realtime_service.retrying import Trailers, retry_after, trailers_of


class CallError(grpc.RpcError):
    """`attempts`: how many times the call was made, the first included."""

    def __init__(self, code: grpc.StatusCode, details: str, trailers: Trailers = (), attempts: int = 1) -> None:
        # All of it in `args`: so it can be pickled, and raised again in another process.
        super().__init__(code, details, trailers, attempts)
        self._code = code
        self._details = details
        self._trailers = trailers
        self.attempts = attempts

    def __str__(self) -> str:
        tries = f" (after {self.attempts} attempts)" if self.attempts > 1 else ""
        return f"{self._code.name}: {self._details}{tries}"

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Trailers:  # type: ignore[override]  # plain pairs
        return self._trailers


class InvalidRequest(CallError):
    """The request is at fault; `details()` names the field."""


class NotFound(InvalidRequest):
    """No such submitted request, or its result is no longer kept."""


class Overloaded(CallError):
    """The service is too busy for this request, or the request too large for the service."""

    @property
    def retry_after(self) -> float | None:
        """Seconds until it is worth trying again; None where that is no help."""
        return retry_after(self._trailers)


class DeadlineExceeded(CallError):
    """No answer in time."""


class Unavailable(CallError):
    """No replica answered."""


class ServiceFailed(CallError):
    """The service's own fault."""


#: Every way a call can fail → what it is raised as.
KINDS: dict[grpc.StatusCode, type[CallError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.FAILED_PRECONDITION: InvalidRequest,
    grpc.StatusCode.ALREADY_EXISTS: InvalidRequest,
    grpc.StatusCode.PERMISSION_DENIED: InvalidRequest,
    grpc.StatusCode.UNAUTHENTICATED: InvalidRequest,
    grpc.StatusCode.UNIMPLEMENTED: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.CANCELLED: Unavailable,
    grpc.StatusCode.ABORTED: Unavailable,
    grpc.StatusCode.INTERNAL: ServiceFailed,
    grpc.StatusCode.UNKNOWN: ServiceFailed,
    grpc.StatusCode.DATA_LOSS: ServiceFailed,
}


def error_of(code: grpc.StatusCode, details: str, trailers: Trailers = (), attempts: int = 1) -> CallError:
    return KINDS[code](code, details, trailers, attempts)


def read(error: grpc.RpcError, attempts: int = 1) -> CallError:
    """What the transport raised, as one of ours."""
    return error_of(error.code(), error.details() or "", trailers_of(error), attempts)
