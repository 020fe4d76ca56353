"""The composition root: the parts of a serving process, started in order and stopped in reverse."""

import asyncio
import contextlib
import gc
import logging
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from realtime_service.cluster.membership import Membership
from realtime_service.cluster.peer_trust import PeerTrust
from realtime_service.cluster.peers import PeerTls
from realtime_service.execution.devices import Devices
from realtime_service.models import precomputed
from realtime_service.models.precomputed import PrecomputedScores
from realtime_service.models.registry import Models, Serving
from realtime_service.process import backlog_metrics, nightly_metrics, redis_connections, vital_signs
from realtime_service.process.background import BackgroundTasks
from realtime_service.process.board import Board
from realtime_service.process.calls import SERVICES, Calls, Parts
from realtime_service.process.listeners import Listeners
from realtime_service.process.log_limit import GRPC, LogLimit
from realtime_service.process.place import Place
from realtime_service.process.router_health import RouterHealth
from realtime_service.rollout import rollout
from realtime_service.rollout.desired_release import DesiredReleases
from realtime_service.rollout.latency_watch import LatencyWatch
from realtime_service.rollout.loader import Loader
from realtime_service.rollout.residency import Residency
from realtime_service.rollout.rollout import Rollout
from realtime_service.routing import overrides
from realtime_service.routing.quotas import Quotas
from realtime_service.routing.snapshot import Snapshot
from realtime_service.scheduling.calls_under_way import CallsUnderWay
from realtime_service.serving.status import ReplicaStatus
from realtime_service.settings import SERVED, ServiceSettings, lanes, placement, spreads, variants
from realtime_service.telemetry.metrics import Metrics
from realtime_service.transport.authentication import Callers, TokenRules
from realtime_service.transport.health import Readiness
from realtime_service.transport.metrics_server import UNIX
from realtime_service.transport.token_keys import TokenKeys
from shared_model import devices, tracing
from shared_model import settings as settings_reader
from shared_model.clock import SystemClock
from shared_model.deferred import DeferredQueue
from shared_model.evaluation.gate_settings import GateSettings
from shared_model.redis_store import clients
from shared_model.releases.store import Store
from shared_model.settings import DeferredSettings
from shared_model.tls import CertificateFiles, TlsSettings
from shared_model.trust.keyring import WITHOUT_KEYS, Keyring
from shared_model.types import ServingPath

#: Between "not serving" and the listener's close, so that clients have looked elsewhere before calls are refused.
LAME_DUCK_SECONDS = 0.5
DRAIN_SECONDS = 10.0

log = logging.getLogger(__name__)


class Server:
    """One replica. `async with` starts it; `run_until` keeps it."""

    def __init__(
        self,
        settings: ServiceSettings,
        store: Store,
        first: Serving,
        redis_url: str,
        place: Place,
        deferred: DeferredSettings,
        trusted: Keyring = WITHOUT_KEYS,
        tls: TlsSettings | None = None,
    ) -> None:
        """`first`: the releases at the start, none loaded; later ones follow the release pointers unless the settings
        name one. `trusted`: the keys of cluster and operators.

        Raises: SettingError for certificates that cannot be used, and for devices that are not here.
        """
        self._settings = settings
        self._place = place
        self._store = store
        self._first = first
        self._clock = SystemClock()
        half_device = devices.detect()
        self._lanes = lanes(settings, half_device)
        self._variants = variants(self._lanes, half_device)
        self._spreads = spreads(settings, self._lanes, self._variants, devices.gpus())
        self._redis_url = redis_url
        self._deferred = deferred
        self._trusted = trusted
        self._tls = tls or TlsSettings()
        files = CertificateFiles(self._tls)
        self._certificates = files if self._tls.serves else None
        self._peer_tls = PeerTls(self._tls, files)
        self._background_tasks = BackgroundTasks()
        self._stack = contextlib.AsyncExitStack()
        self._metrics = Metrics(list(self._lanes.values()))
        self._metrics.expect_models(first.by_name)
        self._readiness = Readiness(SERVICES, settings.served or SERVED)
        self.metrics_address = ""
        self.http_url = ""

    @property
    def address(self) -> str:
        return self._status.address

    @property
    def release(self) -> str:
        """The active release, for people; a process without lanes is a router, whatever it knows."""
        return self._status.models.serving.active if self._lanes else "a router"

    async def __aenter__(self) -> "Server":
        async with contextlib.AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def run_until(self, stop: asyncio.Event, ready: Callable[[], None]) -> None:
        """Open one lane after the other, tell when all are `ready`, and serve until `stop`. A router is ready when an
        endpoint is behind it.

        Raises: ReleaseError; the error of a background task that ended. A replica that lost one must not look alive.
        """
        stopped, failed, opened = (
            asyncio.create_task(it) for it in (stop.wait(), self._background_tasks.failed(), self._open())
        )
        try:
            await asyncio.wait([stopped, failed, opened], return_when=asyncio.FIRST_COMPLETED)
            if opened.done():
                opened.result()
                # The objects of the start live as long as the process; a full collection of them would stop it for
                # 35 ms.
                gc.freeze()
                ready()
                await asyncio.wait([stopped, failed], return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                failed.result()
        finally:
            for task in (stopped, failed, opened):
                task.cancel()

    async def _start(self, stack: contextlib.AsyncExitStack) -> None:
        """Each step registers how it is undone; the stack undoes them in reverse.

        The devices start first and stop last: what was admitted can always finish.
        """
        self._default_client = redis_connections.default_client(self._redis_url)
        stack.push_async_callback(self._default_client.aclose)
        settings, clock, metrics = self._settings, self._clock, self._metrics
        if tracer := tracing.start("tandem", metrics.spans_dropped):
            stack.push_async_callback(asyncio.to_thread, tracer.close)
        self._tracer = tracer
        bulk_batch_seconds = settings.interactive_unit_ms / 1000
        calls = CallsUnderWay()
        device = Devices(self._lanes, self._variants, settings.width, bulk_batch_seconds, clock, self._spreads, calls)
        stack.callback(device.close)
        models = await self._load(stack, device)
        certificates = self._certificates
        # Before Redis hears of us.
        listeners = Listeners(self._place.shared, settings, metrics, certificates, calls)
        self.http_url = listeners.http_url
        snapshot = Snapshot(f"{socket.gethostname()}-{os.getpid()}")
        placements = {
            it: placement(self._variants[it], spread, settings.devices) for it, spread in self._spreads.items()
        }
        metrics.set_placements({path: placements[lane.precision] for path, lane in self._lanes.items()})
        self._quotas = quotas = Quotas(snapshot)
        self._status = ReplicaStatus(
            replica=snapshot.local,
            address=listeners.address,
            tls=bool(certificates),
            models=models,
            device=device,
            variants=self._variants,
            placements=placements,
            demand=lambda: quotas.demand(clock.monotonic()),
            pinned=bool(settings.release),
        )
        await self._start_routing(stack, snapshot)
        self._spawn(stack, nightly_metrics.run(self._default_client, metrics, settings.expects_nightly))
        self._spawn(stack, vital_signs.run(self._status, self._membership, certificates, metrics))
        self._spawn(stack, vital_signs.watch_loop(metrics, clock))
        if clients.has_tls(self._redis_url):
            self._spawn(stack, vital_signs.watch_redis_certificate(self._redis_url, metrics))
        self._spawn(stack, stack.enter_context(LogLimit(GRPC, clock).attached()).run())
        self._spawn(stack, precomputed.run(models.published, self._default_client))
        await self._start_listeners(stack, listeners)

    async def _load(self, stack: contextlib.AsyncExitStack, device: Devices) -> Models:
        """Load the first release; no model for a router, which has no lanes."""
        if not self._lanes:
            return Models(self._first)
        settings = self._settings
        client = redis_connections.low_latency_client(self._redis_url, settings.precomputed_timeout_ms / 1000)
        stack.push_async_callback(client.aclose)

        def published(release_id: str) -> PrecomputedScores | None:
            return PrecomputedScores(client, release_id, self._clock) if settings.precomputed else None

        limits, budgets = (settings.width, settings.probe_seconds), settings_reader.load(GateSettings)
        self._loader = Loader(self._store, self._variants, *limits, device, published, budgets, self._spreads)
        stack.callback(self._loader.close)
        first = await self._loader.load_first(self._first.active)
        if self._place.shared:
            # The other workers answer meanwhile: this one joins them when it can do all that they can.
            async for _ in self._loader.load_rest(first):
                pass
        serving = Serving({first.release: first}, first.release, others=self._first.others)
        self._metrics.set_serving({serving.default_name: (serving.active, "", 0.0)})
        return Models(serving)

    async def _start_routing(self, stack: contextlib.AsyncExitStack, initial: Snapshot) -> None:
        policy, set_targets = overrides.of(self._settings), self._metrics.set_targets
        loads = self._place.loads
        if loads:
            loads.announce(initial.local)
        self._membership = Membership(
            self._default_client, initial, self._status.heartbeat, policy, self._trusted, worker_loads=loads
        )
        self._membership.subscribe(self._quotas.update)
        self._membership.subscribe(lambda read: set_targets(read.policy.targets, read.policy.load_targets))
        await self._membership.run_once()
        stack.push_async_callback(self._membership.leave)
        self._spawn(stack, self._membership.run())

    async def _open(self) -> None:
        """Open the lanes that are not open yet, then take deferred work and follow the release pointer."""
        desired = DesiredReleases(self._store, lambda: self._membership.snapshot, self._clock)
        if not self._lanes:
            if not self._settings.release:
                self._spawn(self._stack, rollout.follow(self._status.models, desired, self._metrics))
            health = RouterHealth(self._readiness, self._membership)
            health.update()
            if not self._readiness.ready:
                log.warning("the router on %s waits for an endpoint: no replica with lanes is known", self.address)
            self._spawn(self._stack, health.run())
            await self._readiness.until_ready()
            return
        if not self._place.shared:
            async for precision in self._loader.load_rest(self._status.models.active):
                for lane in self._settings.served:
                    if self._lanes[lane].precision is precision:
                        await self._lane_ready(lane)
        status = self._status
        watch = LatencyWatch(status.models, self._loader, self._lanes, self._metrics, self._clock)
        self._spawn(self._stack, watch.run())
        if self._settings.harvest and ServingPath.DEFERRED in self._lanes:
            self._spawn(self._stack, self._calls.backfill())
        if not self._settings.release:
            settings, parts = self._settings, (desired, self._loader, self._metrics, self._clock)
            residency = Residency.of(settings.models, settings.models_megabytes)
            status.rollout = Rollout(status.models, *parts, settings.keep_previous_seconds, residency)
            self._spawn(self._stack, status.rollout.run())

    async def _start_calls(self, stack: contextlib.AsyncExitStack) -> Calls:
        keys = await asyncio.to_thread(TokenKeys, self._settings, self._clock)
        membership, status = self._membership, self._status
        client, metrics, clock = self._default_client, self._metrics, self._clock
        queue = DeferredQueue(client, self._deferred, metrics.unanswered)
        self._spawn(stack, backlog_metrics.run(queue, metrics, clock))
        shared = (client, self._readiness, metrics, clock, self._tracer)
        parts = Parts(self._settings, status, membership, self._quotas, queue, *shared)
        board = Board(parts, Callers(keys, TokenRules.of(self._settings), clock))
        if self._place.metrics:
            # The supervisor serves them to others.
            self.metrics_address = board.serve(stack, f"{UNIX}{self._place.metrics}")
        else:
            self.metrics_address = board.serve(stack, self._settings.metrics_address, self._certificates)
        self._spawn(stack, board.run())
        trust = PeerTrust(
            self._trusted, status.address, lambda: membership.snapshot.cluster_token, self._clock, self._tls.insecure
        )
        calls = Calls(parts, keys, trust, self._peer_tls)
        stack.push_async_callback(calls.close)
        for task in calls.background_tasks():
            self._spawn(stack, task)
        return calls

    async def _start_listeners(self, stack: contextlib.AsyncExitStack, listeners: Listeners) -> None:
        self._calls = await self._start_calls(stack)
        await listeners.start(self._calls, self._readiness)
        for path in self._settings.served:
            lane = self._lanes[path]
            # A lane of single texts may need no more than the variant that is loaded first.
            first = lane.of_singles and lane.precision is next(iter(self._variants))
            if self._place.shared or first:
                await self._lane_ready(path)
        stack.push_async_callback(self._drain, listeners)

    async def _lane_ready(self, lane: ServingPath) -> None:
        """From now on callers and the router may choose the lane."""
        self._membership.open_lane(lane)
        self._readiness.set(lane, True)

    async def _drain(self, listeners: Listeners) -> None:
        self._status.draining = True
        self._readiness.close()
        await self._membership.run_once()
        await asyncio.sleep(LAME_DUCK_SECONDS)
        self._calls.close_streams()
        await listeners.stop(DRAIN_SECONDS)

    def _spawn(self, stack: contextlib.AsyncExitStack, coroutine: Coroutine[Any, Any, None]) -> None:
        stack.push_async_callback(self._background_tasks.stop, self._background_tasks.start(coroutine))
