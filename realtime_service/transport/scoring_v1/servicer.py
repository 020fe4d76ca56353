"""scoring.v1.ScoringService: translates between messages and the dispatcher."""

import asyncio
import contextlib
import functools
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from protos.scoring.v1 import scoring_pb2
from realtime_service.errors import MessageTooLarge, Overloaded, Status
from realtime_service.identity import Identity
from realtime_service.serving.accounting import outcome_of
from realtime_service.serving.deferral import Deferral
from realtime_service.serving.dispatcher import Dispatcher
from realtime_service.serving.message_lookup import MessageLookup
from realtime_service.serving.request import CallContext, ScoringRequest
from realtime_service.serving.result_watcher import Watcher
from realtime_service.serving.score_response import score_response
from realtime_service.telemetry.metrics import Metrics, Outcome
from realtime_service.telemetry.scope import name_request
from realtime_service.transport import messages, outlines, rpc_handlers
from realtime_service.transport.accept_queue import ARRIVED
from realtime_service.transport.call_context import ContextReader
from realtime_service.transport.relay import Relay
from realtime_service.transport.rpc_handlers import Arrival, Context
from realtime_service.transport.scoring_v1 import requests, responses
from realtime_service.transport.scoring_v1.submit_stream import Held, SubmitBatcher
from realtime_service.transport.streaming import OpenStreams
from shared_model.deferred import Accepted
from shared_model.errors import BadInput

SERVICE = "scoring.v1.ScoringService"
SCORE, SUBMIT, LOOKUP, DESCRIBE = (f"/{SERVICE}/{method}" for method in ("Score", "Submit", "Lookup", "Describe"))
#: Methods that other replicas forward.
FORWARDED = (SCORE, LOOKUP, DESCRIBE)

Checked = TypeVar("Checked")


@dataclass(frozen=True)
class Stores:
    """Deferred requests, the ends of those that callers watch, and the scores of the night."""

    deferral: Deferral
    watcher: Watcher
    lookup: MessageLookup


class ScoringServicer:
    """Handlers take raw bytes (see `messages`) and return messages, or write them to the context."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        context_reader: ContextReader,
        stores: Stores,
        streams: OpenStreams,
        describe: Callable[[bool, str], scoring_pb2.DescribeResponse],
        metrics: Metrics,
        relay: Relay | None,
    ) -> None:
        """`describe`: as `ReplicaStatus.describe`; `relay`: for a process without lanes."""
        self._dispatcher = dispatcher
        self._context_reader = context_reader
        self._deferral = stores.deferral
        self._watcher = stores.watcher
        self._streams = streams
        self._lookup = stores.lookup
        self._describe = describe
        self._metrics = metrics
        self._relay = relay

    def handlers(self) -> "grpc.GenericRpcHandler[bytes, object]":
        make = rpc_handlers.Handlers(self._context_reader)
        describe = self._relay.method(DESCRIBE) if self._relay else self.describe
        lookup = self._relay.method(LOOKUP) if self._relay else self.lookup
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Score": make.unary(self.score, shed=self.shed, overload=self._dispatcher.early_shedding),
                "ScoreStream": make.bidi_stream(self.score_stream),
                "Submit": make.unary(self.submit),
                "SubmitStream": make.bidi_stream(self.submit_stream),
                "GetResult": make.unary(self.get_result),
                "WatchResults": make.server_stream(self.watch_results),
                "Lookup": make.unary(lookup),
                "Describe": make.unary(describe, scores=False),
            },
        )

    async def score(self, raw: bytes, context: Context, arrival: Arrival) -> bytes:
        call = self._context_reader.receive(SCORE, raw, context, arrival)
        with self._context_reader.serving(call, raw):
            request = await self._score_request(raw, call)
            return await self._score(request, call)

    def shed(self, raw: bytes, context: Context, ahead: int) -> Status | None:
        """See `EarlyShedding`."""
        shedding, arrived = self._dispatcher.early_shedding, ARRIVED.get()
        if arrived is None or not shedding.needed(ahead, arrived) or len(raw) > messages.SMALL_BYTES:
            return None
        caller = self._context_reader.caller(context)
        if caller is None:
            return None
        with contextlib.suppress(DecodeError):
            return shedding.refusal(scoring_pb2.ScoreRequest.FromString(raw), caller, arrived, ahead)
        return None

    async def score_stream(self, incoming: AsyncIterator[bytes], context: Context, arrival: Arrival) -> None:
        # An unknown lane ends the stream, not each of its requests.
        self._context_reader.receive(SCORE, b"", context, arrival)

        def answer(raw: bytes) -> Coroutine[Any, Any, scoring_pb2.ScoreStreamResponse]:
            return self._answer_one(raw, context, arrival)

        await self._streams.answer(incoming, answer, context.write, in_order=False)

    async def submit(self, raw: bytes, context: Context, arrival: Arrival) -> scoring_pb2.SubmitResponse:
        call = self._context_reader.receive(SUBMIT, raw, context, arrival)
        with self._context_reader.serving(call, raw):
            request, deliver_within_ms = await self._submit_request(raw, call)
            with self._unaccepted_counted():
                self._dispatcher.check(request, call)
                self._dispatcher.charge(request, call)
                accepted = await self._deferral.accept(call.caller, request, deliver_within_ms)
            return self._submitted(request.request_id, accepted)

    async def submit_stream(self, incoming: AsyncIterator[bytes], context: Context, arrival: Arrival) -> None:
        call = self._context_reader.receive(SUBMIT, b"", context, arrival)
        write = self._streams.bounded(context.write)
        batcher = SubmitBatcher(
            incoming, lambda raw: self._held(raw, call), lambda held: self._submit_together(held, call), write
        )
        await self._streams.run(batcher)

    async def get_result(self, raw: bytes, context: Context, arrival: Arrival) -> scoring_pb2.GetResultResponse:
        request_id, ticket = await messages.read(requests.result_request, raw)
        item = await self._deferral.result(arrival.caller, request_id, ticket)
        return responses.result_response(request_id, item, arrival.caller.sees_precomputed)

    async def watch_results(self, raw: bytes, context: Context, arrival: Arrival) -> None:
        with self._context_reader.watching(arrival, raw):
            asked = await messages.read(requests.watch_request, raw)
            stored_ids = await self._deferral.locate(arrival.caller, asked)
            await self._watch(dict(zip(stored_ids, asked, strict=True)), context, arrival.caller)

    async def _watch(self, named: Mapping[str, str], context: Context, caller: Identity) -> None:
        """`named`: the ids that the caller gave, by those under which the requests are stored."""
        async with (
            self._streams.ending_idle() as happened,
            contextlib.aclosing(self._watcher.watch(list(named))) as ends,
        ):
            async for stored_id, item in ends:
                await context.write(responses.result_response(named[stored_id], item, caller.sees_precomputed))
                happened()

    async def lookup(self, raw: bytes, context: Context, arrival: Arrival) -> bytes:
        call = self._context_reader.receive(LOOKUP, raw, context, arrival)
        with self._context_reader.serving(call, raw):
            asked = await messages.read(requests.lookup_request, raw)
            self._dispatcher.charge_texts(asked.model, len(asked.ids), call)
            found = await self._lookup.find(call.caller, asked.model, asked.ids)
            return responses.lookup_response(asked.ids, found, asked.top_k)

    async def describe(self, raw: bytes, context: Context, arrival: Arrival) -> scoring_pb2.DescribeResponse:
        asked = await messages.read_message(scoring_pb2.DescribeRequest, raw)
        return self._describe(arrival.caller.sees_internals, asked.model)

    async def _score(self, request: ScoringRequest, call: CallContext) -> bytes:
        """A ScoreResponse, encoded."""
        answer = await self._dispatcher.score(request, call)
        return answer if isinstance(answer, bytes) else score_response(answer, request.request_id)

    def _held(self, raw: bytes, call: CallContext) -> Held:
        """Hold the bytes of a request of a stream, as it is read."""
        stack = contextlib.ExitStack()
        try:
            stack.enter_context(self._context_reader.holding(call, raw))
        except Overloaded as error:
            # The frames of its traceback would keep the request, which is in no budget.
            return Held(b"", stack.close, error.with_traceback(None), _submitted_id(raw))
        return Held(raw, stack.close)

    async def _submit_together(self, held: Sequence[Held], call: CallContext) -> scoring_pb2.SubmitStreamResponse:
        """Submit requests in one round trip to the store; a failure is the answer of its request alone."""
        parsed = [it.refusal or await self._parsed(it.raw, call) for it in held]
        good = [it for it in parsed if not isinstance(it, Exception)]
        stored: Iterator[Accepted | Exception]
        try:
            stored = iter(await self._deferral.accept_many(call.caller, good))
        except Exception as error:  # noqa: BLE001 - as above
            stored = itertools.repeat(error)
        response = scoring_pb2.SubmitStreamResponse()
        for one, it in zip(held, parsed, strict=True):
            outcome = it if isinstance(it, Exception) else next(stored)
            if isinstance(it, Exception):
                request_id = one.request_id or _submitted_id(one.raw)
            else:
                request_id = it[0].request_id
                if isinstance(outcome, Exception):
                    self._metrics.ended(None, outcome_of(outcome))
            if isinstance(outcome, Exception):
                name_request(request_id)
                failure = responses.stream_error(rpc_handlers.explain(outcome))
                response.outcomes.add(request_id=request_id, error=failure)
            else:
                response.outcomes.add(request_id=request_id, response=self._submitted(request_id, outcome))
        return response

    async def _parsed(self, raw: bytes, call: CallContext) -> tuple[ScoringRequest, int] | Exception:
        try:
            request, deliver_within_ms = await self._submit_request(raw, call)
            with self._unaccepted_counted():
                self._deferral.check_id(request.request_id)
                self._dispatcher.check(request, call)
                self._dispatcher.charge(request, call)
        except Exception as error:  # noqa: BLE001 - as above
            return error
        return request, deliver_within_ms

    @contextlib.contextmanager
    def _unaccepted_counted(self) -> Iterator[None]:
        """Count a submission that ends here by an error."""
        try:
            yield
        except (Exception, asyncio.CancelledError) as error:
            self._metrics.ended(None, outcome_of(error))
            raise

    def _submitted(self, request_id: str, accepted: Accepted) -> scoring_pb2.SubmitResponse:
        self._metrics.ended(None, Outcome.DEFERRED)
        return responses.submit_response(request_id, accepted)

    async def _answer_one(self, raw: bytes, context: Context, arrival: Arrival) -> scoring_pb2.ScoreStreamResponse:
        """Answer one request of a stream; a failure is the answer of its request, and the stream goes on."""
        request = None
        try:
            call = self._context_reader.receive(SCORE, raw, context, arrival)
            with self._context_reader.serving(call, raw):
                request = await self._score_request(raw, call)
                if not request.request_id:
                    raise BadInput("request_id", "is empty; on a stream it tells the answers apart")
                response = scoring_pb2.ScoreResponse.FromString(await self._score(request, call))
        except Exception as error:  # noqa: BLE001 - the caller gets a status for any error of this request
            failure = responses.stream_error(rpc_handlers.explain(error))
            request_id = request.request_id if request else _scored_id(raw)
            return scoring_pb2.ScoreStreamResponse(request_id=request_id, error=failure)
        return scoring_pb2.ScoreStreamResponse(request_id=request.request_id, response=response)

    async def _score_request(self, raw: bytes, call: CallContext) -> ScoringRequest:
        """Raises: as `_checked`."""
        return await self._checked(requests.score_request, scoring_pb2.ScoreRequest, raw, call)

    async def _submit_request(self, raw: bytes, call: CallContext) -> tuple[ScoringRequest, int]:
        """Raises: as `_checked`."""
        return await self._checked(requests.submit_request, scoring_pb2.SubmitRequest, raw, call)

    async def _checked(
        self, parse: Callable[[bytes], Checked], kind: type[Message], raw: bytes, call: CallContext
    ) -> Checked:
        """Raises: as `parse`; Overloaded, before it is parsed, for a large request that is over its caller's quota."""
        outlines.check_quota(self._dispatcher.early_shedding, call, raw, functools.partial(requests.outline, kind))
        try:
            return await messages.read(parse, raw)
        except (BadInput, MessageTooLarge):
            self._metrics.ended(None, Outcome.INVALID)
            raise


# Ids of requests that are refused, cut to the length of valid ones, because answers that wait are in no budget.
_scored_id = functools.partial(outlines.name, scoring_pb2.ScoreRequest, "request_id")
_submitted_id = functools.partial(outlines.name, scoring_pb2.SubmitRequest, "request.request_id")
