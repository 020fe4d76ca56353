"""The client for threads."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import NoReturn, TypeVar, Unpack

import grpc

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


class Client:
    """Calls a service from any number of threads. Every call raises CallError: see `realtime_service.client.errors`.

    >>> with Client("127.0.0.1:50051") as client:
    ...     answer = client.score("my card has not arrived", timeout_ms=80)
    ...     print(answer.label, answer.score)
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
        """`addresses`: see `channel.target`. `caller_id`: who calls, by default the host; a canary release answers a
        caller always or never. `token`: a bearer token that proves who calls, or a function that returns it, called
        before each call so that it can renew it. `attempts`: how often a call may be made, 1 or 2; see `channel`.
        `tls`: True for the system's authorities, or a `Tls`. A token is not sent to other hosts without TLS, unless the
        call is `insecure`. Raises: BadInput."""
        check_token(token, addresses, tls, insecure)
        self._caller = channel.Caller(caller_id, token)
        self._attempts = attempts
        self._tickets = Tickets()
        self._service = channel.named(addresses)
        target, options, secure = channel.target(addresses), channel.options(attempts), secured(tls, addresses)
        self._channel = (
            grpc.secure_channel(target, secure.credentials(), options=(*options, *secure.options))
            if secure
            else grpc.insecure_channel(target, options=options)
        )
        self._stub = ScoringServiceStub(self._channel)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(channel.ONE_PROCESS)

    def close(self) -> None:
        """Calls under way end with Unavailable, those that wait for another attempt included."""
        self._channel.close()

    def score(self, texts: str | Sequence[str], **options: Unpack[ScoreOptions]) -> Answer:
        """Score one text or any number, each of 1 byte to 64 KiB of UTF-8; what is longer than the model reads
        (`describe().max_tokens`) is cut, and its result says `truncated`.

        Up to 64 texts, and 4 MiB, are one call: all are answered or none. More are several calls of 64, one after the
        other, with the same priority and lane, by one release, within one `timeout_ms` for all. The first that fails
        ends it: its error is raised, and the answers before it are lost. For very many, or where each is to fail by
        itself, see `stream`. `allow_deferred` is for one call.
        """
        scoring = calls.Scoring(texts, options)
        for call in scoring:
            scoring.add(self._call(call))
        return scoring.answer

    def stream(
        self, texts: Iterable[Text], **options: Unpack[StreamOptions]
    ) -> Iterator[tuple[int, Answer | CallError]]:
        """Score any number of texts over one connection: (number of the text, its answer or why it has none), as they
        finish. Texts are taken as fast as answers are. A connection that breaks ends it: texts are not sent twice.

        **A text that is refused raises nothing: its value is the CallError**, so look at each with `isinstance(value,
        CallError)`. Nothing is tried again: an Overloaded says in `retry_after` when to send the text anew. An error of
        `texts` itself ends the stream, and is raised after the answers to the texts before it.
        """
        sent = ScoreStream(options)
        metadata = self._caller.metadata(options.get("lane", ""))
        stream = self._stub.ScoreStream(sent.requests(texts), metadata=metadata)
        try:
            for message in stream:
                number, found = sent.read(message)
                yield number, self._tickets.kept(found)
            sent.end()
        except grpc.RpcError as error:
            raise errors.read(error, self._service) from None
        finally:
            stream.cancel()

    def submit(self, request_id: str, texts: str | Sequence[str], **options: Unpack[SubmitOptions]) -> Deferred:
        """Hand in work that can wait, 1 to 64 texts. Safe to repeat with the same `request_id` (256 characters)."""
        return self._call(calls.submit(request_id, texts, options))

    def submit_stream(
        self, work: Iterable[Work], **options: Unpack[SubmitStreamOptions]
    ) -> Iterator[tuple[str, Deferred | CallError]]:
        """Hand in any amount of work, (request id, texts) each, over one connection: (request id, what became of it) as
        it is stored. Work is taken as fast as it is stored. Work that is refused raises nothing: its value is the
        CallError. A connection that breaks ends it: what has no answer by then may have been stored, and is safe to
        hand in again."""
        sent = SubmitStream(options)
        stream = self._stub.SubmitStream(sent.requests(work), metadata=self._caller.metadata())
        try:
            for message in stream:
                for request_id, found in sent.read(message):
                    yield request_id, self._tickets.kept(found)
            sent.end()
        except grpc.RpcError as error:
            raise errors.read(error, self._service) from None
        finally:
            stream.cancel()

    def result(self, request_id: str, *, ticket: str = "") -> Deferred:
        """Where submitted work is, and its answer once published. `ticket`: that of its `Deferred`, for work that
        another client has submitted, where the service asks for it."""
        return self._call(calls.result(request_id, ticket or self._tickets[request_id]))

    def watch(
        self,
        request_ids: Iterable[str],
        *,
        seconds: float = calls.DEFAULT_DEADLINE,
        tickets: Mapping[str, str] = NO_TICKETS,
    ) -> Iterator[Deferred]:
        """The ends of submitted work (1 to 1000 ids), each once, as they come; goes on elsewhere, once, when its
        connection breaks. `tickets`: as in `result`, by request id. Raises: DeadlineExceeded when not all have ended
        after `seconds`.
        """
        asked = self._tickets.of(request_ids, tickets)
        watched, metadata = calls.Watched(asked, seconds, self._attempts), self._caller.metadata()
        broken: CallError | None = None
        while True:
            try:
                messages = self._stub.WatchResults(watched.request(), timeout=watched.left, metadata=metadata)
            except ValueError as closed:
                raise broken or closed from None
            try:
                yield from map(watched.ended, messages)
                return
            except grpc.RpcError as error:
                broken = errors.read(error, self._service, seconds)
                if not watched.goes_on(broken):
                    raise broken from None
            finally:
                messages.cancel()

    def lookup(self, ids: str | Sequence[str], *, top_k: int = 0, model: str = "") -> LastNight:
        """Last night's scores of 1 to 64 messages by their ids, as the archive has them; nothing is computed. `top_k`
        and `model`: as in `score`. Raises: NotFound where no night of the active release is published."""
        return self._call(calls.lookup(ids, top_k, model))

    def describe(self, *, model: str = "") -> scoring_pb2.DescribeResponse:
        """The description of the replica that answers, as the message of the wire. `model`: by default the default
        one."""
        return self._call(calls.describe(model))

    def _call(self, call: Call[Reply]) -> Reply:
        method = getattr(self._stub, call.method)
        try:
            with traces.calling(call.method):
                metadata = (*self._caller.metadata(call.lane), *traces.propagated())
                reply = method(call.request, timeout=call.left, metadata=metadata)
        except grpc.RpcError as error:
            raise errors.read(error, self._service, call.seconds) from None
        return self._tickets.kept(call.read(reply))
