"""Fixtures: a real service in its own process, on a real Redis, called over a real socket."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis.asyncio

from realtime_service.client import Client
from realtime_service.transport.event_loop import Loop
from shared_model.redis_store.server import RedisServer
from shared_model.releases import pointer
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings
from tests import otlp
from tests.otlp import Collector

READY = re.compile(r"ready in .* on (?P<grpc>\S+), metrics on (?P<metrics>\S+)(?:.* and HTTP on (?P<http>\S+))?")
#: Longest start of a service, also on a busy machine.
READY_SECONDS = 120.0
#: Timeouts choose a lane where the lane is the subject, ten times as long as by default: those of default choose it in
#: test_policy.py, and a busy machine may not answer in 80 ms.
TEN_TIMES = {"TANDEM_LATENCY_BELOW_MS": "1000", "TANDEM_THROUGHPUT_ABOVE_MS": "10000"}


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests run on the event loop of a replica."""
    return {"replica": Loop}


@dataclass
class RunningService:
    process: "subprocess.Popen[str]"
    address: str
    metrics: str
    http: str = ""

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)


def start_service(
    state: Path,
    releases: Path,
    module: str = "realtime_service",
    log: Path | None = None,
    tree: Path | None = None,
    **environment: str,
) -> RunningService:
    """Start `serve` of the service, or of a `module` that wraps it, and wait for its ready line; ports are free ones
    unless set. `log`: the file of its log; None: that of the test. `tree`: the folder of the code to run, by default
    this one. A service that is not ready in time is killed, and the test fails: pytest's own time-out cannot end a
    thread that reads."""
    env = {
        **os.environ,
        "TANDEM_STATE": str(state),
        "TANDEM_RELEASES": str(releases),
        "TANDEM_GRPC_ADDRESS": "127.0.0.1:0",
        "TANDEM_METRICS_ADDRESS": "127.0.0.1:0",
        **environment,
    }
    command = [sys.executable, "-m", module, "serve"]
    with contextlib.nullcontext() if log is None else log.open("w") as error:
        process = subprocess.Popen(command, cwd=tree, env=env, stdout=subprocess.PIPE, stderr=error, text=True)
    assert process.stdout
    late = threading.Timer(READY_SECONDS, process.kill)
    late.start()
    try:
        for line in process.stdout:
            if match := READY.match(line):
                return RunningService(process, match["grpc"], match["metrics"], match["http"] or "")
    finally:
        late.cancel()
    raise AssertionError(f"the service ended with {process.wait()} before it was ready, or took {READY_SECONDS} s")


@pytest.fixture(scope="package")
def redis_server(own_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server of this package's own, because the service answers all deferred requests on it."""
    with RedisServer(StateSettings(state=tmp_path_factory.mktemp("redis"))) as server:
        yield server


@pytest.fixture(scope="module")
def private_redis(own_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server that the package's service does not know: it takes no deferred request from there, and no policy."""
    with RedisServer(StateSettings(state=tmp_path_factory.mktemp("redis"))) as server:
        yield server


@pytest.fixture(scope="package")
def collector() -> Iterator[Collector]:
    """The spans of the package's service."""
    with otlp.collecting() as made:
        yield made


@pytest.fixture(scope="package")
def service(
    release: Release,
    releases_dir: Path,
    redis_server: RedisServer,
    collector: Collector,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RunningService]:
    """One service for tests that change nothing in it. It traces the calls whose callers do; with `TEN_TIMES`."""
    assert pointer.read(Store(releases_dir), None).active == release.id
    traced = collector.environment(OTEL_TRACES_SAMPLER="parentbased_always_off")
    folder = tmp_path_factory.mktemp("service")
    running = start_service(folder, releases_dir, REDIS_URL=redis_server.url, **traced, **TEN_TIMES)
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="package")
def client(service: RunningService) -> Iterator[Client]:
    with Client(service.address) as connected:
        yield connected


@pytest.fixture
async def own_redis(tmp_path: Path) -> AsyncIterator["redis.asyncio.Redis"]:
    """A client of a server without a backfill worker."""
    with RedisServer(StateSettings(state=tmp_path)) as server:
        async with redis.asyncio.Redis.from_url(server.url) as client:
            yield client


def eventually(condition: Callable[[], object], seconds: float = 60.0, every: float | None = None) -> None:
    """Look every so many seconds; None: often at first, and the longer it takes the less often, for a look may cost
    those who are waited for milliseconds."""
    began = time.monotonic()
    while not condition():
        passed = time.monotonic() - began
        assert passed < seconds, "did not happen in time"
        time.sleep(min(max(passed / 20, 0.02), 0.25) if every is None else every)
