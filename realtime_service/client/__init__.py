"""The Python client of scoring.v1, for threads (`Client`) and for event loops (`AsyncClient`).

Make one and keep it: it holds a connection to each replica, spreads calls over them in turn, leaves out those that
drain, hang or are gone, and makes a call again where that is safe and helps (`channel` has the rule). A `Client` may be
shared by threads, an `AsyncClient` by the tasks of one event loop; neither by processes: make one in each, after it was
forked or spawned. Both close with their `with` block; an iterator of `stream` or `watch` that is left early ends its
call when it is closed or collected.
"""

from realtime_service.client.answers import Answer, Deferred, LastNight
from realtime_service.client.asynchronous import AsyncClient
from realtime_service.client.blocking import Client
from realtime_service.client.calls import DEFAULT_DEADLINE
from realtime_service.client.channel import DEFAULT_ADDRESS
from realtime_service.client.errors import (
    CallError,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    Overloaded,
    ServiceFailed,
    Unavailable,
)
from realtime_service.client.tls import Tls

__all__ = [
    "DEFAULT_ADDRESS",
    "DEFAULT_DEADLINE",
    "Answer",
    "AsyncClient",
    "CallError",
    "Client",
    "DeadlineExceeded",
    "Deferred",
    "InvalidRequest",
    "LastNight",
    "NotFound",
    "Overloaded",
    "ServiceFailed",
    "Tls",
    "Unavailable",
]
