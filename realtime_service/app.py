"""The composition root: what a serving process is made of, started in order and stopped in reverse."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Coroutine
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import start_http_server

from realtime_service import nightly, precomputed, redis_clients, servicer
from realtime_service.dispatch import Dispatcher
from realtime_service.duties import Duties
from realtime_service.harvest import Harvester
from realtime_service.loading import Loader
from realtime_service.models import Models
from realtime_service.precomputed import PrecomputedScores
from realtime_service.requests import TRANSPORT_MESSAGE_BYTES
from realtime_service.rollout import Rollout
from realtime_service.routing.policy import Policy
from realtime_service.routing.registry import Registry
from realtime_service.routing.snapshot import Snapshot
from realtime_service.routing.wanted import WantedReleases
from realtime_service.scheduling.device import Device
from realtime_service.scheduling.scheduler import Limits
from realtime_service.settings import ServiceSettings, lanes, variants
from realtime_service.status import Status
from realtime_service.telemetry import Telemetry
from shared_model import devices
from shared_model.clock import SystemClock
from shared_model.errors import SettingError
from shared_model.handoff import Handoff
from shared_model.releases.store import Store

#: Between "not serving" and the listener's close, so that clients have looked elsewhere before calls are refused.
LAME_DUCK_SECONDS = 0.5
DRAIN_SECONDS = 10.0


class Service:
    """One replica. `async with` starts it; `run_until` keeps it."""

    def __init__(self, settings: ServiceSettings, store: Store, release_id: str, redis_url: str) -> None:
        """`release_id`: what it starts with. It follows the release pointer unless its settings name a release."""
        self._settings = settings
        self._store = store
        self._first = release_id
        self._clock = SystemClock()
        half_device = devices.detect()
        self._lanes = lanes(settings, half_device)
        self._variants = variants(self._lanes, half_device)
        self._redis_url = redis_url
        self._duties = Duties()
        self._stack = contextlib.AsyncExitStack()
        self._telemetry = Telemetry(self._lanes.values())
        self.metrics_address = ""

    @property
    def address(self) -> str:
        return self._status.address

    @property
    def release(self) -> str:
        """The active release."""
        return self._status.models.serving.active

    async def __aenter__(self) -> "Service":
        async with contextlib.AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def run_until(self, stop: asyncio.Event) -> None:
        """Raises: what ended a background duty. A replica that lost its scheduler must not look alive."""
        stopped, failed = asyncio.create_task(stop.wait()), asyncio.create_task(self._duties.failed())
        await asyncio.wait([stopped, failed], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if failed.done():
            failed.result()
        failed.cancel()

    async def _start(self, stack: contextlib.AsyncExitStack) -> None:
        """Each step registers how it is undone; the stack undoes them in reverse.

        The device starts first and stops last: what was admitted can always finish.
        """
        self._patient = redis_clients.patient(self._redis_url)
        stack.push_async_callback(self._patient.aclose)
        device = self._start_device(stack)
        loader = self._make_loader(stack, device)
        models = Models(await loader.load_first(self._first))
        self._telemetry.set_serving(self._first, "", 0.0)
        listener = _listener()
        # Bound before Redis hears of us: the heartbeat carries the address.
        address = _bind(listener, self._settings.grpc_address)
        self._start_metrics(stack)
        local = f"{socket.gethostname()}-{os.getpid()}"
        self._status = Status(local, address, models, device, self._variants)
        registry = await self._start_routing(stack)
        self._start_duties(stack, registry, loader)
        await self._start_listener(stack, listener, registry)

    def _start_device(self, stack: contextlib.AsyncExitStack) -> Device:
        limits = Limits(self._settings.interactive_unit_ms / 1000, self._settings.max_delay_ms / 1000)
        device = Device(self._lanes, limits, self._clock)
        stack.callback(device.close)
        self._spawn(stack, device.run())
        return device

    def _make_loader(self, stack: contextlib.AsyncExitStack, device: Device) -> Loader:
        settings = self._settings
        hasty = redis_clients.hasty(self._redis_url, settings.precomputed_timeout_ms / 1000)
        stack.push_async_callback(hasty.aclose)

        def published(release_id: str) -> PrecomputedScores | None:
            return PrecomputedScores(hasty, release_id, self._clock) if settings.precomputed else None

        loader = Loader(self._store, self._variants, settings.width, settings.probe_seconds, device, published)
        stack.callback(loader.close)
        return loader

    async def _start_routing(self, stack: contextlib.AsyncExitStack) -> Registry:
        registry = Registry(self._patient, Snapshot(local=self._status.replica), self._status.heartbeat)
        await registry.run_once()
        stack.push_async_callback(registry.leave)
        self._spawn(stack, registry.run())
        return registry

    def _start_duties(self, stack: contextlib.AsyncExitStack, registry: Registry, loader: Loader) -> None:
        models = self._status.models
        self._spawn(stack, nightly.run(self._patient, self._telemetry))
        self._spawn(stack, self._watch(registry))
        self._spawn(stack, precomputed.run(models.published, self._patient))
        if not self._settings.release:
            wanted = WantedReleases(self._store, lambda: registry.snapshot, self._clock)
            self._status.rollout = Rollout(models, wanted, loader, self._telemetry)
            self._spawn(stack, self._status.rollout.run())

    async def _start_listener(
        self, stack: contextlib.AsyncExitStack, listener: grpc.aio.Server, registry: Registry
    ) -> None:
        handoff, device = Handoff(self._patient), self._status.device
        policy = Policy(self._settings.latency_below_ms / 1000, self._settings.throughput_above_ms / 1000)
        dispatcher = Dispatcher(self._status.models, device, registry, policy, self._telemetry, self._clock)
        if self._settings.harvest:
            harvester = Harvester(handoff, dispatcher, device, self._telemetry, self._clock, self._status.replica)
            self._spawn(stack, harvester.run())
        scoring = servicer.ScoringServicer(
            dispatcher, handoff, lambda: self._status.describe(registry.snapshot), self._telemetry, self._clock
        )
        listener.add_generic_rpc_handlers((scoring.handlers(),))
        readiness: Any = health.aio.HealthServicer()  # type: ignore[attr-defined]  # the stubs predate it
        health_pb2_grpc.add_HealthServicer_to_server(readiness, listener)
        if self._settings.reflection:
            reflection.enable_server_reflection(
                (servicer.SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), listener
            )
        await listener.start()
        for name in ("", servicer.SERVICE):
            await readiness.set(name, health_pb2.HealthCheckResponse.SERVING)
        stack.push_async_callback(self._drain, listener, readiness, registry)

    def _start_metrics(self, stack: contextlib.AsyncExitStack) -> None:
        host, _, port = self._settings.metrics_address.rpartition(":")
        try:
            server, thread = start_http_server(int(port), host, self._telemetry.registry)
        except OSError as error:
            address = self._settings.metrics_address
            raise SettingError(f"TANDEM_METRICS_ADDRESS={address}: cannot listen there: {error.strerror}") from error
        self.metrics_address = f"{host}:{server.server_port}"

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        stack.callback(stop)

    async def _drain(self, listener: grpc.aio.Server, readiness: Any, registry: Registry) -> None:
        self._status.draining = True
        await readiness.enter_graceful_shutdown()
        await registry.run_once()
        await asyncio.sleep(LAME_DUCK_SECONDS)
        await listener.stop(DRAIN_SECONDS)

    async def _watch(self, registry: Registry) -> None:
        while True:
            for path in self._lanes:
                self._telemetry.set_waiting(path, self._status.device.scheduler.waiting(path))
            self._telemetry.set_redis_up(registry.snapshot.redis_available)
            await asyncio.sleep(1.0)

    def _spawn(self, stack: contextlib.AsyncExitStack, duty: Coroutine[Any, Any, None]) -> None:
        stack.push_async_callback(self._duties.stop, self._duties.start(duty))


def _listener() -> grpc.aio.Server:
    return grpc.aio.server(
        options=[
            # A second service on the port must fail, not share it.
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", TRANSPORT_MESSAGE_BYTES),
        ]
    )


def _bind(listener: grpc.aio.Server, address: str) -> str:
    try:
        port = listener.add_insecure_port(address)
    except RuntimeError as error:
        raise SettingError(f"TANDEM_GRPC_ADDRESS={address}: cannot listen there; is the port taken?") from error
    return f"{address.rpartition(':')[0]}:{port}"
