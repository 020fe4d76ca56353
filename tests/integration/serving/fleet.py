"""A fleet of its own for each test: replicas of one small release, routers, a Redis, and calls at a steady rate."""

import contextlib
import itertools
import re
import signal
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from shared_model.redis_store.server import RedisServer
from shared_model.releases import pointer
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings
from tests.load import load
from tests.load.calls import Calls
from tests.load.child import Child
from tests.load.plans import Plan
from tests.realtime_service.conftest import RunningService, eventually, start_service
from tests.realtime_service.rollout import tiny_releases

TEXTS = ("where is my card", "card", "my card please", "is my card where")
#: Makes the release that all replicas serve, of a name.
Seal = Callable[[Store, str], Release]
#: What the router counts of the calls it sends on, and a replica of those it answers.
_FORWARDED = re.compile(r'^tandem_forwarded_total\{outcome="([^"]+)",path="[^"]+"\} (\S+)$', re.M)
_ANSWERED = re.compile(r'^tandem_requests_total\{model="[^"]*",outcome="met",path="[^"]+"\} (\S+)$', re.M)
_EJECTIONS = re.compile(r"^tandem_eject(?:ions_total\{[^}]*\}|ed) (\S+)$", re.M)


@dataclass
class Fleet:
    """`release`: what all replicas serve."""

    folder: Path
    release: str
    redis: RedisServer
    _stack: contextlib.ExitStack
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def replica(self, tree: Path | None = None, **environment: str) -> RunningService:
        """`tree`: as in `start_service`."""
        state, releases = self.folder / f"replica-{next(self._numbers)}", self.folder / "releases"
        running = start_service(state, releases, tree=tree, REDIS_URL=self.redis.url, **environment)
        self._stack.callback(end, running)
        return running

    def start(self, routers: int, replicas: int, **environment: str) -> list[RunningService]:
        """So many at once, the routers first."""
        with ThreadPoolExecutor() as pool:
            starting = [pool.submit(self.router, **environment) for _ in range(routers)]
            starting += [pool.submit(self.replica, **environment) for _ in range(replicas)]
            return [it.result() for it in starting]

    def router(self, **environment: str) -> RunningService:
        return self.replica(TANDEM_LANES="none", **environment)

    def sleeping_replica(self) -> Child:
        """Whose engines sleep 10 ms a call: 100 calls a second at batch 1, on any machine. What it `opened` tells its
        address."""
        releases = str(self.folder / "releases")
        child = Child("tests.load.sleeping", releases, self.release, self.redis.url)
        return self._stack.enter_context(child)


@contextlib.contextmanager
def fleet(folder: Path, redis_fsync: str = "everysec", seal: Seal = tiny_releases.seal) -> Iterator[Fleet]:
    store = Store(folder / "releases")
    release = seal(store, "tiny").id
    pointer.promote(store, None, release)
    state = StateSettings(state=folder, redis_fsync=redis_fsync)
    with RedisServer(state) as server, contextlib.ExitStack() as stack:
        yield Fleet(folder, release, server, stack)


def end(running: RunningService) -> None:
    """At once, also where it was stopped or has ended."""
    running.process.send_signal(signal.SIGCONT)
    running.process.kill()
    running.process.wait()


def steady(address: str, rate: float, seconds: float, timeout_ms: int = 2_000, token: str = "") -> Plan:
    """So many REAL_TIME calls a second at even distances, whatever the answers do; each is made once."""
    due = (np.arange(round(rate * seconds)) / rate).tolist()
    return Plan(
        address=address,
        texts=TEXTS,
        seconds=seconds,
        due=due,
        timeout_ms=timeout_ms,
        priority="REAL_TIME",
        token=token,
    )


@contextlib.contextmanager
def during(*plans: Plan) -> Iterator["Future[list[Calls]]"]:
    """The loads run while the context lasts, and it lasts until they are over."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(load.run_together, plans, [0.0] * len(plans))


def answered(running: RunningService) -> int:
    """Calls that a replica has answered in time."""
    return round(sum(map(float, _ANSWERED.findall(_metrics(running)))))


def forwarded(router: RunningService) -> dict[str, int]:
    """Calls that a router has sent on, by how they ended."""
    found: dict[str, int] = {}
    for outcome, count in _FORWARDED.findall(_metrics(router)):
        found[outcome] = found.get(outcome, 0) + round(float(count))
    return found


def ejected(router: RunningService) -> int:
    """Replicas that a router has ejected, now or earlier."""
    return round(sum(map(float, _EJECTIONS.findall(_metrics(router)))))


def takes_traffic(running: RunningService) -> Callable[[], bool]:
    """Whether a replica has answered more calls than now."""
    before = answered(running)
    return lambda: answered(running) > before


def wait_until_routed_to(router: RunningService, *replicas: RunningService) -> None:
    """Until a router sends calls to each of them. Calls it for that, several at once: a lonely call goes to whoever is
    predicted to be the faster by however little."""
    before = [answered(replica) for replica in replicas]
    crowd = Plan(address=router.address, texts=TEXTS, seconds=0.2, in_flight=16, priority="REAL_TIME")

    def all_answered() -> bool:
        load.run(crowd)
        return all(answered(it) > count for it, count in zip(replicas, before, strict=True))

    eventually(all_answered)


def wait_until_answered(router: RunningService) -> None:
    """Until a router has somebody to send calls to."""
    few = steady(router.address, rate=20.0, seconds=0.1)
    eventually(lambda: bool(load.run(few).answered.all()))


def _metrics(running: RunningService) -> str:
    with urllib.request.urlopen(running.metrics, timeout=10) as page:  # noqa: S310 - it is http, ours
        return str(page.read(), "utf-8")
