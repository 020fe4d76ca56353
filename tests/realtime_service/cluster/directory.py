"""A fixed snapshot of replicas for the forwarder, without Redis."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from protos.scoring.v1.scoring_pb2 import ReplicaDescription
from realtime_service.cluster.forwarder import Forwarded, Forwarder
from realtime_service.routing.policy import Decision, RoutedRequest, decide
from realtime_service.routing.snapshot import Option, Replica, Snapshot, options
from realtime_service.telemetry.metrics import Metrics
from shared_model.clock import SystemClock
from shared_model.types import Priority, ServingPath
from tests.realtime_service.cluster.trusts import trusting

if TYPE_CHECKING:
    from realtime_service.cluster.membership import Membership

RELEASE, LANE = "r-1", ServingPath.DYNAMIC
SCORE = "/scoring.v1.ScoringService/Score"


class Directory:
    """A fake membership of a router without lanes."""

    def __init__(self, addresses: dict[str, str]) -> None:
        replicas = tuple(
            Replica(
                ReplicaDescription(id=replica, address=address, releases=[RELEASE]),
                (Option(replica, LANE, finish=0.005 * (number + 1), per_text=0.002, utilisation=0.1),),
            )
            for number, (replica, address) in enumerate(addresses.items())
        )
        router = Replica(ReplicaDescription(id="router"), ())
        self.snapshot = Snapshot("router", replicas=(router, *replicas))
        self.ejected: frozenset[str] = frozenset()
        self._refresh(self.snapshot.replicas)

    def eject(self, replicas: Iterable[str]) -> None:
        self.ejected = frozenset(replicas)
        self._refresh(self.snapshot.replicas)

    def forget(self, replica: str) -> None:
        """Drop a replica, as if its heartbeat had expired."""
        self._refresh(tuple(it for it in self.snapshot.replicas if it.id != replica))

    def _refresh(self, replicas: tuple[Replica, ...]) -> None:
        found = options(replicas, self.snapshot.local, self.ejected)
        self.snapshot = replace(self.snapshot, replicas=replicas, options=found)

    def option(self, replica: str) -> Option:
        return next(it for it in self.snapshot.options[RELEASE, LANE] if it.replica == replica)


class Router:
    """Decides and forwards like the dispatcher of a replica without lanes."""

    def __init__(self, directory: Directory, draw: float = 0.0) -> None:
        self.directory = directory
        self.metrics = Metrics([])
        self.forwarder = Forwarder(cast("Membership", directory), self.metrics, SystemClock(), trusting(), lambda: draw)

    async def ask(
        self,
        raw: bytes = b"hello",
        seconds: float | None = 20.0,
        to: str = "",
        metadata: tuple[tuple[str, str | bytes], ...] = (),
        method: str = SCORE,
        texts: int = 1,
        repeated: bool = False,
    ) -> bytes:
        """`to`: the replica to ask first, instead of the decided one."""
        request = RoutedRequest(texts, Priority.UNSPECIFIED, None, seconds, RELEASE, here={})
        snapshot = self.directory.snapshot
        decision = Decision(LANE, to, "because") if to else decide(request, snapshot.policy, snapshot, draw=0.0)
        deadline = None if seconds is None else time.monotonic() + seconds
        call = Forwarded(method, raw, deadline, metadata, repeated=repeated)
        return await self.forwarder.forward(call, request, decision)

    def counted(self, metric: str, **labels: Any) -> float:
        return self.metrics.registry.get_sample_value(metric, labels) or 0.0


@contextlib.asynccontextmanager
async def routing(addresses: dict[str, str]) -> AsyncIterator[Router]:
    """A router whose forwarder runs until the block ends."""
    router = Router(Directory(addresses))
    running = asyncio.create_task(router.forwarder.run())
    try:
        yield router
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await router.forwarder.close()


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        await asyncio.sleep(0.01)
