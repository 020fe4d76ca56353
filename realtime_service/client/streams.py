"""Streams over one connection: the requests of a caller's items, and how messages are read."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import grpc

from protos.scoring.v1 import scoring_pb2
from realtime_service.client import answers, calls, errors
from realtime_service.client.answers import Answer, Deferred
from realtime_service.client.arguments import check_text, check_timeout, several
from realtime_service.client.calls import StreamOptions, SubmitStreamOptions
from realtime_service.client.errors import CallError
from realtime_service.rpc.retryable import RETRY_AFTER

_CODES = {code.value[0]: code for code in grpc.StatusCode}

#: One text, or a pair for a release that reads pairs.
Text = str | tuple[str, str]
#: Work that is handed in: its request id, and its text or texts.
Work = tuple[str, str | Sequence[str]]

Item = TypeVar("Item")
Request = TypeVar("Request", scoring_pb2.ScoreRequest, scoring_pb2.SubmitRequest)


class _Stream(ABC, Generic[Item, Request]):
    """The items of a caller, as requests. An item that cannot be sent is refused in its turn: the service gets a
    request of the same id without texts. An error of the caller's own iterator ends the requests, and waits for the
    answers to them.
    """

    def __init__(self) -> None:
        self._refused: dict[str, CallError] = {}
        self._broken: Exception | None = None

    def requests(self, items: Iterable[Item]) -> Iterator[Request]:
        # A str is one text, not its characters.
        given: Iterable[Any] = [items] if isinstance(items, str) else items
        try:
            for number, item in enumerate(given):
                yield self._request(number, item)
        except Exception as error:  # noqa: BLE001 - the caller's own: `end` raises it
            self._broken = error

    async def requests_later(self, items: AsyncIterable[Item]) -> AsyncIterator[Request]:
        number = 0
        try:
            async for item in items:
                yield self._request(number, item)
                number += 1
        except Exception as error:  # noqa: BLE001 - the caller's own: `end` raises it
            self._broken = error

    def end(self) -> None:
        """After the last answer. Raises: the error of the caller's iterator."""
        if self._broken is not None:
            raise self._broken

    @abstractmethod
    def _request(self, number: int, item: Item) -> Request: ...

    def _error(self, request_id: str, failed: scoring_pb2.StreamError) -> CallError:
        hint = ((RETRY_AFTER, str(failed.retry_after_ms)),) if failed.retry_after_ms else ()
        refused = self._refused.pop(request_id, None)
        return refused or errors.error_of(_CODES[failed.code], failed.message, hint)


class ScoreStream(_Stream[Text, scoring_pb2.ScoreRequest]):
    """Texts, named by their numbers from 0."""

    def __init__(self, options: StreamOptions) -> None:
        """Raises: InvalidRequest."""
        super().__init__()
        check_timeout(options.get("timeout_ms"))
        self._options = options

    def read(self, message: scoring_pb2.ScoreStreamResponse) -> tuple[int, Answer | CallError]:
        """(number of the text, how it ended)"""
        number = int(message.request_id)
        if message.HasField("response"):
            try:
                return number, calls.checked_answer(message.response, self._options.get("model", ""))
            except CallError as error:
                return number, error
        return number, self._error(message.request_id, message.error)

    def _request(self, number: int, item: Text) -> scoring_pb2.ScoreRequest:
        name = str(number)
        first, second = item if isinstance(item, tuple) else (item, "")
        try:
            pairs = several("text_pairs", [second] if second else [])
            return calls.score_request(several("texts", [first]), pairs, request_id=name, **self._options)
        except CallError as error:
            self._refused[name] = error
            return scoring_pb2.ScoreRequest(request_id=name)


class SubmitStream(_Stream[Work, scoring_pb2.SubmitRequest]):
    """Work, named by its request ids."""

    def __init__(self, options: SubmitStreamOptions) -> None:
        super().__init__()
        self._options = options

    def read(self, message: scoring_pb2.SubmitStreamResponse) -> Iterator[tuple[str, Deferred | CallError]]:
        """(request id, what became of it) of each."""
        for it in message.outcomes:
            stored = it.HasField("response")
            yield it.request_id, answers.submitted(it.response) if stored else self._error(it.request_id, it.error)

    def _request(self, number: int, item: Work) -> scoring_pb2.SubmitRequest:
        request_id, texts = item
        check_text("request_id", request_id)
        try:
            return calls.submission(request_id, texts, self._options)
        except CallError as error:
            self._refused[request_id] = error
            return scoring_pb2.SubmitRequest(request=scoring_pb2.ScoreRequest(request_id=request_id))
