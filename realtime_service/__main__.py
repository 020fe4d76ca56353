"""python -m realtime_service: serve, or call a service from the command line."""

import argparse
import asyncio
import logging
import signal
import sys
import time
from typing import TYPE_CHECKING

import grpc

from protos.scoring.v1 import scoring_pb2
from realtime_service.client import DEFAULT_ADDRESS, Client
from shared_model import settings
from shared_model.errors import TandemError
from shared_model.settings import StateSettings
from shared_model.types import Priority

if TYPE_CHECKING:
    from realtime_service.app import Service


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    try:
        return int(args.run(args) or 0)
    except TandemError as error:
        print(f"realtime_service {args.command}: {error}", file=sys.stderr)
        return 2


def _serve(args: argparse.Namespace) -> None:
    import redis

    from realtime_service.app import Service
    from realtime_service.settings import ServiceSettings
    from shared_model.redis_server import RedisServer
    from shared_model.releases import pointer
    from shared_model.releases.store import Store

    # From the first moment on: a service that is stopped while it starts must still stop what it has started.
    asked_to_stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked_to_stop.append(number))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    state = settings.load(StateSettings)
    store = Store.of(state)
    service = settings.load(
        ServiceSettings, grpc_address=args.address, metrics_address=args.metrics, reflection=args.reflection or None
    )
    with RedisServer(state) as server:
        with redis.Redis.from_url(server.url, socket_timeout=5.0) as client:
            release_id = service.release or pointer.read(store, client).active
        asyncio.run(_run_service(Service(service, store, release_id, server.url), asked_to_stop))


async def _run_service(starting: "Service", asked_to_stop: list[int]) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if asked_to_stop:
        stop.set()
    started = time.monotonic()
    async with starting as service:
        seconds, serving = time.monotonic() - started, f"{service.release} on {service.address}"
        print(f"ready in {seconds:.1f} s: {serving}, metrics on http://{service.metrics_address}", flush=True)
        await service.run_until(stop)


def _call(args: argparse.Namespace) -> int:
    started = time.perf_counter()
    try:
        with Client(args.address) as client:
            priority = Priority(args.priority)
            answer = client.score(args.text, timeout_ms=args.timeout_ms, priority=priority, top_k=args.top_k)
    except grpc.RpcError as error:
        print(f"{error.code().name}: {error.details()}", file=sys.stderr)
        return 1
    print(_readable(answer, time.perf_counter() - started))
    return 0


def _readable(answer: scoring_pb2.ScoreResponse, seconds: float) -> str:
    lines = []
    for result in answer.results:
        lines += [f"{label.name:<44}{label.score:8.3f}" for label in result.labels]
        if result.vector:
            start = ", ".join(f"{number:.3f}" for number in result.vector[:5])
            lines.append(f"embedding of {len(result.vector)} numbers: {start}, …")
        cut = ", truncated" if result.truncated else ""
        lines.append(f"  {result.tokens} tokens{cut}")
    path = scoring_pb2.Path.Name(answer.path).lower()
    lines.append(f"  {path} path ({answer.reason}), {answer.precision}, batch {answer.batch_size}, {answer.release}")
    waited, computed = answer.queue_us / 1000, answer.compute_us / 1000
    lines.append(f"  waited {waited:.2f} ms, computed {computed:.2f} ms, {seconds * 1000:.1f} ms with the connection")
    return "\n".join(lines)


def _describe(args: argparse.Namespace) -> int:
    try:
        with Client(args.address) as client:
            print(client.describe(), end="")
    except grpc.RpcError as error:
        print(f"{error.code().name}: {error.details()}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m realtime_service", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    serve = commands.add_parser("serve", help="answer calls until SIGTERM or Ctrl-C")
    serve.set_defaults(run=_serve)
    serve.add_argument("--address", help="HOST:PORT; overrides TANDEM_GRPC_ADDRESS")
    serve.add_argument("--metrics", help="HOST:PORT; overrides TANDEM_METRICS_ADDRESS")
    serve.add_argument("--reflection", action="store_true", help="serve gRPC reflection")

    call = commands.add_parser("call", help="score one text and print the answer")
    call.set_defaults(run=_call)
    call.add_argument("text")
    call.add_argument("--timeout-ms", type=int)
    call.add_argument("--priority", choices=[p.value for p in Priority], default=Priority.UNSPECIFIED.value)
    call.add_argument("--top-k", type=int, default=3)
    call.add_argument("--address", default=DEFAULT_ADDRESS)

    describe = commands.add_parser("describe", help="print what a service serves")
    describe.set_defaults(run=_describe)
    describe.add_argument("--address", default=DEFAULT_ADDRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
