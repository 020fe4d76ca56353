"""The parts that answer calls, put together: a caller's credentials and budgets, the dispatcher, and the handlers."""

from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import redis.asyncio

from realtime_service.cluster.forwarder import Forwarder
from realtime_service.cluster.membership import Membership
from realtime_service.cluster.peer_trust import PeerTrust
from realtime_service.cluster.peers import PeerTls
from realtime_service.routing.inflight import Inflight
from realtime_service.routing.quotas import Quotas
from realtime_service.serving.backfill import BackfillWorker
from realtime_service.serving.deferral import Deferral, Readers
from realtime_service.serving.dispatcher import Dispatcher
from realtime_service.serving.message_lookup import MessageLookup
from realtime_service.serving.result_watcher import Watcher
from realtime_service.serving.status import ReplicaStatus
from realtime_service.settings import ServiceSettings
from realtime_service.telemetry.calls import CallTracer
from realtime_service.telemetry.metrics import Metrics, Outcome
from realtime_service.transport import rpc_handlers
from realtime_service.transport.authentication import Callers, TokenRules
from realtime_service.transport.call_context import ContextReader
from realtime_service.transport.health import Readiness
from realtime_service.transport.listener import read_at_once
from realtime_service.transport.open_inference import servicer as open_inference
from realtime_service.transport.open_inference.servicer import OpenInferenceServicer
from realtime_service.transport.peer_stream_server import PeerStreams
from realtime_service.transport.relay import Relay
from realtime_service.transport.scoring_v1 import servicer as scoring
from realtime_service.transport.scoring_v1.servicer import ScoringServicer, Stores
from realtime_service.transport.stream_turns import StreamTurns
from realtime_service.transport.streaming import OpenStreams
from realtime_service.transport.token_keys import TokenKeys
from shared_model.clock import Clock
from shared_model.deferred import DeferredQueue

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from shared_model.tracing.tracer import Tracer

#: Services that stand for the whole replica in health checks, and that reflection lists.
SERVICES = (scoring.SERVICE, open_inference.SERVICE)


@dataclass(frozen=True)
class Parts:
    """The parts of a process that its calls share with the rest of it."""

    settings: ServiceSettings
    status: ReplicaStatus
    membership: Membership
    quotas: Quotas
    deferred_queue: DeferredQueue
    redis: "redis.asyncio.Redis"
    readiness: Readiness
    metrics: Metrics
    clock: Clock
    tracer: "Tracer | None" = None


class Calls:
    """The parts that only calls use. Needs a running event loop, and its `background_tasks` running."""

    def __init__(self, parts: Parts, keys: TokenKeys, trust: PeerTrust, peer_tls: PeerTls) -> None:
        """`keys`: verify callers' tokens; `trust`: replicas' credentials; `peer_tls`: of channels to replicas."""
        self._parts = parts
        self._keys = keys
        self._trust = trust
        self._tracer = CallTracer(parts.tracer)
        membership, metrics, clock = parts.membership, parts.metrics, parts.clock
        self._forwarder = Forwarder(membership, metrics, clock, trust, tls=peer_tls)
        readers = Readers.of(parts.settings)
        self._deferral = Deferral(parts.deferred_queue, lambda: membership.snapshot.redis_available, readers, clock)
        status = parts.status
        self._dispatcher = Dispatcher(
            status.models, status.device, membership, self._forwarder, parts.quotas, self._deferral, metrics, clock
        )
        self._watcher = Watcher(parts.deferred_queue)
        self._streams = OpenStreams(parts.settings.stream_idle_seconds, parts.settings.stream_unread_seconds)
        self._offered = self._offer()

    def background_tasks(self) -> Iterator[Coroutine[Any, Any, None]]:
        yield self._forwarder.run()
        yield self._watcher.run()
        if self._keys.current:
            yield self._keys.run()

    def backfill(self) -> Coroutine[Any, Any, None]:
        """Let idle lanes take deferred requests, until cancelled."""
        parts = self._parts
        worker = BackfillWorker(
            parts.deferred_queue,
            self._dispatcher,
            parts.status.device,
            parts.metrics,
            parts.clock,
            parts.status.replica,
            self._tracer,
        )
        return worker.run()

    def handlers(self) -> "tuple[grpc.GenericRpcHandler[Any, Any], ...]":
        """Those of callers, and those of other replicas, which may call the same methods on one stream."""
        forwarded = (*scoring.FORWARDED, *open_inference.FORWARDED)
        longest_seconds = self._parts.settings.connection_grace_seconds / 2
        peer_streams = PeerStreams(self._offered, forwarded, self._streams, self._trust, longest_seconds)
        return (*self._offered, peer_streams.handlers())

    def http(self) -> "ASGIApp":
        """The same methods of callers, over HTTP."""
        # Imported here: most services have no HTTP.
        from realtime_service.http.application import Application

        parts = self._parts

        def ready(lane: str) -> bool:
            return parts.readiness.takes(lane) and not parts.status.draining

        methods = rpc_handlers.methods_of(self._offered)
        return Application(methods, self._bytes_budget(), ready, parts.metrics).asgi()

    def _offer(self) -> "tuple[grpc.GenericRpcHandler[Any, Any], ...]":
        reader = self._context_reader()
        # Only a process without lanes has none of the models that it is asked about.
        relay = (
            None
            if self._parts.status.device.lanes
            else Relay(self._forwarder, self._parts.membership, self._parts.clock)
        )
        return (self._scoring(reader, relay).handlers(), self._inference(reader, relay).handlers())

    def close_streams(self) -> None:
        """End all streams, because this replica closes."""
        self._watcher.close()
        self._streams.close()

    async def close(self) -> None:
        await self._forwarder.close()

    def _context_reader(self) -> ContextReader:
        settings = self._parts.settings
        callers = Callers(self._keys, TokenRules.of(settings), self._parts.clock)
        calls = Inflight("calls", settings.max_calls, settings.max_calls // 2)
        inflight, watched = self._bytes_budget(), self._bytes_budget()
        turns = StreamTurns(*read_at_once(settings))
        return ContextReader(callers, self._trust.verifies, inflight, calls, watched, turns, self._tracer)

    def _bytes_budget(self) -> Inflight:
        settings, metrics = self._parts.settings, self._parts.metrics
        most = round(settings.inflight_megabytes * 1e6)
        of_caller = round(settings.inflight_caller_share * most)
        return Inflight("bytes", most, of_caller, refused=lambda: metrics.ended(None, Outcome.REFUSED))

    def _scoring(self, reader: ContextReader, relay: Relay | None) -> ScoringServicer:
        status, membership = self._parts.status, self._parts.membership
        return ScoringServicer(
            self._dispatcher,
            reader,
            Stores(self._deferral, self._watcher, MessageLookup(status.models, self._parts.redis, self._parts.metrics)),
            self._streams,
            lambda internals, model: status.describe(membership.snapshot, internals, model),
            self._parts.metrics,
            relay,
        )

    def _inference(self, reader: ContextReader, relay: Relay | None) -> OpenInferenceServicer:
        parts = self._parts
        return OpenInferenceServicer(
            self._dispatcher,
            reader,
            self._streams,
            parts.status,
            parts.membership,
            parts.readiness,
            parts.metrics,
            relay,
        )
