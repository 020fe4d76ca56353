"""The context of a call on a peer stream, as its handler sees it."""

from dataclasses import dataclass

import grpc

from realtime_service.rpc.retryable import Trailers
from realtime_service.transport.plain_call_context import PlainCallContext


class Aborted(Exception):
    """The end of a call without an answer."""

    def __init__(self, code: grpc.StatusCode, details: str, trailers: Trailers = ()) -> None:
        super().__init__(details)
        self.code: int = code.value[0]
        self.details = details
        self.trailers = trailers


@dataclass(slots=True)
class PeerCallContext(PlainCallContext):
    """`authenticated`: the stream is, so that its calls carry no credentials."""

    authenticated: bool
