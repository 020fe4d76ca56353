"""A replica that follows a release pointer of its own, under continuous calls."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import grpc
import redis

from protos.scoring.v1 import scoring_pb2
from realtime_service.client import Answer, Client
from shared_model.redis_store.server import RedisServer
from shared_model.releases import pointer
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings
from shared_model.types import Priority
from tests.load.workers import Workers
from tests.realtime_service.conftest import RunningService, eventually, start_service
from tests.realtime_service.rollout import tiny_releases

#: Seconds between two calls of one caller: six of them make a hundred calls a second.
PAUSE = 0.05
#: Ways to ask, one for each lane.
WAYS = ({"priority": Priority.REAL_TIME}, {}, {"priority": Priority.BATCH})


@dataclass
class Stage:
    """A store, its pointer in a Redis of its own, and the replica that follows it."""

    folder: Path
    store: Store
    redis: RedisServer
    replica: RunningService
    favourites: dict[str, str]

    def promote(self, release: Release) -> None:
        with redis.Redis.from_url(self.redis.url) as client:
            pointer.promote(self.store, client, release.id)

    def start_canary(self, release: Release, weight: float) -> None:
        with redis.Redis.from_url(self.redis.url) as client:
            pointer.start_canary(self.store, client, release.id, weight)

    def rollback(self) -> str:
        """Returns the release that is active afterwards."""
        with redis.Redis.from_url(self.redis.url) as client:
            return pointer.rollback(self.store, client).active

    def seal(self, name: str, favourite: int) -> Release:
        """A release that answers everything with a label of its own."""
        release = tiny_releases.seal(self.store, name, favourite)
        self.favourites[release.id] = tiny_releases.LABELS[favourite]
        return release

    def another_replica(self, name: str, **environment: str) -> RunningService:
        folder = self.folder / name
        return start_service(folder, Path(self.store.files.root), REDIS_URL=self.redis.url, **environment)


@contextlib.contextmanager
def staged(folder: Path, **environment: str) -> Iterator[Stage]:
    store = Store(folder / "releases")
    with RedisServer(StateSettings(state=folder)) as server:
        first = tiny_releases.seal(store, "first", 0)
        with redis.Redis.from_url(server.url) as client:
            pointer.promote(store, client, first.id)
        replica = start_service(folder / "replica", Path(store.files.root), REDIS_URL=server.url, **environment)
        stage = Stage(folder, store, server, replica, {first.id: tiny_releases.LABELS[0]})
        yield stage
        # A test may have put another in its place.
        assert stage.replica.stop() == 0


def states(client: Client) -> dict[str, scoring_pb2.ReleaseDescription]:
    return {it.id: it for it in client.describe().releases}


def wait_until_active(client: Client, release: Release) -> None:
    def is_active() -> bool:
        state = states(client).get(release.id)
        assert state is None or state.state != scoring_pb2.RELEASE_FAILED, state
        return state is not None and state.state == scoring_pb2.RELEASE_ACTIVE

    eventually(is_active)


def wait_for_failure(client: Client, release: Release) -> str:
    """Wait for a release's failure on the replica; returns the reason."""
    eventually(lambda: states(client).get(release.id, no_release).state == scoring_pb2.RELEASE_FAILED)
    return states(client)[release.id].failure


no_release = scoring_pb2.ReleaseDescription()


@dataclass
class Callers(Workers):
    """Callers of every lane, with one text and with several, while the context lasts. `attempts`: as in `Client`."""

    address: str
    attempts: int = 1
    answers: list[Answer] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def _works(self) -> Iterator[Callable[[], None]]:
        return (partial(self._call, way) for way in WAYS for _ in range(2))

    @property
    def releases(self) -> set[str]:
        return {answer.release for answer in self.answers}

    def _call(self, way: dict[str, Priority]) -> None:
        with Client(self.address, attempts=self.attempts) as client:
            for number in itertools.count():
                if self._over.wait(PAUSE):
                    return
                words = ["where is my card", "card", "is my card where " * (number % 7 + 1)]
                try:
                    self.answers.append(client.score(words[: number % 3 + 1], **way))
                except grpc.RpcError as error:
                    self.failed.append(f"{error.code()}: {error.details()}")
