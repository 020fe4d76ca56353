"""The server side of a peer stream: passes each call to the handler of the same unary call."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import grpc
import grpc.aio

from protos.scoring.v1.link_pb2 import LinkAnswer, LinkAnswers, LinkCall, LinkCalls
from realtime_service.cluster import peer_stream
from realtime_service.cluster.forwarded_context import Metadata
from realtime_service.cluster.peer_trust import PeerTrust
from realtime_service.cluster.write_coalescer import WriteCoalescer
from realtime_service.errors import UnknownMethod
from realtime_service.transport import rpc_handlers
from realtime_service.transport.peer_call_context import Aborted, PeerCallContext
from realtime_service.transport.rpc_handlers import Context
from realtime_service.transport.scoring_v1 import requests
from realtime_service.transport.streaming import OpenStreams

Offered = Sequence["grpc.GenericRpcHandler[Any, Any]"]


class PeerStreams:
    """The gRPC method that other replicas open peer streams with. `streams` stops them when this replica closes."""

    def __init__(self, offered: Offered, streams: OpenStreams, trust: PeerTrust) -> None:
        """`offered`: handlers whose unary methods can be called on a peer stream."""
        self._offered = offered
        self._streams = streams
        self._trust = trust

    def handlers(self) -> "grpc.GenericRpcHandler[Any, Any]":
        return grpc.method_handlers_generic_handler(
            peer_stream.SERVICE, {peer_stream.METHOD: rpc_handlers.peer_stream(self._serve)}
        )

    async def _serve(self, incoming: AsyncIterator[bytes], context: Context) -> None:
        authenticated = self._trust.verifies(context.invocation_metadata() or ())
        if not authenticated and not self._trust.uses_token:
            raise UnknownMethod
        # A replica of a former version sends its token with each call instead.
        verifies = None if authenticated else self._trust.verifies
        await self._streams.run(PeerStreamHandler(self._offered, incoming, context, verifies))


class PeerStreamHandler:
    """One peer stream (`streaming.Stoppable`). When this replica closes, it sends `leaving`, and ends once the other
    side has stopped sending and has its answers."""

    def __init__(
        self,
        offered: Offered,
        incoming: AsyncIterator[bytes],
        context: Context,
        verifies: Callable[[Metadata], bool] | None,
    ) -> None:
        """`verifies`: each call by its metadata; None on a stream that is authenticated itself."""
        self.stopped = False
        self._verifies = verifies
        self._offered = offered
        self._incoming = incoming
        self._context = context
        self._methods: dict[str, rpc_handlers.Handler | None] = {}
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._write_coalescer = WriteCoalescer[LinkAnswer](self._write)

    async def run(self) -> None:
        writer = asyncio.create_task(self._write_coalescer.run())
        try:
            async for raw in self._incoming:
                for call in requests.parse(LinkCalls, raw).calls:
                    self._take(call)
            if self._under_way:
                await asyncio.wait(self._under_way.values())
            self._write_coalescer.close()
            await writer
        finally:
            for task in (writer, *self._under_way.values()):
                task.cancel()

    def stop(self) -> None:
        self.stopped = True
        self._write_coalescer.put(LinkAnswer(leaving=True))

    def _take(self, call: LinkCall) -> None:
        """Raises: UnknownMethod for a call that no replica sent: it ends the stream."""
        if not call.cancelled:
            if self._verifies and not self._verifies(peer_stream.pairs(call.metadata)):
                raise UnknownMethod
            task = self._under_way[call.number] = asyncio.create_task(self._answer(call))
            task.add_done_callback(lambda _: self._under_way.pop(call.number, None))
        elif left := self._under_way.get(call.number):
            left.cancel()

    async def _write(self, answers: Sequence[LinkAnswer]) -> None:
        await self._context.write(LinkAnswers(answers=answers))

    async def _answer(self, call: LinkCall) -> None:
        """Answer a call or report its failure, however it ends."""
        try:
            self._write_coalescer.put(LinkAnswer(number=call.number, response=await self._response(call)))
        except Aborted as end:
            self._end(call, end)
        except asyncio.CancelledError:
            self._end(call, Aborted(grpc.StatusCode.CANCELLED, "cancelled"))
            raise
        except Exception as error:  # noqa: BLE001 - as for a unary call
            status = rpc_handlers.explain(error)
            self._end(call, Aborted(status.code, status.message, status.trailers()))

    def _end(self, call: LinkCall, end: "Aborted") -> None:
        trailers = peer_stream.flat(end.trailers)
        self._write_coalescer.put(LinkAnswer(number=call.number, code=end.code, details=end.details, trailers=trailers))

    async def _response(self, call: LinkCall) -> bytes:
        """Raises: Aborted."""
        handler = self._handler(call.method)
        if handler is None or handler.unary_unary is None:
            raise Aborted(grpc.StatusCode.UNIMPLEMENTED, f"{call.method}: no such method")
        answer = await cast(Any, handler.unary_unary)(
            call.request, _context(call, self._context.peer(), self._verifies is None)
        )
        return bytes(handler.response_serializer(answer) if handler.response_serializer else answer)

    def _handler(self, method: str) -> "rpc_handlers.Handler | None":
        if method not in self._methods:
            found = (it.service(cast(Any, _Details(method))) for it in self._offered)
            self._methods[method] = next(filter(None, found), None)
        return self._methods[method]


@dataclass(frozen=True, slots=True)
class _Details:
    """The call details that a generic handler looks up its method by."""

    method: str


def _context(call: LinkCall, address: str, authenticated: bool) -> Context:
    due = time.monotonic() + call.left_us / 1e6 if call.HasField("left_us") else None
    return cast(Context, PeerCallContext(peer_stream.pairs(call.metadata), due, address, authenticated))
