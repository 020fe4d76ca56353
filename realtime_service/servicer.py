"""scoring.v1.ScoringService: translation between the wire and the dispatcher, nothing else."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio

from protos.scoring.v1 import scoring_pb2
from protos.scoring.v1.storage_pb2 import DeferredWork
from realtime_service import replies, requests
from realtime_service.dispatch import Dispatcher
from realtime_service.errors import MessageTooLarge, NotFound, status_of
from realtime_service.telemetry import Outcome, Telemetry
from shared_model.clock import Clock
from shared_model.errors import BadInput, TandemError
from shared_model.handoff import Handoff

SERVICE = "scoring.v1.ScoringService"
#: Metadata by which a caller names itself.
CALLER_ID = "x-caller-id"
#: Requests of one stream that are worked on at once; the stream is not read further until one ends.
STREAM_WINDOW = 64

Checked = TypeVar("Checked")
Context = grpc.aio.ServicerContext[Any, Any]
log = logging.getLogger(__name__)


class ScoringServicer:
    """Handlers take raw bytes (see `requests`) and return messages."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        handoff: Handoff,
        describe: Callable[[], scoring_pb2.DescribeResponse],
        telemetry: Telemetry,
        clock: Clock,
    ) -> None:
        self._dispatcher = dispatcher
        self._handoff = handoff
        self._describe = describe
        self._telemetry = telemetry
        self._clock = clock

    def handlers(self) -> "grpc.GenericRpcHandler[bytes, Any]":
        def unary(method: Callable[[bytes, Context], Awaitable[Any]]) -> "grpc.RpcMethodHandler[bytes, Any]":
            return grpc.unary_unary_rpc_method_handler(_answering(method), None, _serialise)

        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Score": unary(self.score),
                "ScoreStream": grpc.stream_stream_rpc_method_handler(self.score_stream, None, _serialise),
                "Submit": unary(self.submit),
                "GetResult": unary(self.get_result),
                "Describe": unary(self.describe),
            },
        )

    async def score(self, raw: bytes, context: Context) -> scoring_pb2.ScoreResponse:
        request = self._checked(requests.score_request, raw)
        return await self._score(request, context)

    async def score_stream(
        self, incoming: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[scoring_pb2.ScoreStreamResponse]:
        answers: asyncio.Queue[scoring_pb2.ScoreStreamResponse | None] = asyncio.Queue()
        reader = asyncio.create_task(self._read_stream(incoming, context, answers))
        try:
            while (answer := await answers.get()) is not None:
                yield answer
        finally:
            reader.cancel()

    async def submit(self, raw: bytes, context: Context) -> scoring_pb2.SubmitResponse:
        message = self._checked(requests.submit_request, raw)
        self._dispatcher.check(requests.check(message))
        work = DeferredWork(request=message, accepted_at_ms=round(self._clock.wall() * 1000))
        state, duplicate = await self._handoff.submit(message.request_id, work)
        self._telemetry.ended(None, Outcome.DEFERRED)
        return scoring_pb2.SubmitResponse(
            request_id=message.request_id, state=replies.STATES[state], duplicate=duplicate
        )

    async def get_result(self, raw: bytes, context: Context) -> scoring_pb2.GetResultResponse:
        request_id = requests.parse(scoring_pb2.GetResultRequest, raw).request_id
        if not request_id:
            raise BadInput("request_id", "is empty")
        item = await self._handoff.get(request_id)
        if item is None:
            raise NotFound(f"request_id: {request_id!r} was not submitted, or its result is no longer kept")
        return replies.result_response(request_id, item)

    async def describe(self, raw: bytes, context: Context) -> scoring_pb2.DescribeResponse:
        requests.parse(scoring_pb2.DescribeRequest, raw)
        return self._describe()

    async def _score(self, request: requests.ScoringRequest, context: Context) -> scoring_pb2.ScoreResponse:
        answer = await self._dispatcher.score(request, _caller(context), context.time_remaining())
        return replies.score_response(answer, request.request_id)

    def _checked(self, parse: Callable[[bytes], Checked], raw: bytes) -> Checked:
        try:
            return parse(raw)
        except (BadInput, MessageTooLarge):
            self._telemetry.ended(None, Outcome.INVALID)
            raise

    async def _read_stream(
        self,
        incoming: AsyncIterator[bytes],
        context: Context,
        answers: "asyncio.Queue[scoring_pb2.ScoreStreamResponse | None]",
    ) -> None:
        window = asyncio.Semaphore(STREAM_WINDOW)
        async with asyncio.TaskGroup() as group:
            async for raw in incoming:
                await window.acquire()
                task = group.create_task(self._answer_one(raw, context, answers))
                task.add_done_callback(lambda _: window.release())
        await answers.put(None)

    async def _answer_one(
        self,
        raw: bytes,
        context: Context,
        answers: "asyncio.Queue[scoring_pb2.ScoreStreamResponse | None]",
    ) -> None:
        """One request's failure is its own: it is answered in the stream, and the stream goes on."""
        try:
            request = self._checked(requests.score_request, raw)
            if not request.request_id:
                raise BadInput("request_id", "is empty; on a stream it tells the answers apart")
            response = await self._score(request, context)
            answer = scoring_pb2.ScoreStreamResponse(request_id=response.request_id, response=response)
        except Exception as error:  # noqa: BLE001 - whatever it was, the caller gets a status for this request
            code, message = _explain(error)[:2]
            stream_error = scoring_pb2.StreamError(code=code.value[0], message=message)
            answer = scoring_pb2.ScoreStreamResponse(request_id=_request_id(raw), error=stream_error)
        await answers.put(answer)


def _answering(method: Callable[[bytes, Context], Awaitable[Any]]) -> Callable[[bytes, Context], Awaitable[Any]]:
    """End a call with the status its error stands for in `errors.STATUS`."""

    async def handler(raw: bytes, context: Context) -> Any:
        try:
            return await method(raw, context)
        except Exception as error:  # noqa: BLE001 - nothing of an unforeseen exception may reach the caller
            code, message, trailers = _explain(error)
            try:
                await context.abort(code, message, trailers)
            except grpc.aio.InternalError:
                log.debug("the caller left before it could be told %s", code.name)

    return handler


def _explain(error: Exception) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]:
    if not isinstance(error, TandemError):
        log.exception("a request failed for a reason nobody foresaw", exc_info=error)
    return status_of(error)


def _caller(context: Context) -> str:
    """Who calls, as the caller says, else as the network says: the peer's address without its port."""
    for name, value in context.invocation_metadata() or ():
        if name == CALLER_ID:
            return str(value)
    return context.peer().rpartition(":")[0]


def _request_id(raw: bytes) -> str:
    try:
        return scoring_pb2.ScoreRequest.FromString(raw).request_id
    except Exception:  # noqa: BLE001 - the id of a message that cannot be read is not known
        return ""


def _serialise(message: Any) -> bytes:
    return bytes(message.SerializeToString())
