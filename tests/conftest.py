"""Real components that every test shares: a Redis of the suite's own and the default release."""

import functools
import gc
import os
import subprocess
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import hypothesis
import pytest
import redis
from xdist.scheduler import LoadFileScheduling, Scheduling

from shared_model import settings
from shared_model.building import build, checkpoint
from shared_model.commands.make_release import DEFAULT_NAME, default_heads
from shared_model.errors import ReleaseError
from shared_model.evaluation import corpora
from shared_model.evaluation.gate_settings import GateSettings
from shared_model.redis_store.server import RedisServer
from shared_model.releases import pointer
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings
from tests import object_store, spark_classes
from tests.azurite import azurite
from tests.object_store import Proxy
from tests.realtime_service.rollout import tiny_releases

REPOSITORY = Path(__file__).parents[1]

# A pause of a busy machine is not a failure. The seed is an option of pytest: no examples are kept between runs.
# Without another seed, more examples would be the same ones in every run: `make proof` looks for new ones.
hypothesis.settings.register_profile(
    "tandem",
    max_examples=50,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    database=None,
    print_blob=True,
)
#: What `make proof` runs, with a seed of its own each time.
hypothesis.settings.register_profile("proof", hypothesis.settings.get_profile("tandem"), max_examples=500)
hypothesis.settings.load_profile("tandem")

#: Seconds. Hypothesis shrinks a failing example for 300 at most; a time-out before that would hide the failure.
_PROPERTY_TIMEOUT = 900

#: Fixtures that start processes or open the default release.
_HEAVY = {"redis_server", "own_redis", "release", "spark", "s3_server", "azure_server"}

#: Marks of tests that are too heavy for `make unit`.
_NOT_UNIT = ("heavy", "proof", "readme", "timed")

#: Variables of a developer's shell that tests must ignore: the suite flushes the Redis that it uses.
_NOT_OURS = (
    "REDIS_URL",
    "TANDEM_REDIS_URL",
    "TANDEM_STATE",
    "TANDEM_MESSAGES",
    "TANDEM_SCORES",
    "TANDEM_TRUSTED_KEYS",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "TRACEPARENT",
)

#: Options that make short-lived processes cheaper.
_FOR_SHORT_LIVES = {
    # Else a second thread of torch or BLAS spins on the core that the other worker wants.
    "OMP_NUM_THREADS": "1",
    "SPARK_SUBMIT_OPTS": spark_classes.OPTIONS,
}


def pytest_configure() -> None:
    """Before anything is imported that reads them when it is loaded."""
    for name, value in _FOR_SHORT_LIVES.items():
        os.environ.setdefault(name, value)


class _SharedParts(LoadFileScheduling):
    """A file's tests run in one worker; those of all files that share an expensive part, too: each worker would start
    one of its own."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return _shared_part(file) or file


#: What a file holds that needs a part of its package which costs many CPU seconds: 17 of the service, 100 of the whole
#: stack, and 15 of a session of Spark whose workers have opened the package's release.
_SIGNS = ("service: RunningService", "running: Up", "spark: SparkSession", "in_this_spark: None")


@functools.cache
def _shared_part(file: str) -> str:
    """The part that a file's tests share with other files of their package; empty for a file without one."""
    own, conftest = (REPOSITORY / file).read_text(), (REPOSITORY / file).with_name("conftest.py")
    service, stack, *spark = _SIGNS
    # Fixtures of its folder may use the service, too.
    served = service in own or (conftest.exists() and service in conftest.read_text())
    part = "service" if served else "stack" if stack in own else "Spark" if any(sign in own for sign in spark) else ""
    return part and f"{part} of {Path(file).parts[1]}"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling | None:
    return _SharedParts(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The objects of imports stay: to look through a million of them for garbage takes seconds of every worker."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The longest tests come first: they wait for Airflow and Spark, and would keep one worker long after the other.
    items.sort(key=lambda item: "integration" not in item.path.parts)
    for item in items:
        if _HEAVY.isdisjoint(getattr(item, "fixturenames", ())) and not any(map(item.get_closest_marker, _NOT_UNIT)):
            item.add_marker(pytest.mark.unit)


def pytest_collection_finish(session: pytest.Session) -> None:
    """After Hypothesis has marked its tests."""
    for item in session.items:
        if item.get_closest_marker("hypothesis"):
            item.add_marker(pytest.mark.timeout(_PROPERTY_TIMEOUT), append=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A unit test starts no process, nor does a fixture for it."""
    if not item.get_closest_marker("unit"):
        return (yield)

    def refuse(*command: object, **_: object) -> NoReturn:
        raise AssertionError(f"{command}: a test that starts a process needs the mark `heavy`")

    with mock.patch.object(subprocess.Popen, "__init__", refuse):
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def own_environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in _NOT_OURS:
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def redis_server(own_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A real redis-server, alive for the whole session. Its `url` is for fixtures wider than a test."""
    with RedisServer(StateSettings(state=tmp_path_factory.mktemp("state"))) as server:
        yield server


@pytest.fixture
def redis_client(redis_server: RedisServer) -> Iterator["redis.Redis"]:
    """A client of the session's Redis, emptied for this test."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
        yield client


@pytest.fixture
def redis_url(redis_server: RedisServer, redis_client: "redis.Redis") -> str:
    """The session's Redis, emptied for this test."""
    return redis_server.url


@pytest.fixture(scope="session")
def default_releases_dir() -> Path:
    """The releases that tests, `make demo` and `make up` share, so that one build serves all of them."""
    return Path(settings.load(StateSettings, state=REPOSITORY / ".tandem").releases_root)


@pytest.fixture(scope="session")
def default_release(default_releases_dir: Path) -> Release:
    """The default release: the active one if it is of that name, else built (minutes) and promoted."""
    store = Store(default_releases_dir)
    try:
        active = pointer.read(store, None).active
        if active.rpartition("-")[0] == DEFAULT_NAME:
            return store.open(active)
    except ReleaseError:
        pass
    return _build_default(store)


@pytest.fixture(scope="session")
def tiny_releases_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny-releases")


@pytest.fixture(scope="session")
def tiny_release(tiny_releases_dir: Path) -> Release:
    """A tiny release, active in a store of its own. Each process needs seconds to open the default one."""
    store = Store(tiny_releases_dir)
    sealed = tiny_releases.seal_counting(store, "tiny")
    pointer.promote(store, None, sealed.id)
    return sealed


@pytest.fixture(scope="session")
def releases_dir(default_releases_dir: Path) -> Path:
    """Packages in which the model is not the subject have the tiny one."""
    return default_releases_dir


@pytest.fixture(scope="session")
def release(default_release: Release) -> Release:
    return default_release


def _build_default(store: Store) -> Release:
    source = checkpoint.with_heads(build.default_encoder(), default_heads())
    chosen = corpora.choose(source.output, source.reads)
    # How fast it is on a machine that runs tests is for `make bench-release` to say.
    bounds = GateSettings(gate_latency_ms=1000, gate_batch_ms=10_000)
    built, report = build.build(store, source, DEFAULT_NAME, chosen, bounds, say=lambda line: None)
    assert report.passed, report
    pointer.promote(store, None, built.id)
    return built


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Proxy]:
    """A real S3 server behind a proxy that injects faults."""
    with object_store.s3("tandem") as proxy:
        yield proxy


@pytest.fixture
def s3(s3_server: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """The same for one test; `s3_url` is its own folder of the bucket."""
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    object_store.reconnect()
    yield s3_server
    s3_server.clear()
    object_store.reconnect()


@pytest.fixture
def s3_url(s3: Proxy, tmp_path: Path) -> str:
    return f"s3://tandem/{tmp_path.name}-{os.getpid()}"


@pytest.fixture(scope="session")
def azure_server() -> Iterator[Mapping[str, str]]:
    """A real Azure Blob server, as its clients name it. Of proofs alone: it needs npm."""
    with azurite("tandem") as environment:
        yield environment


@pytest.fixture
def az_url(azure_server: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A folder of its container, for one test."""
    for name, value in azure_server.items():
        monkeypatch.setenv(name, value)
    object_store.reconnect()
    yield f"az://tandem/{tmp_path.name}-{os.getpid()}"
    object_store.reconnect()
