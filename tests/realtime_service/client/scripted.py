"""A gRPC server on a real socket that ends calls as a script says, and notes what it was asked."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.scoring.v1 import scoring_pb2
from realtime_service.client.channel import SERVICE
from realtime_service.errors import Status


@dataclass(frozen=True)
class Ends:
    """How a call ends that is not answered. `milliseconds`: the hint to come back then."""

    code: grpc.StatusCode
    details: str = "as the script says"
    milliseconds: str = ""


@dataclass(frozen=True)
class Silence:
    """Nothing is sent for so long, unless the caller leaves."""

    seconds: float


#: An answer to Score or to Submit, or the messages of a watch or of a stream of submissions, which is read to its end
#: first, with how it ends after them.
Step = Ends | Any


class Health(health_pb2_grpc.HealthServicer):
    """The health of a script. That of grpcio-health-checking holds its lock while it sends: if a caller leaves then,
    neither that nor the server's stop ever ends."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._status: Any = health_pb2.HealthCheckResponse.SERVING

    def set(self, status: Any) -> None:
        with self._changed:
            self._status = status
            self._changed.notify_all()

    def Watch(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        context.add_callback(self._wake)
        said: Any = None
        while context.is_active():
            with self._changed:
                while self._status == said and context.is_active():
                    self._changed.wait()
                said = self._status
            yield health_pb2.HealthCheckResponse(status=said)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class Script:
    """Its steps are played one by one; the last one again and again.

    `asked`: (method, message, metadata) of each call; `over`: the methods of those that have ended in any way.
    """

    def __init__(self, steps: list[Step]) -> None:
        self._steps = steps
        self._lock = threading.Lock()
        self.address = ""
        self.over: list[str] = []
        self.health = Health()
        self.asked: list[tuple[str, Any, dict[str, str]]] = []

    def be(self, status: Any) -> None:
        """What it says of its health, a grpc.health.v1 ServingStatus."""
        self.health.set(status)

    def handlers(self) -> grpc.GenericRpcHandler:
        unary, messages = grpc.unary_unary_rpc_method_handler, scoring_pb2
        watch = grpc.unary_stream_rpc_method_handler
        methods = {
            "Score": unary(self._unary("Score"), messages.ScoreRequest.FromString, _bytes),
            "Submit": unary(self._unary("Submit"), messages.SubmitRequest.FromString, _bytes),
            "SubmitStream": grpc.stream_stream_rpc_method_handler(
                self._submit_stream, messages.SubmitRequest.FromString, _bytes
            ),
            "WatchResults": watch(self._watch, messages.WatchResultsRequest.FromString, _bytes),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _unary(self, method: str) -> Callable[[Any, grpc.ServicerContext], Any]:
        def handler(message: Any, context: grpc.ServicerContext) -> Any:
            return _play(self._next(method, message, context), context)

        return handler

    def _watch(self, message: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        for step in self._next("WatchResults", message, context):
            message = _play(step, context)
            if message is not None:
                yield message

    def _submit_stream(self, incoming: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        sent = list(incoming)
        for step in self._next("SubmitStream", sent, context):
            yield _play(step, context)

    def _next(self, method: str, message: Any, context: grpc.ServicerContext) -> Step:
        context.add_callback(lambda: self.over.append(method))
        with self._lock:
            self.asked.append((method, message, {str(key): str(value) for key, value in context.invocation_metadata()}))
            return self._steps.pop(0) if len(self._steps) > 1 else self._steps[0]


@contextlib.contextmanager
def scripted(
    *steps: Step, kind: type[Script] = Script, credentials: grpc.ServerCredentials | None = None
) -> Iterator[Script]:
    script = kind(list(steps))
    # With a server's default settings, which take frequent pings for an attack.
    server = grpc.server(ThreadPoolExecutor(16), [script.handlers()])
    health_pb2_grpc.add_HealthServicer_to_server(script.health, server)
    place = "127.0.0.1:0"
    port = server.add_secure_port(place, credentials) if credentials else server.add_insecure_port(place)
    script.address = f"127.0.0.1:{port}"
    server.start()
    yield script
    server.stop(grace=None).wait()


def _play(step: Step, context: grpc.ServicerContext) -> Any:
    if isinstance(step, Silence):
        gone = threading.Event()
        context.add_callback(gone.set)
        gone.wait(step.seconds)
        return None
    if not isinstance(step, Ends):
        return step
    hint = int(step.milliseconds) / 1000 if step.milliseconds else None
    context.set_trailing_metadata(Status(step.code, step.details, hint).trailers(context.time_remaining()))
    context.abort(step.code, step.details)


def _bytes(message: Any) -> bytes:
    return bytes(message.SerializeToString())
