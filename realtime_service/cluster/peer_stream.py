"""The client side of a peer stream: calls to another replica share one gRPC stream.

A message costs each side less than half of a unary call. A call on the stream means the same, and may end in the same
ways, as a unary call. The stream carries the credentials. The server side is `transport.peer_stream_server`.
"""

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import grpc.aio

from protos.scoring.v1.link_pb2 import LinkAnswer, LinkAnswers, LinkCall, LinkCalls
from realtime_service.cluster.forwarded_context import Metadata
from realtime_service.cluster.write_coalescer import WriteCoalescer
from realtime_service.rpc.retryable import Trailers, by_transport
from shared_model.errors import BadInput

SERVICE, METHOD = "scoring.v1.Replica", "Link"

_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
#: The details that gRPC gives to unary calls.
_EXPIRED, _ENDED = "Deadline Exceeded", "Stream removed"


def flat(metadata: Metadata) -> Iterator[bytes]:
    """Names and values in turn, as they are sent."""
    for name, value in metadata:
        yield name.encode()
        yield value if isinstance(value, bytes) else value.encode()


def pairs(travelled: Sequence[bytes]) -> Trailers:
    """The inverse of `flat`. Raises: BadInput for what `flat` does not make."""
    read = []
    try:
        for name, value in zip(travelled[::2], travelled[1::2], strict=True):
            decoded = name.decode()
            read.append((decoded, value if decoded.endswith("-bin") else value.decode()))
    except ValueError as error:
        raise BadInput("metadata", "is not names and values in turn, as text") from error
    return tuple(read)


class PeerStream:
    """Calls over one channel. `open` until the stream ends or the other replica leaves."""

    def __init__(self, channel: Any, credentials: Metadata) -> None:
        """`channel`: a `grpc.aio.Channel`, whose type stubs require arguments that it does not need. `credentials`: the
        other replica refuses a stream without."""
        method = channel.stream_stream(f"/{SERVICE}/{METHOD}", LinkCalls.SerializeToString, LinkAnswers.FromString)
        self._stream = method(metadata=tuple(credentials))
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._write_coalescer = WriteCoalescer[LinkCall](self._write)
        self._writer = asyncio.create_task(self._send())
        self._reader = asyncio.create_task(self._receive())
        self.open = True

    async def call(self, method: str, raw: bytes, seconds: float | None, metadata: Metadata) -> bytes:
        """`seconds`: how long the call may take. Raises: grpc.aio.AioRpcError, like a unary call."""
        loop, number = asyncio.get_running_loop(), next(self._numbers)
        answer: asyncio.Future[bytes] = loop.create_future()
        self._waiting[number] = answer
        left = None if seconds is None else int(seconds * 1e6)
        self._write_coalescer.put(
            LinkCall(number=number, method=method, request=raw, left_us=left, metadata=flat(metadata))
        )
        timer = None if seconds is None else loop.call_later(seconds, _expire, answer)
        try:
            return await answer
        finally:
            if timer:
                timer.cancel()
            # A call without an answer yet is cancelled at the other replica, too.
            if self._waiting.pop(number, None):
                self._write_coalescer.put(LinkCall(number=number, cancelled=True))

    async def _write(self, calls: Sequence[LinkCall]) -> None:
        await self._stream.write(LinkCalls(calls=calls))

    async def _send(self) -> None:
        try:
            await self._write_coalescer.run()
            await self._stream.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            # The stream has ended; `_receive` reports the error.
            self.open = False

    async def _receive(self) -> None:
        error = None
        try:
            # False at the end of the stream, None for a malformed message.
            while answers := await self._stream.read():
                for answer in answers.answers:
                    self._take(answer)
            error = _error(grpc.StatusCode.UNAVAILABLE, _ENDED)
        except grpc.aio.AioRpcError as broken:
            error = broken
        finally:
            self.open = False
            self._stream.cancel()
            self._writer.cancel()
            for waiting in self._waiting.values():
                _lose(waiting, error)
            self._waiting.clear()

    def _take(self, answer: LinkAnswer) -> None:
        if answer.leaving:
            self.open = False
            # The calls under way have been sent, and will be answered.
            self._write_coalescer.close()
            return
        waiting = self._waiting.pop(answer.number, None)
        if waiting is None or waiting.done():
            return
        if answer.code:
            waiting.set_exception(_error(_CODES[answer.code], answer.details, pairs(answer.trailers)))
        else:
            waiting.set_result(answer.response)


def _error(code: grpc.StatusCode, details: str, trailers: Trailers = ()) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailers), details, None)


def _expire(answer: "asyncio.Future[bytes]") -> None:
    if not answer.done():
        answer.set_exception(_error(grpc.StatusCode.DEADLINE_EXCEEDED, _EXPIRED))


def _lose(answer: "asyncio.Future[bytes]", error: grpc.aio.AioRpcError | None) -> None:
    """End a call whose stream has ended with this error, or with None if this side has closed it."""
    if answer.done():
        return
    if error is None:
        answer.cancel()
        return
    # The stream's status is not the call's: grpc.aio reports INTERNAL for a write to a connection that had just broken.
    # That it was cancelled by others is kept: it says nothing of the replica.
    code = grpc.StatusCode.UNAVAILABLE
    if error.code() is grpc.StatusCode.CANCELLED:
        code = grpc.StatusCode.CANCELLED
    details = error.details() or ""
    details = details if by_transport(details) else f"{_ENDED}: {details}"
    answer.set_exception(_error(code, details))
