"""The composition root: what a serving process is made of, started in order and stopped in reverse."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Coroutine
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import start_http_server

from protos.scoring.v1 import scoring_pb2
from protos.scoring.v1.storage_pb2 import LaneLoad, ReplicaState
from realtime_service import nightly, redis_clients, replies, servicer
from realtime_service.dispatch import Dispatcher, Model
from realtime_service.duties import Duties
from realtime_service.harvest import Harvester
from realtime_service.precomputed import PrecomputedScores
from realtime_service.requests import TRANSPORT_MESSAGE_BYTES
from realtime_service.routing.policy import Policy
from realtime_service.routing.registry import Registry
from realtime_service.routing.snapshot import Snapshot
from realtime_service.scheduling.device import Device
from realtime_service.scheduling.scheduler import Limits
from realtime_service.settings import ServiceSettings, lanes
from realtime_service.telemetry import Telemetry
from realtime_service.warmup import warm_engines
from shared_model import devices
from shared_model.clock import SystemClock
from shared_model.errors import SettingError
from shared_model.handoff import Handoff
from shared_model.releases.store import Release

#: Between "not serving" and the listener's close, so that clients have looked elsewhere before calls are refused.
LAME_DUCK_SECONDS = 0.5
DRAIN_SECONDS = 10.0

#: A chat message, as the heartbeat tells others what it would wait here.
TYPICAL_TOKENS = 16

log = logging.getLogger(__name__)


class Service:
    """One replica. `async with` starts it; `run_until` keeps it."""

    def __init__(self, settings: ServiceSettings, release: Release, redis_url: str) -> None:
        self._settings = settings
        self._release = release
        self._clock = SystemClock()
        self._half_device = devices.detect()
        self._lanes = lanes(settings, self._half_device)
        self._redis_url = redis_url
        self._duties = Duties()
        self._stack = contextlib.AsyncExitStack()
        self._draining = False
        self.address = ""
        self.metrics_address = ""

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
        device = await self._start_device(stack)
        self._telemetry = Telemetry(self._lanes.values(), self._release.id)
        listener = grpc.aio.server(
            options=[
                # A second service on the port must fail, not share it.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", TRANSPORT_MESSAGE_BYTES),
            ]
        )
        # Bound before Redis hears of us: the heartbeat carries the address.
        self.address = _bind(listener, self._settings.grpc_address)
        self._start_metrics(stack)
        registry = await self._start_routing(stack, device)
        await self._start_listener(stack, listener, device, registry)

    async def _start_device(self, stack: contextlib.AsyncExitStack) -> Device:
        precisions = [lane.precision for lane in self._lanes.values()]
        warm = await asyncio.to_thread(warm_engines, self._release, precisions, self._half_device, self._settings.width)
        limits = Limits(self._settings.interactive_unit_ms / 1000, self._settings.max_delay_ms / 1000)
        device = Device(self._lanes, warm, limits, self._clock)
        stack.callback(device.close)
        self._spawn(stack, device.run())
        return device

    async def _start_routing(self, stack: contextlib.AsyncExitStack, device: Device) -> Registry:
        self._patient = redis_clients.patient(self._redis_url)
        stack.push_async_callback(self._patient.aclose)
        local = f"{socket.gethostname()}-{os.getpid()}"
        initial = Snapshot(local=local, release=self._release.id)
        registry = Registry(self._patient, initial, lambda: self._state(device))
        await registry.run_once()
        stack.push_async_callback(registry.leave)
        self._registry = registry
        self._spawn(stack, registry.run())
        self._spawn(stack, nightly.run(self._patient, self._telemetry))
        self._spawn(stack, self._watch(device))
        return registry

    async def _start_listener(
        self, stack: contextlib.AsyncExitStack, listener: grpc.aio.Server, device: Device, registry: Registry
    ) -> None:
        handoff = Handoff(self._patient)
        dispatcher = Dispatcher(
            model=Model(self._release.encoder(), self._release.labels),
            device=device,
            registry=registry,
            precomputed=await self._start_precomputed(stack),
            policy=Policy(self._settings.latency_below_ms / 1000, self._settings.throughput_above_ms / 1000),
            telemetry=self._telemetry,
            clock=self._clock,
        )
        if self._settings.harvest:
            harvester = Harvester(handoff, dispatcher, device, self._telemetry, self._clock, registry.snapshot.local)
            self._spawn(stack, harvester.run())
        scoring = servicer.ScoringServicer(
            dispatcher, handoff, self._describe, self._telemetry, self._release.id, self._clock
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
        stack.push_async_callback(self._drain, listener, readiness)

    async def _start_precomputed(self, stack: contextlib.AsyncExitStack) -> PrecomputedScores | None:
        if not self._settings.precomputed:
            return None
        hasty = redis_clients.hasty(self._redis_url, self._settings.precomputed_timeout_ms / 1000)
        stack.push_async_callback(hasty.aclose)
        scores = PrecomputedScores(hasty, self._release.id, self._clock)
        self._spawn(stack, scores.run(self._patient))
        return scores

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

    async def _drain(self, listener: grpc.aio.Server, readiness: Any) -> None:
        self._draining = True
        await readiness.enter_graceful_shutdown()
        await self._registry.run_once()
        await asyncio.sleep(LAME_DUCK_SECONDS)
        await listener.stop(DRAIN_SECONDS)

    async def _watch(self, device: Device) -> None:
        while True:
            for path in self._lanes:
                self._telemetry.set_waiting(path, device.scheduler.waiting(path))
            self._telemetry.set_redis_up(self._registry.snapshot.redis_available)
            await asyncio.sleep(1.0)

    def _state(self, device: Device) -> ReplicaState:
        now = self._clock.monotonic()
        return ReplicaState(
            replica=scoring_pb2.ReplicaDescription(
                id=f"{socket.gethostname()}-{os.getpid()}",
                address=self.address,
                release=self._release.id,
                draining=self._draining,
            ),
            lanes=self._describe_lanes(),
            load={
                path: LaneLoad(
                    waiting=device.scheduler.waiting(path),
                    running=device.running[path],
                    predicted_finish_ms=1000 * (device.scheduler.predicted_finish(path, 1, TYPICAL_TOKENS, now) - now),
                )
                for path in self._lanes
            },
        )

    def _describe(self) -> scoring_pb2.DescribeResponse:
        snapshot = self._registry.snapshot
        return scoring_pb2.DescribeResponse(
            release=self._release.id,
            labels=self._release.labels,
            max_tokens=self._release.manifest.max_tokens,
            lanes=self._describe_lanes(),
            replicas=snapshot.replicas,
            redis_available=snapshot.redis_available,
        )

    def _describe_lanes(self) -> list[scoring_pb2.LaneDescription]:
        return [replies.lane_description(lane, self._half_device) for lane in self._lanes.values()]

    def _spawn(self, stack: contextlib.AsyncExitStack, duty: Coroutine[Any, Any, None]) -> None:
        stack.push_async_callback(self._duties.stop, self._duties.start(duty))


def _bind(listener: grpc.aio.Server, address: str) -> str:
    try:
        port = listener.add_insecure_port(address)
    except RuntimeError as error:
        raise SettingError(f"TANDEM_GRPC_ADDRESS={address}: cannot listen there; is the port taken?") from error
    return f"{address.rpartition(':')[0]}:{port}"
