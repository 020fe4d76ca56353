"""`release_model` on the real scheduler: a release that was never judged is tried on callers of the service, and is
promoted or rolled back by what they meet."""

import contextlib
import threading
from collections.abc import Iterator

import pytest
import redis
from tandem_stack.airflow_api import RunState
from tandem_stack.stack import RELEASE

from realtime_service.client import CallError, Client
from shared_model.evaluation import report
from shared_model.redis_store.server import RedisServer
from shared_model.releases import pointer
from shared_model.releases.pointer import Pointer
from shared_model.releases.store import Release, Store
from shared_model.types import Priority
from tests.integration.stack.conftest import RUN_SECONDS, Night, Up, task_log
from tests.realtime_service.rollout import tiny_releases

pytestmark = pytest.mark.proof

#: Callers of both releases: each has always the same one.
CALLERS = 20
#: Nothing of this length is answered in a millisecond, by any release.
LONG = ["where is my card " * 50] * 16
DONE = dict.fromkeys(("verify", "gate", "canary", "watch"), "success")


@pytest.fixture(scope="module")
def store(running: Up, night: Night, release: Release) -> Iterator[Store]:
    """The night is of the release that is active, which it is again afterwards."""
    running.api.pause(RELEASE, False)
    store = Store.from_settings(running.plan.state)
    yield store
    with connected(running) as client:
        pointer.promote(store, client, release.id)


@contextlib.contextmanager
def connected(running: Up) -> "Iterator[redis.Redis]":
    with RedisServer(running.plan.state) as server, redis.Redis.from_url(server.url) as client:
        yield client


def pointed(running: Up, store: Store) -> Pointer:
    with connected(running) as client:
        return pointer.read(store, client)


def sealed(store: Store, name: str, favourite: int) -> Release:
    """A release that was never judged."""
    graph = tiny_releases.embedding(tiny_releases.table(favourite=favourite))
    return tiny_releases.seal_unproven(store, name, {"cpu": graph, "openvino": graph})


@contextlib.contextmanager
def callers(running: Up, canary: Release, timeout_ms: int) -> Iterator[None]:
    """They call without a pause. `timeout_ms`: of those whom the canary answers."""
    over = threading.Event()

    def call() -> None:
        with contextlib.ExitStack() as opened:
            address = running.plan.service.grpc_address
            clients = [opened.enter_context(Client(address, caller_id=str(it), attempts=1)) for it in range(CALLERS)]
            while not over.wait(0.01):
                for client in clients:
                    with contextlib.suppress(CallError):
                        given = timeout_ms if client.score("card").release == canary.id else 1_000
                        client.score(LONG, timeout_ms=given, priority=Priority.REAL_TIME)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def released(running: Up, release: Release) -> RunState:
    form = {"release": release.id, "weight": 0.5, "minutes": 0.5, "calls": 30, "default": True}
    return running.api.wait_run(RELEASE, running.api.trigger(RELEASE, form), 2 * RUN_SECONDS)


def test_a_release_that_keeps_both_service_levels_is_promoted(running: Up, store: Store, release: Release) -> None:
    better = sealed(store, "better", 1)
    assert better.read_note(report.JSON) is None
    with callers(running, better, timeout_ms=1_000):
        run = released(running, better)
    assert (run.state, run.tasks) == ("success", {**DONE, "promote": "success", "roll_back": "skipped"})
    now = pointed(running, store)
    assert (now.active, now.canary, now.previous) == (better.id, "", release.id)
    assert better.read_note(report.JSON) is not None
    assert "0.00% failed" in task_log(running, run.run_id, "watch", RELEASE)
    with Client(running.plan.service.grpc_address) as client:
        assert client.score("card").release == better.id


def test_a_release_that_fails_its_callers_is_rolled_back_with_the_reason(running: Up, store: Store) -> None:
    before = pointed(running, store).active
    worse = sealed(store, "worse", 2)
    with callers(running, worse, timeout_ms=1):
        run = released(running, worse)
    assert (run.state, run.tasks) == ("failed", {**DONE, "promote": "skipped", "roll_back": "failed"})
    # A roll-back is not tried again.
    assert run.tries["roll_back"] == 1
    said = task_log(running, run.run_id, "roll_back", RELEASE)
    assert "rolled back: " in said
    assert "of the canary's calls failed (" in said
    now = pointed(running, store)
    assert (now.active, now.canary) == (before, "")
