"""The context of a call that came by HTTP, as the handler of a gRPC method sees it."""

import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from realtime_service.telemetry.calls import TRACEPARENT, TRACESTATE
from realtime_service.telemetry.scope import HttpCall
from realtime_service.transport.authentication import AUTHORIZATION, CALLER_ID
from realtime_service.transport.call_context import LANE
from realtime_service.transport.plain_call_context import PlainCallContext
from shared_model.errors import BadInput

#: Header, and parameter of a stream that a browser opens without headers: milliseconds until the caller's deadline.
TIMEOUT, TIMEOUT_PARAMETER = "x-timeout-ms", "timeout_ms"
#: Headers that become metadata. No other does: some that replicas exchange let a call select its place.
_TAKEN = frozenset(name.encode() for name in (AUTHORIZATION, CALLER_ID, LANE, TRACEPARENT, TRACESTATE))


async def _no_stream(answer: Any) -> None:
    raise TypeError("a call with one answer returns it")


@dataclass(slots=True)
class HttpCallContext(PlainCallContext):
    """`write`: takes the answers of a stream."""

    write: Callable[[Any], Awaitable[None]] = _no_stream


def context_of(request: Request, http: HttpCall) -> HttpCallContext:
    """Raises: BadInput."""
    left = _left(request)
    due = None if left is None else time.monotonic() + left
    return HttpCallContext(tuple(_metadata(request)), due, peer_of(request), http=http)


def peer_of(request: Request) -> str:
    """The caller's address as gRPC names it."""
    host, port = request.client or ("", 0)
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def _metadata(request: Request) -> Iterator[tuple[str, str]]:
    for name, value in request.scope["headers"]:
        if name in _TAKEN:
            if not value.isascii():
                raise BadInput(name.decode(), "holds a character that is not ASCII")
            yield name.decode(), value.decode()


def _left(request: Request) -> float | None:
    """Seconds until the caller's deadline."""
    asked = request.headers.get(TIMEOUT) or request.query_params.get(TIMEOUT_PARAMETER)
    if not asked:
        return None
    if not (asked.isascii() and asked.isdigit() and 0 < len(asked) < 10):
        raise BadInput(TIMEOUT, f"is {asked[:32]!r}, must be a whole number of milliseconds")
    return int(asked) / 1000
