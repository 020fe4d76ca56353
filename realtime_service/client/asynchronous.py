"""The client for event loops."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn, TypeVar, Unpack

import grpc
import grpc.aio

from protos.scoring.v1 import scoring_pb2
from protos.scoring.v1.scoring_pb2_grpc import ScoringServiceStub
from realtime_service.client import calls, channel, errors, traces
from realtime_service.client.answers import Answer, Deferred, LastNight
from realtime_service.client.calls import (
    Call,
    ScoreOptions,
    StreamOptions,
    SubmitOptions,
    SubmitStreamOptions,
)
from realtime_service.client.errors import CallError
from realtime_service.client.streams import ScoreStream, SubmitStream, Text, Work
from realtime_service.client.tickets import NO_TICKETS, Tickets
from realtime_service.client.tls import Tls, check_token, secured

Reply = TypeVar("Reply")


class AsyncClient:
    """`Client` for one event loop: the one it first calls in. A task that is cancelled takes its call with it.

    >>> async with AsyncClient("127.0.0.1:50051") as client:
    ...     answer = await client.score("my card has not arrived", timeout_ms=80)
    """

    def __init__(
        self,
        addresses: str | Sequence[str] = channel.DEFAULT_ADDRESS,
        *,
        caller_id: str = "",
        token: channel.Token = "",
        attempts: int = 2,
        tls: bool | Tls = False,
        insecure: bool = False,
    ) -> None:
        """As `Client`; a function that returns the token must not block. May be made before there is a loop; it
        connects with its first call."""
        check_token(token, addresses, tls, insecure)
        self._tls = secured(tls, addresses)
        self._caller = channel.Caller(caller_id, token)
        self._attempts = attempts
        self._tickets = Tickets()
        self._service = channel.named(addresses)
        self._options = channel.options(attempts)
        self._target = channel.target(addresses)
        self._channel: grpc.aio.Channel | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(channel.ONE_PROCESS)

    async def close(self) -> None:
        """Calls under way are cancelled, those that wait for another attempt included: their tasks meet
        asyncio.CancelledError."""
        if self._channel:
            await self._channel.close(grace=None)

    async def score(self, texts: str | Sequence[str], **options: Unpack[ScoreOptions]) -> Answer:
        """As `Client.score`."""
        scoring = calls.Scoring(texts, options)
        for call in scoring:
            scoring.add(await self._call(call))
        return scoring.answer

    async def stream(
        self, texts: Iterable[Text] | AsyncIterable[Text], **options: Unpack[StreamOptions]
    ) -> AsyncIterator[tuple[int, Answer | CallError]]:
        """As `Client.stream`: a text that is refused raises nothing, its value is the CallError."""
        sent = ScoreStream(options)
        stream = self._connected().ScoreStream(
            sent.requests_later(texts) if isinstance(texts, AsyncIterable) else sent.requests(texts),
            metadata=self._caller.metadata(options.get("lane", "")),
        )
        try:
            async for message in stream:
                number, found = sent.read(message)
                yield number, self._tickets.kept(found)
            sent.end()
        except grpc.RpcError as error:
            raise errors.read(error, self._service) from None
        finally:
            stream.cancel()

    async def submit(self, request_id: str, texts: str | Sequence[str], **options: Unpack[SubmitOptions]) -> Deferred:
        """As `Client.submit`."""
        return await self._call(calls.submit(request_id, texts, options))

    async def submit_stream(
        self, work: Iterable[Work] | AsyncIterable[Work], **options: Unpack[SubmitStreamOptions]
    ) -> AsyncIterator[tuple[str, Deferred | CallError]]:
        """As `Client.submit_stream`."""
        sent = SubmitStream(options)
        stream = self._connected().SubmitStream(
            sent.requests_later(work) if isinstance(work, AsyncIterable) else sent.requests(work),
            metadata=self._caller.metadata(),
        )
        try:
            async for message in stream:
                for request_id, found in sent.read(message):
                    yield request_id, self._tickets.kept(found)
            sent.end()
        except grpc.RpcError as error:
            raise errors.read(error, self._service) from None
        finally:
            stream.cancel()

    async def result(self, request_id: str, *, ticket: str = "") -> Deferred:
        """As `Client.result`."""
        return await self._call(calls.result(request_id, ticket or self._tickets[request_id]))

    async def watch(
        self,
        request_ids: Iterable[str],
        *,
        seconds: float = calls.DEFAULT_DEADLINE,
        tickets: Mapping[str, str] = NO_TICKETS,
    ) -> AsyncIterator[Deferred]:
        """As `Client.watch`."""
        asked = self._tickets.of(request_ids, tickets)
        watched, metadata = calls.Watched(asked, seconds, self._attempts), self._caller.metadata()
        while True:
            messages = self._connected().WatchResults(watched.request(), timeout=watched.left, metadata=metadata)
            try:
                async for message in messages:
                    yield watched.ended(message)
                return
            except grpc.RpcError as error:
                broken = errors.read(error, self._service, seconds)
                if not watched.goes_on(broken):
                    raise broken from None
            finally:
                messages.cancel()

    async def lookup(self, ids: str | Sequence[str], *, top_k: int = 0, model: str = "") -> LastNight:
        """As `Client.lookup`."""
        return await self._call(calls.lookup(ids, top_k, model))

    async def describe(self, *, model: str = "") -> scoring_pb2.DescribeResponse:
        """As `Client.describe`."""
        return await self._call(calls.describe(model))

    async def _call(self, call: Call[Reply]) -> Reply:
        method = getattr(self._connected(), call.method)
        try:
            with traces.calling(call.method):
                metadata = (*self._caller.metadata(call.lane), *traces.propagated())
                reply = await method(call.request, timeout=call.left, metadata=metadata)
        except grpc.RpcError as error:
            raise errors.read(error, self._service, call.seconds) from None
        return self._tickets.kept(call.read(reply))

    def _connected(self) -> Any:
        """The stub. Raises: RuntimeError in another loop than that of the first call."""
        loop = asyncio.get_running_loop()
        if self._channel is None:
            self._loop, secure = loop, self._tls
            self._channel = (
                grpc.aio.secure_channel(self._target, secure.credentials(), (*self._options, *secure.options))
                if secure
                else grpc.aio.insecure_channel(self._target, self._options)
            )
            self._stub = ScoringServiceStub(self._channel)
        if loop is not self._loop:
            raise RuntimeError("this client has called in another event loop: make one for each loop")
        return self._stub
