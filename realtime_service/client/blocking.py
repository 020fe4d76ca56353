"""The client for threads."""

import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import NoReturn, TypeVar, Unpack

import grpc

from protos.scoring.v1 import scoring_pb2
from protos.scoring.v1.scoring_pb2_grpc import ScoringServiceStub
from realtime_service.client import calls, channel, errors
from realtime_service.client.answers import Answer, Deferred
from realtime_service.client.calls import (
    Call,
    ScoreOptions,
    StreamOptions,
    SubmitOptions,
    SubmitStreamOptions,
    Text,
    Work,
)
from realtime_service.client.errors import CallError
from realtime_service.client.retry import Attempts, Retries

Reply = TypeVar("Reply")


class Client:
    """Calls a service from any number of threads. Every call raises CallError: see `realtime_service.client.errors`.

    >>> with Client("127.0.0.1:50051") as client:
    ...     answer = client.score("my card has not arrived", timeout_ms=80)
    ...     print(answer.label, answer.score)
    """

    def __init__(
        self, addresses: str | Sequence[str] = channel.DEFAULT_ADDRESS, *, caller_id: str = "", attempts: int = 3
    ) -> None:
        """`addresses`: see `channel.target`. `caller_id`: who calls, by default the host; a canary release answers a
        caller always or never. `attempts`: how often a call may be made, 1 for no second one; see `retry`."""
        self._metadata = channel.metadata(caller_id)
        self._retries = Retries(attempts)
        self._closed = threading.Event()
        self._channel = grpc.insecure_channel(channel.target(addresses), options=channel.OPTIONS)
        self._stub = ScoringServiceStub(self._channel)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(channel.ONE_PROCESS)

    def close(self) -> None:
        """Calls under way end with Unavailable, those that wait for another attempt included."""
        self._retries.close()
        self._closed.set()
        self._channel.close()

    def score(self, texts: str | Sequence[str], **options: Unpack[ScoreOptions]) -> Answer:
        """Score one text or several (1 to 64), all or none."""
        return self._call(calls.score(texts, options))

    def stream(
        self, texts: Iterable[Text], **options: Unpack[StreamOptions]
    ) -> Iterator[tuple[int, Answer | CallError]]:
        """Score any number of texts over one connection: (number of the text, its answer or why it has none), as they
        finish. Texts are taken as fast as answers are. A connection that breaks ends it: texts are not sent twice."""
        stream = self._stub.ScoreStream(calls.stream(texts, options), metadata=self._metadata)
        try:
            yield from map(calls.streamed, stream)
        except grpc.RpcError as error:
            raise errors.read(error) from None
        finally:
            stream.cancel()

    def submit(self, request_id: str, texts: str | Sequence[str], **options: Unpack[SubmitOptions]) -> Deferred:
        """Hand in work that can wait. Safe to repeat with the same `request_id`."""
        return self._call(calls.submit(request_id, texts, options))

    def submit_stream(
        self, work: Iterable[Work], **options: Unpack[SubmitStreamOptions]
    ) -> Iterator[tuple[str, Deferred | CallError]]:
        """Hand in any amount of work, (request id, texts) each, over one connection: (request id, what became of it) as
        it is stored. Work is taken as fast as it is stored. A connection that breaks ends it: what has no answer by
        then may have been stored, and is safe to hand in again."""
        stream = self._stub.SubmitStream(calls.submit_stream(work, options), metadata=self._metadata)
        try:
            yield from itertools.chain.from_iterable(map(calls.submitted_together, stream))
        except grpc.RpcError as error:
            raise errors.read(error) from None
        finally:
            stream.cancel()

    def result(self, request_id: str) -> Deferred:
        """Where submitted work is, and its answer once published."""
        return self._call(calls.result(request_id))

    def watch(self, request_ids: Iterable[str], *, seconds: float = calls.DEFAULT_DEADLINE) -> Iterator[Deferred]:
        """The ends of submitted work, each once, as they come; goes on elsewhere, once, when its connection
        breaks. Raises: DeadlineExceeded when not all have ended after `seconds`.
        """
        watched = calls.Watched(request_ids)
        attempts = self._retries.begin(seconds)
        while True:
            try:
                messages = self._stub.WatchResults(watched.request(), timeout=attempts.left, metadata=self._metadata)
            except ValueError as error:
                raise attempts.closed(error) from None
            try:
                yield from map(watched.ended, messages)
                return
            except grpc.RpcError as error:
                self._pause(attempts, error)
            finally:
                messages.cancel()

    def describe(self) -> scoring_pb2.DescribeResponse:
        """What the replica that answers serves, as the message of the wire."""
        return self._call(calls.describe())

    def _call(self, call: Call[Reply]) -> Reply:
        method = getattr(self._stub, call.method)
        attempts = self._retries.begin(call.seconds)
        while True:
            try:
                reply = method(call.request, timeout=attempts.left, metadata=self._metadata)
            except grpc.RpcError as error:
                self._pause(attempts, error)
            except ValueError as error:
                raise attempts.closed(error) from None
            else:
                attempts.answered()
                return call.read(reply)

    def _pause(self, attempts: Attempts, error: grpc.RpcError) -> None:
        """Until the next attempt. Raises: CallError when there is none, Unavailable when this client is closed."""
        if self._closed.wait(attempts.failed(error)):
            raise attempts.closed()
