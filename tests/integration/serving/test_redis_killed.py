"""Redis is killed under calls and submissions: calls go on, and no lost submission is acknowledged."""

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType

import grpc
import pytest

from realtime_service.client import Client, DeadlineExceeded
from shared_model.redis_store.server import RedisServer
from shared_model.settings import StateSettings
from shared_model.types import DeferredState
from tests.integration.serving.conftest import Measured
from tests.integration.serving.fleet import Fleet, during, fleet, steady, wait_until_routed_to
from tests.load.calls import OK, statuses
from tests.realtime_service.conftest import eventually

RATE = 100.0
#: Submissions a second, and how long one may take to be refused.
_PAUSE, _PATIENCE = 0.02, 5.0


@pytest.fixture
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet whose Redis acknowledges writes that are on disk, so that a kill loses none of them."""
    with fleet(tmp_path_factory.mktemp("fleet"), redis_fsync="always") as running:
        yield running


@dataclass
class Submissions:
    """One after the other, each made once, for as long as the context lasts. By moment of its end (monotonic): the ids
    that were acknowledged, and with which status the others were refused."""

    address: str
    acknowledged: dict[str, float] = field(default_factory=dict)
    refused: list[tuple[float, grpc.StatusCode]] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Submissions":
        self._thread = threading.Thread(target=self._submit)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _submit(self) -> None:
        with Client(self.address, attempts=1) as client:
            for number in itertools.count():
                if self._over.wait(_PAUSE):
                    return
                try:
                    client.submit(f"work-{number}", "where is my card")
                except grpc.RpcError as error:
                    self.refused.append((time.monotonic(), error.code()))
                else:
                    self.acknowledged[f"work-{number}"] = time.monotonic()


@pytest.mark.heavy
@pytest.mark.parametrize("outage", [3.0, pytest.param(60.0, marks=pytest.mark.proof)], ids=["short", "long"])
def test_a_killed_redis_fails_no_interactive_call_and_loses_nothing_that_was_acknowledged(
    ours: Fleet, outage: float, measured: Measured
) -> None:
    """`outage`: seconds."""
    router, *replicas = ours.start(routers=1, replicas=2)
    wait_until_routed_to(router, *replicas)
    load = steady(router.address, RATE, outage + 5.0)
    with during(load) as loads, Submissions(router.address) as work:
        eventually(lambda: len(work.acknowledged) >= 10)
        assert ours.redis.pid
        os.kill(ours.redis.pid, signal.SIGKILL)
        killed = time.monotonic()
        threading.Event().wait(outage)
        # Redis may answer a moment before `restart` returns.
        gone_until = time.monotonic()
        with RedisServer(StateSettings(state=ours.folder)) as revived:
            back = time.monotonic()
            assert revived.url == ours.redis.url
            eventually(lambda: max(work.acknowledged.values()) > back)
            normal = min(at for at in work.acknowledged.values() if at > back) - back
            with Client(router.address) as client:
                lost = _unanswered(client, list(work.acknowledged))
    (calls,) = loads.result()
    failed = len(calls.due) - statuses(calls).get(OK, 0)
    measured(f"Redis killed for {outage:.0f} s: interactive calls of {len(calls.due)} that failed", failed, "0")
    measured(f"Redis killed: of {len(work.acknowledged)} acknowledged, lost", len(lost), "0")
    measured(f"Redis killed: {len(work.refused)} refused; normal after its return, seconds", normal, "<= 5")
    assert statuses(calls) == {OK: len(calls.due)}
    assert {code for _, code in work.refused} == {grpc.StatusCode.UNAVAILABLE}
    assert [at for at in work.acknowledged.values() if killed + _PATIENCE < at < gone_until] == []
    assert lost == []
    assert normal <= 5.0


def _unanswered(client: Client, request_ids: list[str]) -> list[str]:
    """The requests without an answer after the time for all of them."""
    answered = set[str]()
    with contextlib.suppress(DeadlineExceeded):
        for ended in client.watch(request_ids, seconds=30.0):
            answered |= {ended.request_id} if ended.state is DeferredState.PUBLISHED else set()
    return [it for it in request_ids if it not in answered]
