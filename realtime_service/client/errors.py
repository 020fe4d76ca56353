"""How a call can end other than with an answer. Each is a `grpc.RpcError` with `code()` and `details()`.

CallError (grpc.RpcError)
├── InvalidRequest    the request is at fault: repeating it is no help
│   └── NotFound      no request of that id was submitted, or its result is no longer kept
├── Overloaded        refused before any work was spent; `retry_after` says when to come back
├── DeadlineExceeded  no answer in time; the caller's patience is over, so nothing is tried again
├── Unavailable       no replica could be reached, or the connection broke, and another attempt did not help
└── ServiceFailed     the service's own fault; its log has the details
"""

import re

import grpc

from realtime_service.rpc.retryable import Failure, Trailers, by_transport, failure_of, retry_after, trailers_of

#: How the transport ends its complaint when nothing listens at an address, or a name has none.
_CAUSE = re.compile(r": ([A-Z][A-Za-z ]+)]?$")
#: How it says that a connection cannot be what it should be → what a person can do.
_MISMATCHED = {
    "Failed parsing HTTP/2": "speaks no gRPC: it may be the address of HTTP or of metrics; call that of gRPC",
    "CERTIFICATE_VERIFY_FAILED": "has a certificate that is not trusted here: name its authority (`--ca`, `Tls(ca=…)`)",
    "Hostname Verification": "has a certificate for other names: use one of them (`--tls-name`, `Tls(name=…)`)",
    "WRONG_VERSION_NUMBER": "has no TLS: call it without",
    "Socket closed": "closed the connection: it may want TLS (`--tls`, `--ca`), or a certificate of yours (`--cert`)",
}
#: How it says that a replica is there and does not take calls.
_UNHEALTHY = "backend unhealthy"


class CallError(grpc.RpcError):
    """How a call ended."""

    def __init__(self, code: grpc.StatusCode, details: str, trailers: Trailers = ()) -> None:
        # All of it in `args`: so it can be pickled, and raised again in another process.
        super().__init__(code, details, trailers)
        self._code = code
        self._details = details
        self._trailers = trailers

    def __str__(self) -> str:
        return f"{self._code.name}: {self._details}"

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


def error_of(code: grpc.StatusCode, details: str, trailers: Trailers = ()) -> CallError:
    return KINDS[code](code, details, trailers)


def invalid(problem: str) -> CallError:
    """For a request that is wrong before it is sent."""
    return error_of(grpc.StatusCode.INVALID_ARGUMENT, problem)


def read(error: grpc.RpcError, service: str, seconds: float | None = None) -> CallError:
    """The CallError for an error of the transport. `service`: the addresses, for people; `seconds`: of its timeout.

    Details of the transport become advice for a person; those of the service stay as they are.
    """
    code, details = error.code(), error.details() or ""
    not_sent = failure_of(code, details, None) is Failure.NOT_SENT
    if code is grpc.StatusCode.DEADLINE_EXCEEDED and seconds is not None and by_transport(details):
        details = f"no answer within the timeout of {seconds * 1000:.0f} ms; allow more time"
    elif not_sent and _UNHEALTHY in details:
        details = (
            f"no replica at {service} can answer: it starts, it stops, or it is a router without an endpoint; "
            "try again in a moment, or see its log"
        )
    elif not_sent and (advice := [advice for sign, advice in _MISMATCHED.items() if sign in details]):
        details = f"the service at {service} {advice[0]}"
    elif not_sent and (cause := _CAUSE.search(details)):
        details = f"no service at {service} ({cause[1]}); is it running? `make up` starts one"
    return error_of(code, details, trailers_of(error))
