"""Replicas to measure: two releases in a folder of their own, a Redis, services that follow the pointer there."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import redis

from protos.scoring.v1 import scoring_pb2
from realtime_service.client import Client
from shared_model import settings
from shared_model.evaluation import report
from shared_model.redis_store.server import RedisServer
from shared_model.releases import pointer
from shared_model.releases.manifest import Facts
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings
from shared_model.trust import keyring
from tests.benchmarks.harness import CannotMeasure
from tests.realtime_service.conftest import RunningService, start_service

LIMIT_SECONDS = 120.0


@dataclass(frozen=True)
class Place:
    """Two releases, their store, the Redis that replicas follow, and the folder of their keys. The second release has
    the first one's bytes."""

    store: Store
    client: "redis.Redis"
    redis_url: str
    keys: Path
    first: str
    second: str


@contextlib.contextmanager
def place() -> Iterator[Place]:
    """The active release, promoted, and its twin under another name, in a folder of their own."""
    source = Store(settings.load(StateSettings).releases_root)
    active = source.open(pointer.read(source, None).active)
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as folder:
        state = StateSettings(state=Path(folder))
        store = Store(state.releases_root)
        first, second = _copy(store, active, active.manifest.name), _copy(store, active, "second")
        # With the Redis of another process they are not made by the first replica.
        keyring.make(state.keys_dir, cluster=True, operator=False)
        with RedisServer(state) as server, redis.Redis.from_url(server.url) as client:
            pointer.promote(store, client, first.id)
            yield Place(store, client, server.url, state.keys_dir, first.id, second.id)


@contextlib.contextmanager
def replica(place: Place, module: str = "realtime_service", **environment: str) -> Iterator[RunningService]:
    """As `replica_in`, in a folder without anything."""
    with (
        tempfile.TemporaryDirectory(prefix="tandem-bench-") as empty,
        replica_in(Path(empty), place, module, **environment) as running,
    ):
        yield running


@contextlib.contextmanager
def replica_in(
    state: Path, place: Place, module: str = "realtime_service", **environment: str
) -> Iterator[RunningService]:
    """A service that follows the pointer, with settings of its own, in a state folder that others may have used.
    `module`: as in `start_service`."""
    given = {"REDIS_URL": place.redis_url, "TANDEM_KEYS": str(place.keys), **environment}
    running = start_service(state, Path(place.store.files.root), module, **given)
    try:
        yield running
    finally:
        running.stop()


def active(address: str) -> str:
    """The release a replica says is active."""
    with Client(address) as client:
        return client.describe().release


def is_warm(address: str, release: str) -> bool:
    """Whether a replica has made a release the active one. Raises: CannotMeasure when it found it unfit."""
    with Client(address) as client:
        states = {it.id: it.state for it in client.describe().releases}
    if states.get(release) == scoring_pb2.RELEASE_FAILED:
        raise CannotMeasure(f"{address} found {release} unfit; its log says why")
    return states.get(release) == scoring_pb2.RELEASE_ACTIVE


def settle(address: str) -> None:
    """Wait until a replica has opened its lanes and has timed them against their budgets: both take its cores.

    Raises: CannotMeasure when it does not end.
    """

    def settled() -> bool:
        with Client(address) as client:
            return all(lane.serving and lane.call_ms for lane in client.describe().lanes)

    until(settled)


def until(condition: Callable[[], bool]) -> float:
    """When it came true, monotonic. Raises: CannotMeasure when it does not."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise CannotMeasure(f"the replicas did not get ready, or follow the pointer, within {LIMIT_SECONDS:.0f} s")
        time.sleep(0.05)
    return time.monotonic()


def _copy(store: Store, release: Release, name: str) -> Release:
    manifest = replace(release.manifest, name=name)
    facts = Facts(**{field: value for field, value in vars(manifest).items() if field != "files"})
    copy = store.seal({path: release.read(path) for path in manifest.files}, facts)
    copy.write_note(report.JSON, release.read_note(report.JSON) or b"{}")
    return copy
