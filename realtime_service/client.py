"""The Python client: a typed, synchronous face of scoring.v1.ScoringService."""

import json
from collections.abc import Sequence
from types import TracebackType

import grpc

from protos.scoring.v1 import scoring_pb2
from protos.scoring.v1.scoring_pb2_grpc import ScoringServiceStub
from shared_model.types import Priority

DEFAULT_ADDRESS = "127.0.0.1:50051"
#: Seconds a call without a timeout of its own may take.
DEFAULT_DEADLINE = 30.0

#: Follow the service's health, so that a replica that drains gets no new calls before it closes its listener.
_SERVICE_CONFIG = json.dumps(
    {
        "loadBalancingConfig": [{"round_robin": {}}],
        "healthCheckConfig": {"serviceName": "scoring.v1.ScoringService"},
    }
)

_PRIORITIES = {
    Priority.UNSPECIFIED: scoring_pb2.PRIORITY_UNSPECIFIED,
    Priority.REAL_TIME: scoring_pb2.REAL_TIME,
    Priority.NORMAL: scoring_pb2.NORMAL,
    Priority.BATCH: scoring_pb2.BATCH,
}


class Client:
    """One connection; safe to share between threads. Calls raise grpc.RpcError with the status of the failure.

    >>> with Client("127.0.0.1:50051") as client:
    ...     answer = client.score("my card has not arrived", timeout_ms=80)
    ...     print(answer.results[0].labels[0].name)
    """

    def __init__(self, address: str = DEFAULT_ADDRESS, caller_id: str = "") -> None:
        """`caller_id` names who calls: a canary release answers a caller always or never. By default it is the host."""
        self._metadata = (("x-caller-id", caller_id),) if caller_id else ()
        self._channel = grpc.insecure_channel(address, options=[("grpc.service_config", _SERVICE_CONFIG)])
        self._stub = ScoringServiceStub(self._channel)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def score(
        self,
        texts: str | Sequence[str],
        *,
        timeout_ms: int | None = None,
        priority: Priority = Priority.UNSPECIFIED,
        top_k: int = 3,
        release: str = "",
        text_pairs: str | Sequence[str] = (),
    ) -> scoring_pb2.ScoreResponse:
        """Score one text or several (1 to 64). `timeout_ms` is the caller's patience and also chooses the lane.

        `text_pairs`: the second text of each pair, for a release that reads pairs.
        """
        request = scoring_pb2.ScoreRequest(
            texts=_several(texts),
            text_pairs=_several(text_pairs),
            priority=_PRIORITIES[priority],
            timeout_ms=timeout_ms or 0,
            top_k=top_k,
            release=release,
        )
        response: scoring_pb2.ScoreResponse = self._stub.Score(
            request, timeout=timeout_ms / 1000 if timeout_ms else DEFAULT_DEADLINE, metadata=self._metadata
        )
        return response

    def submit(
        self, request_id: str, texts: str | Sequence[str], *, top_k: int = 3, text_pairs: str | Sequence[str] = ()
    ) -> scoring_pb2.SubmitResponse:
        """Hand in work that can wait. Safe to repeat with the same `request_id`."""
        request = scoring_pb2.ScoreRequest(
            request_id=request_id, texts=_several(texts), text_pairs=_several(text_pairs), top_k=top_k
        )
        response: scoring_pb2.SubmitResponse = self._stub.Submit(
            scoring_pb2.SubmitRequest(request=request), timeout=DEFAULT_DEADLINE
        )
        return response

    def result(self, request_id: str) -> scoring_pb2.GetResultResponse:
        """The state of submitted work, and its answer once published."""
        response: scoring_pb2.GetResultResponse = self._stub.GetResult(
            scoring_pb2.GetResultRequest(request_id=request_id), timeout=DEFAULT_DEADLINE
        )
        return response

    def describe(self) -> scoring_pb2.DescribeResponse:
        response: scoring_pb2.DescribeResponse = self._stub.Describe(
            scoring_pb2.DescribeRequest(), timeout=DEFAULT_DEADLINE
        )
        return response


def _several(texts: str | Sequence[str]) -> Sequence[str]:
    return [texts] if isinstance(texts, str) else texts
