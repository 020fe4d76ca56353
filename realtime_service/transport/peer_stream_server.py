"""The server side of a peer stream: passes each call to the handler of the same unary call."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import grpc
import grpc.aio

from protos.scoring.v1.link_pb2 import LinkAnswer, LinkAnswers, LinkCall, LinkCalls
from realtime_service.cluster import peer_stream
from realtime_service.cluster.forwarded_context import Metadata
from realtime_service.cluster.peer_trust import PeerTrust
from realtime_service.cluster.write_coalescer import TOGETHER, WriteCoalescer
from realtime_service.errors import UnknownMethod
from realtime_service.transport import messages, rpc_handlers
from realtime_service.transport.peer_call_context import Aborted, PeerCallContext
from realtime_service.transport.rpc_handlers import Context
from realtime_service.transport.streaming import OpenStreams, Window
from shared_model.errors import BadInput

Offered = Sequence["grpc.GenericRpcHandler[Any, Any]"]

Methods = Mapping[str, "rpc_handlers.Handler | None"]

#: Slots of a peer stream for calls whose answers are not written, more than all lanes hold; and bytes of a slot.
WINDOW, SLOT_BYTES = 1024, 8 * 1024
#: Fields of a message: those of `write_coalescer.TOGETHER` calls with 30 pairs of metadata each.
_MOST_FIELDS = TOGETHER * 66


class PeerStreams:
    """The gRPC method that other replicas open peer streams with. `streams` stops them when this replica closes."""

    def __init__(
        self,
        offered: Offered,
        methods: Collection[str],
        streams: OpenStreams,
        trust: PeerTrust,
        longest_seconds: float = 300.0,
    ) -> None:
        """`offered`: handlers of the unary `methods` that can be called on a peer stream. `longest_seconds`: then the
        other replica is asked to open another stream, so that none is cut off with an aged connection."""
        self._longest_seconds = longest_seconds
        self._methods = {method: _handler(offered, method) for method in methods}
        self._streams = streams
        self._trust = trust

    def handlers(self) -> "grpc.GenericRpcHandler[Any, Any]":
        return grpc.method_handlers_generic_handler(
            peer_stream.SERVICE, {peer_stream.METHOD: rpc_handlers.bidi_stream(self._serve)}
        )

    async def _serve(self, incoming: AsyncIterator[bytes], context: Context) -> None:
        authenticated = self._trust.verifies(context.invocation_metadata() or ())
        if not authenticated and not self._trust.uses_token:
            raise UnknownMethod
        # A replica of a former version sends its token with each call instead.
        verifies = None if authenticated else self._trust.verifies
        stream = PeerStreamHandler(self._methods, incoming, context, verifies)
        timer = asyncio.get_running_loop().call_later(self._longest_seconds, stream.leave)
        try:
            await self._streams.run(stream, idle_ends=False)
        finally:
            timer.cancel()


class PeerStreamHandler:
    """One peer stream (`streaming.Stoppable`). When this replica closes, it sends `leaving`, and ends once the other
    side has stopped sending and has its answers. A call keeps its slots until its answer is written, so that a replica
    that does not read answers is not read from."""

    def __init__(
        self,
        methods: Methods,
        incoming: AsyncIterator[bytes],
        context: Context,
        verifies: Callable[[Metadata], bool] | None,
    ) -> None:
        """`verifies`: each call by its metadata; None on a stream that is authenticated itself."""
        self.stopped = False
        self.taken = 0
        self._verifies = verifies
        self._methods = methods
        self._incoming = incoming
        self._context = context
        self._window = Window(WINDOW, SLOT_BYTES)
        self._slots: dict[int, int] = {}
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._write_coalescer = WriteCoalescer[LinkAnswer](self._write)

    @property
    def busy(self) -> bool:
        return bool(self._slots)

    async def run(self) -> None:
        writer = asyncio.create_task(self._write_coalescer.run())
        # A stream that cannot be written to must not wait for slots that only writing releases.
        reader = asyncio.create_task(self._read())
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            if writer.done():
                writer.result()
            await reader
            if self._under_way:
                await asyncio.wait(self._under_way.values())
            self._write_coalescer.close()
            await writer
        finally:
            for task in (reader, writer, *self._under_way.values()):
                task.cancel()

    def stop(self) -> None:
        self.stopped = True
        self.leave()

    def leave(self) -> None:
        """Ask the other side to send no further calls and to end the stream."""
        self._write_coalescer.put(LinkAnswer(leaving=True))

    async def _read(self) -> None:
        """Raises: BadInput for a message that a replica does not send; UnknownMethod for a call that none sent."""
        async for raw in self._incoming:
            calls = messages.parse(LinkCalls, raw, _MOST_FIELDS).calls
            if len(calls) > TOGETHER:
                raise BadInput("calls", f"holds {len(calls)} calls, at most {TOGETHER} come together")
            for call in calls:
                # Large metadata counts, too.
                await self._take(call, max(len(call.request), len(raw) // len(calls)))

    async def _take(self, call: LinkCall, size: int) -> None:
        if call.cancelled:
            if left := self._under_way.get(call.number):
                left.cancel()
            return
        if self._verifies and not self._verifies(peer_stream.pairs(call.metadata)):
            raise UnknownMethod
        if call.number in self._slots:
            raise BadInput("number", f"{call.number} is that of a call under way")
        self.taken += 1
        self._slots[call.number] = 0
        self._slots[call.number] = await self._window.take(size)
        task = self._under_way[call.number] = asyncio.create_task(self._answer(call))
        task.add_done_callback(lambda task: self._over(call, task))

    def _over(self, call: LinkCall, task: "asyncio.Task[None]") -> None:
        """A cancelled call, which may not even have begun, is answered, too: its slots are released by that."""
        del self._under_way[call.number]
        if task.cancelled():
            self._end(call, Aborted(grpc.StatusCode.CANCELLED, "cancelled"))

    async def _write(self, answers: Sequence[LinkAnswer]) -> None:
        await self._context.write(LinkAnswers(answers=answers))
        for answer in answers:
            if not answer.leaving:
                self._window.release(self._slots.pop(answer.number))

    async def _answer(self, call: LinkCall) -> None:
        """Answer a call or report its failure, however it ends."""
        try:
            self._write_coalescer.put(LinkAnswer(number=call.number, response=await self._response(call)))
        except Aborted as end:
            self._end(call, end)
        except Exception as error:  # noqa: BLE001 - as for a unary call
            status = rpc_handlers.explain(error)
            self._end(call, Aborted(status.code, status.message, status.trailers()))

    def _end(self, call: LinkCall, end: "Aborted") -> None:
        trailers = peer_stream.flat(end.trailers)
        self._write_coalescer.put(LinkAnswer(number=call.number, code=end.code, details=end.details, trailers=trailers))

    async def _response(self, call: LinkCall) -> bytes:
        """Raises: Aborted."""
        handler = self._methods.get(call.method)
        if handler is None or handler.unary_unary is None:
            raise Aborted(grpc.StatusCode.UNIMPLEMENTED, f"{call.method}: no such method")
        context = _context(call, self._context.peer(), self._verifies is None)
        answer = await cast(Any, handler.unary_unary)(call.request, context)
        if context.status is not grpc.StatusCode.OK:
            raise Aborted(context.status, context.details, context.trailers)
        return bytes(handler.response_serializer(answer) if handler.response_serializer else answer)


def _handler(offered: Offered, method: str) -> "rpc_handlers.Handler | None":
    found = (it.service(cast(Any, _Details(method))) for it in offered)
    return next(filter(None, found), None)


@dataclass(frozen=True, slots=True)
class _Details:
    """The call details that a generic handler looks up its method by."""

    method: str


def _context(call: LinkCall, address: str, authenticated: bool) -> PeerCallContext:
    due = time.monotonic() + call.left_us / 1e6 if call.HasField("left_us") else None
    return PeerCallContext(peer_stream.pairs(call.metadata), due, address, authenticated)
