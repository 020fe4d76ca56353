"""The context of a call on a peer stream, as its handler sees it."""

import time
from dataclasses import dataclass

import grpc

from realtime_service.rpc.retryable import Trailers


class Aborted(Exception):
    """The end of a call without an answer."""

    def __init__(self, code: grpc.StatusCode, details: str, trailers: Trailers = ()) -> None:
        super().__init__(details)
        self.code: int = code.value[0]
        self.details = details
        self.trailers = trailers


@dataclass(slots=True)
class PeerCallContext:
    """The gRPC context of a call on a peer stream. `due`: monotonic seconds, or None. `authenticated`: the stream
    is, so that its calls carry no credentials. `status`, `details`, `trailers`: of its end."""

    metadata: Trailers
    due: float | None
    address: str
    authenticated: bool
    status: grpc.StatusCode = grpc.StatusCode.OK
    details: str = ""
    trailers: Trailers = ()

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
