"""The context of a call that did not come by gRPC, as its handler sees it."""

import time
from dataclasses import dataclass, field

import grpc

from realtime_service.rpc.retryable import Trailers
from realtime_service.telemetry.scope import HttpCall


@dataclass(slots=True)
class PlainCallContext:
    """`metadata`: of the call; `due`: monotonic seconds, or None; `address`: of the caller, as gRPC names it. `status`,
    `details`, `trailers`: of its end. `http`: for a call that came so."""

    metadata: Trailers
    due: float | None
    address: str
    status: grpc.StatusCode = field(default=grpc.StatusCode.OK, init=False)
    details: str = field(default="", init=False)
    trailers: Trailers = field(default=(), init=False)
    http: HttpCall | None = field(default=None, kw_only=True)

    def invocation_metadata(self) -> Trailers:
        return self.metadata

    def time_remaining(self) -> float | None:
        return None if self.due is None else max(0.0, self.due - time.monotonic())

    def peer(self) -> str:
        return self.address

    def set_code(self, code: grpc.StatusCode) -> None:
        self.status = code

    def set_details(self, details: str) -> None:
        self.details = details

    def set_trailing_metadata(self, trailers: Trailers) -> None:
        self.trailers = trailers
