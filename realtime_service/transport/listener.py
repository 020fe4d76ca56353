"""The gRPC listener of a serving process, its limits, and reflection."""

import socket
from collections.abc import AsyncIterator, Sequence

import grpc
import grpc.aio
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection, reflection_pb2

from realtime_service.rpc import credentials
from realtime_service.rpc.keepalive import TAKING_PINGS
from realtime_service.scheduling.calls_under_way import CallsUnderWay
from realtime_service.settings import ServiceSettings, address_taken
from realtime_service.telemetry.metrics import Metrics
from realtime_service.transport import compression, known_methods, rpc_handlers
from realtime_service.transport.known_methods import CallCounts, Limits
from realtime_service.transport.messages import MAX_MESSAGE_BYTES, TRANSPORT_MESSAGE_BYTES, parse
from realtime_service.transport.rpc_handlers import Context
from shared_model.tls import CertificateFiles

#: The smallest bound on the calls that a process has not accepted yet: gRPC's default.
PENDING_CALLS = 1000
#: From the opening of a connection to its first frame.
HANDSHAKE_MS = 20_000
#: Bytes of each message that may come before it is read; gRPC lets twice as many come on a stream. Larger messages take
#: one more round trip.
UNREAD_BYTES = 16 * 1024
_DEFAULTS = ServiceSettings()
_EVERYWHERE = ("0.0.0.0", "[::]")  # noqa: S104 - looked for, not bound


def make_listener(
    shared: bool,
    settings: ServiceSettings = _DEFAULTS,
    counts: CallCounts | None = None,
    calls: CallsUnderWay | None = None,
) -> grpc.aio.Server:
    """`shared`: other workers of this service listen on the same port; otherwise a second service there must fail.
    `counts`: of the ends of calls; None: they are not exported. `calls`: counts those of single requests."""
    # Calls that this process has not accepted yet: with fewer places than calls, gRPC ends those of other callers with
    # CANCELLED.
    pending = max(PENDING_CALLS, 2 * settings.max_calls)
    return known_methods.server(
        options=[
            ("grpc.so_reuseport", int(shared)),
            ("grpc.max_receive_message_length", TRANSPORT_MESSAGE_BYTES),
            # gRPC takes so much of a message before it is read; by default it takes 4 MB of each from a fast caller.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", UNREAD_BYTES),
            # `transport.compression` does it, within the caller's budget of bytes.
            ("grpc.per_message_decompression", 0),
            ("grpc.max_concurrent_streams", settings.max_streams),
            ("grpc.server.max_pending_requests", pending),
            ("grpc.server.max_pending_requests_hard_limit", 2 * pending),
            ("grpc.max_connection_idle_ms", round(settings.connection_idle_seconds * 1000)),
            ("grpc.max_connection_age_ms", round(settings.connection_age_seconds * 1000)),
            ("grpc.max_connection_age_grace_ms", round(settings.connection_grace_seconds * 1000)),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
            *TAKING_PINGS,
        ],
        limits=Limits(settings.max_calls, *read_at_once(settings)),
        counts=counts or Metrics(()),
        calls=calls or CallsUnderWay(),
    )


def read_at_once(settings: ServiceSettings) -> tuple[int, int]:
    """Messages that are read at once, in all and of an address: as many as the budget of bytes has room for. One that
    is read takes its size twice, because gRPC copies it."""
    messages = settings.inflight_megabytes * 1e6 / (2 * MAX_MESSAGE_BYTES)
    return max(1, round(messages)), max(1, round(messages * settings.inflight_caller_share))


def bind(listener: grpc.aio.Server, address: str, files: CertificateFiles | None = None) -> str:
    """`files`: of TLS. Returns the address with its port. Raises: SettingError if another process listens there."""
    try:
        port = (
            listener.add_secure_port(address, credentials.listener(files))
            if files
            else listener.add_insecure_port(address)
        )
    except RuntimeError as error:
        raise address_taken(address, "is the port taken?") from error
    return f"{address.rpartition(':')[0]}:{port}"


def advertised(address: str, host: str) -> str:
    """The address for other hosts: at `host`, if one is set; at this host's name, if the listener binds to all
    interfaces."""
    listens, _, port = address.rpartition(":")
    named = host or (socket.gethostname() if listens in _EVERYWHERE else listens)
    return f"{named}:{port}"


def offer_reflection(listener: grpc.aio.Server, services: Sequence[str]) -> None:
    """As `reflection.enable_server_reflection`, whose handlers would not parse as ours do."""
    named = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
    servicer = reflection.aio.ReflectionServicer(named)  # type: ignore[attr-defined]

    async def answer(incoming: AsyncIterator[bytes], context: Context) -> None:
        questions = (parse(reflection_pb2.ServerReflectionRequest, compression.small(raw)) async for raw in incoming)
        async for answer in servicer.ServerReflectionInfo(questions, context):
            await context.write(answer)

    method = {"ServerReflectionInfo": rpc_handlers.bidi_stream(answer)}
    listener.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(reflection.SERVICE_NAME, method),))
