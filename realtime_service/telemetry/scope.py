"""The request that a task works for, as logs name it."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

import grpc

from shared_model import tracing
from shared_model.tracing import Work


@dataclass(frozen=True, slots=True)
class HttpCall:
    """A call that came by HTTP: its verb and the path of its route. `status`: of HTTP, for one of gRPC."""

    verb: str
    route: str
    status: Callable[[grpc.StatusCode], int]


@dataclass(slots=True)
class Scope:
    """`caller`: its key. `request_id`: once it is read. `work`: if the request is sampled, also after its end.
    `http`: None for a call of gRPC."""

    caller: str
    http: HttpCall | None = None
    request_id: str = ""
    work: Work | None = None


SCOPE: ContextVar[Scope | None] = ContextVar("SCOPE", default=None)


def name_request(request_id: str) -> None:
    """Note the id that the caller has given the request."""
    if scope := SCOPE.get():
        scope.request_id = request_id


def ids() -> dict[str, str]:
    """The ids of request, trace and caller that this task works for, as far as they are known."""
    scope = SCOPE.get()
    named = {"request_id": scope.request_id, "caller": scope.caller} if scope else {}
    work = (scope and scope.work) or tracing.current()
    return {name: value for name, value in {**named, **(work.ids if work else {})}.items() if value}
