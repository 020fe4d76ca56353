"""A replica that follows a script, on a real socket: in this process, or in one of its own that can be killed.

python -m tests.realtime_service.cluster.stub: prints its address, and answers until it is killed.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from realtime_service.rpc.retryable import Trailers
from realtime_service.transport import event_loop
from realtime_service.transport.listener import bind, make_listener
from realtime_service.transport.open_inference import servicer as open_inference
from realtime_service.transport.peer_stream_server import PeerStreams
from realtime_service.transport.scoring_v1 import servicer as scoring
from realtime_service.transport.streaming import OpenStreams
from tests.realtime_service.cluster.trusts import trusting

#: Methods that replicas forward to each other.
FORWARDED = (*scoring.FORWARDED, *open_inference.FORWARDED)


@dataclass(frozen=True)
class Ends:
    """End the call with this status after so many seconds."""

    code: grpc.StatusCode
    details: str = "as the script says"
    trailers: Trailers = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Takes:
    """Answer the call after so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Big:
    """Answer the call with so many bytes."""

    size: int


#: A step of the script; None answers a call with its own bytes, reversed.
Step = Ends | Takes | Big | None


@dataclass(frozen=True)
class Asked:
    """One received call. `left`: seconds until its deadline, None without one."""

    method: str
    raw: bytes
    metadata: dict[str, str | bytes]
    left: float | None


class Stub(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # it is generic in its stubs only
    """Plays its steps one by one, the last one repeatedly. `left`: calls that their callers cancelled."""

    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps) or [None]
        self.address = ""
        self.asked: list[Asked] = []
        self.left = 0

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        return self._method_handlers.get(handler_call_details.method)

    @property
    def _method_handlers(self) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
        """As in the handlers that gRPC makes."""
        return {method: self._handler(method) for method in FORWARDED}

    def _handler(self, method: str) -> "grpc.RpcMethodHandler[Any, Any]":
        async def handler(raw: bytes, context: Any) -> bytes:
            metadata = dict(context.invocation_metadata())
            self.asked.append(Asked(method, raw, metadata, context.time_remaining()))
            return await self._play(raw, context)

        return grpc.unary_unary_rpc_method_handler(handler)

    async def _play(self, raw: bytes, context: Any) -> bytes:
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if isinstance(step, Big):
            return bytes(step.size)
        if step is not None and step.seconds:
            await self._wait(step.seconds)
        if isinstance(step, Ends):
            context.set_code(step.code)
            context.set_details(step.details)
            context.set_trailing_metadata(step.trailers)
        return raw[::-1]

    async def _wait(self, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.left += 1
            raise


@contextlib.asynccontextmanager
async def listening(stub: Stub) -> AsyncIterator[Stub]:
    """Listen like a replica until the block ends."""
    server = make_listener(shared=False)
    server.add_generic_rpc_handlers((PeerStreams([stub], FORWARDED, OpenStreams(), trusting()).handlers(), stub))
    stub.address = bind(server, "127.0.0.1:0")
    await server.start()
    try:
        yield stub
    finally:
        await server.stop(grace=None)


async def main() -> None:
    # Slow enough that calls are under way at any moment.
    async with listening(Stub(Takes(0.005))) as stub:
        print(stub.address, flush=True)  # noqa: T201 - the parent process reads it
        await asyncio.Event().wait()


if __name__ == "__main__":
    event_loop.run(main())
