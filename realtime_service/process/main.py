"""Starts a service from its settings: in this process, or in workers that it supervises."""

import asyncio
import contextlib
import ctypes
import itertools
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis

from realtime_service.process import address_lock
from realtime_service.process.cores import Cores, worker_cores
from realtime_service.process.gpus import Gpus, hide, worker_gpus
from realtime_service.process.place import Place
from realtime_service.settings import ServiceSettings
from realtime_service.telemetry import json_logs
from shared_model import cgroups, devices, settings, startup, tracing
from shared_model.errors import ReleaseError, TandemError
from shared_model.evaluation.gate_settings import GateSettings
from shared_model.redis_store import clients
from shared_model.redis_store.server import RedisServer
from shared_model.settings import DeferredSettings, StateSettings
from shared_model.tls import CertificateFiles, TlsSettings
from shared_model.trust import keyring

if TYPE_CHECKING:
    from realtime_service.models.registry import Serving
    from realtime_service.process.server import Server
    from shared_model.releases.store import Store

#: Options of glibc's allocator, by their numbers.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
#: Longest wait for Redis at the start of a service before it counts as not reachable.
_REDIS_SECONDS = 1.0
#: The functions of a service without Redis, for the log.
_WITHOUT = (
    "Score works, on this replica alone; Submit and results, published scores, other replicas, quotas across replicas "
    "and `policy set` do not"
)
_ANY_AUDIENCE = (
    "TANDEM_TOKEN_AUDIENCE is not set: a token that the same issuer has made for any other service is valid here, too"
)
_ROUTER_WITHOUT = "a router finds no endpoint without it, so no call is answered"

log = logging.getLogger(__name__)


def serve(insecure: bool = False, **flags: Any) -> int:
    """`python -m realtime_service serve`: until SIGTERM or Ctrl-C. `flags` override settings of their names, and
    `insecure` that of TlsSettings.

    Raises: TandemError if it cannot start. Returns the exit status.
    """
    # First, so that a service that is stopped during its start still stops its child processes.
    asked_to_stop = _note_sigterm()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    adopt_file()
    if insecure:
        # Workers are to know, too.
        os.environ["TANDEM_INSECURE"] = "yes"
    state, service = settings.load(StateSettings), settings.load(ServiceSettings, **flags)
    json_logs.install(service.log_format)
    tracing.endpoint()
    if service.token_required and not service.token_audience:
        log.warning(_ANY_AUDIENCE)
    tls = settings.load(TlsSettings)
    tls.check_bind("TANDEM_GRPC_ADDRESS", service.grpc_address)
    tls.check_bind("TANDEM_METRICS_ADDRESS", service.metrics_address)
    if service.http.address:
        tls.check_bind("TANDEM_HTTP_ADDRESS", service.http.address)
    # Before workers are started: each would say the same.
    files = CertificateFiles(tls)
    limits = cgroups.limits()
    usable = devices.usable_cores(os.sched_getaffinity(0), limits.cpus, socket.gethostname())
    # A worker's neighbours share a NUMA node, as far as nodes divide.
    available = list(itertools.chain(*devices.numa_nodes(usable)))
    hide(service)
    gpus = worker_gpus(service, devices.gpus())
    cores = worker_cores(service, available, limits.memory, len(gpus))
    startup.warn_of_open_state(state.state)
    with address_lock.holding(service.grpc_address, state.state), RedisServer(state) as server:
        server.log_version()
        # Made here, where they are missing, before a worker looks for them.
        keyring.warn_of_missing(keyring.load(state))
        _look_for_redis(server.url, router=not service.served)
        # One process that has asked the driver cannot choose among GPUs any more.
        if service.workers or len(cores) > 1 or service.gpus:
            return _supervise(service, server.url, asked_to_stop, cores, gpus, files if tls.serves else None)
        _run(service, state, server.url, Place(), asked_to_stop)
    return 0


def work(place: Place) -> int:
    """One worker of a supervised service, with settings from its environment. Returns the exit status."""
    asked_to_stop = _note_sigterm()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(name)s %(levelname)s %(message)s")
    try:
        state, service = settings.load(StateSettings), settings.load(ServiceSettings)
        json_logs.install(service.log_format)
        with RedisServer(state) as server:
            _run(service, state, server.url, place, asked_to_stop)
    except TandemError as error:
        sys.stderr.write(f"realtime_service serve: {error}\n")
        return 2
    return 0


def _supervise(
    service: ServiceSettings,
    redis_url: str,
    asked: list[int],
    cores: Sequence[Cores],
    gpus: Sequence[Gpus],
    files: CertificateFiles | None,
) -> int:
    from realtime_service.process.supervisor import Supervisor

    async def run(address: str) -> int:
        return await Supervisor(service, redis_url, address, cores, gpus, files).run(_stop_event(asked))

    with contextlib.ExitStack() as held:
        address = held.enter_context(address_lock.reserved(service.grpc_address))
        if service.http.address:
            # Workers read it in their environment.
            http = held.enter_context(address_lock.reserved(service.http.address, "TANDEM_HTTP_ADDRESS"))
            os.environ["TANDEM_HTTP_ADDRESS"] = http
        return asyncio.run(run(address))


def _run(service: ServiceSettings, state: StateSettings, redis_url: str, place: Place, asked: list[int]) -> None:
    # A router has no engines, but as much to read.
    _bound_kept_memory(service.width if service.served else 2)
    from realtime_service.process.server import Server
    from realtime_service.transport import event_loop
    from shared_model.releases import pointer
    from shared_model.releases.store import Store

    trusted, tls = keyring.load(state), settings.load(TlsSettings)
    store, deferred = Store.from_settings(state), settings.load(DeferredSettings)
    with clients.connect(redis_url, timeout=5.0, connect_timeout=5.0) as client:
        pointer.settle(store, client)
        first = _first(service, store, client)

    async def run() -> None:
        stop = _stop_event(asked)
        if place.shared:
            _stop_with_supervisor(stop)
        async with Server(service, store, first, redis_url, place, deferred, trusted, tls) as running:
            await running.run_until(stop, lambda: ready(running))

    def ready(running: "Server") -> None:
        release, address = running.release, running.address
        if place.shared:
            # For the supervisor, which reads it as `supervisor.Ready`.
            line = json.dumps({"release": release, "address": address, "http": running.http_url})
        else:
            metrics = f"{'https' if tls.serves else 'http'}://{running.metrics_address}"
            line = f"ready in {time.monotonic() - started:.1f} s: {release} on {address}, metrics on {metrics}"
            line += f" and HTTP on {running.http_url}" if running.http_url else ""
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    started = time.monotonic()
    event_loop.run(run())


def _bound_kept_memory(engine_threads: int) -> None:
    """Return freed memory to the system, but for 10 MB of each heap: the event loop reads the largest message there.
    gRPC copies it twice, and most of that time would go to faults of new pages. glibc raises both thresholds with the
    largest block that was freed. By default most threads have a heap of their own, which would keep as much; with one
    heap for all they wait for its lock, which costs each call a tenth of its CPU time. On two cores four heaps are as
    good as more. No-op without glibc."""
    with contextlib.suppress(AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, 8 << 20)
        libc.mallopt(_TRIM_THRESHOLD, 10 << 20)
        # For engines, the event loop, and gRPC's threads. Each heap has the first threads that ask for memory.
        libc.mallopt(_ARENA_MAX, engine_threads + 2)


def _first(service: ServiceSettings, store: "Store", client: "redis.Redis") -> "Serving":
    """The releases at the start. Raises: ReleaseError without one to load."""
    from realtime_service.models.registry import Roles, Serving
    from shared_model.releases import pointer, pointers

    # A router loads no model, and may start before the first release exists.
    follows = bool(service.served) and not service.release
    try:
        found = pointers.read(store, client)
    except ReleaseError as error:
        if follows:
            raise
        log.warning("other models than the default one are not known yet: %s", error)
        found = pointers.Pointers(None)
    active = (found.default or pointer.read(store, client)).active if follows else service.release
    others = {name: Roles(it.active, it.canary, it.weight) for name, it in found.others.items()}
    return Serving({}, active, others=others)


def _look_for_redis(url: str, router: bool) -> None:
    """Log once that a service starts without Redis; its replicas log when they reach it."""
    try:
        with clients.connect(url, _REDIS_SECONDS, _REDIS_SECONDS) as client:
            client.ping()
    except (redis.RedisError, OSError) as error:
        place, lost = clients.shown(url), _ROUTER_WITHOUT if router else _WITHOUT
        log.warning("Redis at %s is not reached (%s): %s, until it is", place, error, lost)


def adopt_file() -> None:
    """Set environment variables from the settings file unless they are set, so that child processes have them, too."""
    if path := os.environ.get(settings.CONFIG):
        written = settings.read_file(
            Path(path), StateSettings, DeferredSettings, ServiceSettings, TlsSettings, GateSettings
        )
        for name, value in written.items():
            os.environ.setdefault(name, value)


def _note_sigterm() -> list[int]:
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    return asked


def _stop_event(asked: list[int]) -> asyncio.Event:
    """An event that SIGTERM and SIGINT set; set at once if SIGTERM came before."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if asked:
        stop.set()
    return stop


def _stop_with_supervisor(stop: asyncio.Event) -> None:
    """Stop when the supervisor dies: it holds the other end of standard input, which then reaches its end."""
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()

    def gone() -> None:
        loop.remove_reader(descriptor)
        stop.set()

    loop.add_reader(descriptor, gone)
