"""The one table from gRPC's status codes to HTTP's, and the body of an error."""

import math

import grpc
from starlette.responses import Response

from realtime_service.errors import Status
from realtime_service.http import json_messages
from realtime_service.rpc.retryable import retry_after
from realtime_service.transport.plain_call_context import PlainCallContext

Code = grpc.StatusCode

STATUSES: dict[grpc.StatusCode, int] = {
    Code.OK: 200,
    Code.INVALID_ARGUMENT: 400,
    Code.FAILED_PRECONDITION: 400,
    Code.OUT_OF_RANGE: 400,
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.NOT_FOUND: 404,
    Code.UNIMPLEMENTED: 404,
    Code.ALREADY_EXISTS: 409,
    Code.ABORTED: 409,
    Code.RESOURCE_EXHAUSTED: 429,
    # As nginx says that the client left.
    Code.CANCELLED: 499,
    Code.INTERNAL: 500,
    Code.DATA_LOSS: 500,
    Code.UNKNOWN: 500,
    Code.UNAVAILABLE: 503,
    Code.DEADLINE_EXCEEDED: 504,
}
#: A message that is larger than any valid one is the one exhaustion that no retry helps.
_TOO_LARGE = 413


def http_status(status: Status) -> int:
    if status.code is Code.RESOURCE_EXHAUSTED and status.retry_after is None:
        return _TOO_LARGE
    return STATUSES[status.code]


def status_of_call(context: PlainCallContext) -> Status:
    """The status that a handler has set."""
    return Status(context.status, context.details, retry_after(context.trailers))


def body(status: Status) -> dict[str, object]:
    """`error` is a text, as Open Inference wants it."""
    hint = {"retry_after_ms": status.retry_after_ms} if status.retry_after_ms else {}
    return {"error": status.message, "code": status.code.name, **hint}


def error_response(status: Status, code: int = 0) -> Response:
    """`code`: of HTTP, where it is not that of the table."""
    headers = {"content-type": "application/json"}
    if status.retry_after is not None:
        # Whole seconds; the other header is exact.
        headers["retry-after"] = str(max(1, math.ceil(status.retry_after)))
        headers["retry-after-ms"] = str(status.retry_after_ms)
    if status.code is Code.UNAUTHENTICATED:
        headers["www-authenticate"] = "Bearer"
    return Response(json_messages.encode(body(status)), code or http_status(status), headers)
