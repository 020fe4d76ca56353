"""Redis is stopped while published scores are looked up: a device answers those calls a moment later, later calls are
not delayed, and no late reply answers another call."""

import contextlib
import itertools
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator

import grpc
import pytest
import redis

from protos.scoring.v1.storage_pb2 import PublishedScore
from realtime_service.client import Answer, Client
from shared_model.published.epochs import Epoch
from shared_model.published.publish import publish
from shared_model.releases.store import Store
from shared_model.types import Priority, ServingPath
from tests.integration.serving.conftest import Measured
from tests.integration.serving.fleet import Fleet
from tests.realtime_service.conftest import RunningService, eventually
from tests.realtime_service.rollout.tiny_releases import LABELS

#: Each was scored last night with a label of its own; a device answers everything with the first.
PUBLISHED = dict(zip(("where", "is", "my", "card", "please", "where is", "my card"), LABELS[1:], strict=True))
TEXT, UNPUBLISHED = "card", "please my card"
#: Calls in a stop: those that notice that Redis is gone, and those after them, within a second.
FIRST, CALLS = 3, 40


@pytest.fixture
def replica(ours: Fleet) -> RunningService:
    release = Store(ours.folder / "releases").open(ours.release)
    encoder = release.encoder()
    scores = {
        encoder.key(encoder.encode(text)): PublishedScore(labels=[LABELS.index(label)], scores=[1.0], tokens=3)
        for text, label in PUBLISHED.items()
    }
    with redis.Redis.from_url(ours.redis.url) as client:
        publish(client, Epoch(release.id, "bf16", "2026-01-14", 1), scores.items())
    return ours.replica(TANDEM_HARVEST="false")


@contextlib.contextmanager
def stopped(fleet: Fleet) -> Iterator[None]:
    assert fleet.redis.pid
    os.kill(fleet.redis.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(fleet.redis.pid, signal.SIGCONT)


def connections(fleet: Fleet) -> int:
    """Connections that Redis has accepted since its start."""
    with redis.Redis.from_url(fleet.redis.url) as client:
        return int(client.info("stats")["total_connections_received"])


def is_answered_from_redis(client: Client) -> bool:
    return client.score(TEXT).path is ServingPath.PRECOMPUTED


@pytest.mark.timed
@pytest.mark.parametrize(
    ("stops", "bound_ms"), [(2, 50.0), pytest.param(20, 5.0, marks=pytest.mark.proof)], ids=["few", "all"]
)
def test_a_stopped_redis_costs_the_calls_in_a_look_up_a_moment_and_later_ones_nothing(
    ours: Fleet, replica: RunningService, stops: int, bound_ms: float, measured: Measured
) -> None:
    added, afterwards = list[float](), list[float]()
    with Client(replica.address) as client:
        for _ in range(stops):
            eventually(lambda: is_answered_from_redis(client))
            usual = statistics.median(_milliseconds(client, UNPUBLISHED) for _ in range(CALLS))
            before = connections(ours)
            with stopped(ours):
                took = [_milliseconds(client, TEXT) for _ in range(CALLS)]
            # Each look-up opens a connection, because the former one was closed: few calls have made a look-up.
            assert connections(ours) - before < CALLS / 2
            added.append(max(took[:FIRST]) - usual)
            afterwards.append(statistics.median(took[FIRST:]) - usual)
    assert statistics.median(added) <= bound_ms
    assert statistics.median(afterwards) <= bound_ms
    measured("Redis stopped: added to a call in a look-up, ms", statistics.median(added), "<= 5")
    measured("Redis stopped: added to a call afterwards, ms", statistics.median(afterwards), "0")


@pytest.mark.heavy
@pytest.mark.parametrize("stops", [5, pytest.param(50, marks=pytest.mark.proof)], ids=["few", "all"])
def test_a_late_reply_answers_no_other_call(
    ours: Fleet, replica: RunningService, stops: int, measured: Measured
) -> None:
    over, answers = threading.Event(), list[tuple[str, Answer]]()

    def call(text: str) -> None:
        with Client(replica.address, attempts=1) as client:
            for number in itertools.count():
                if over.wait(0.005):
                    return
                # Some calls time out during their look-up.
                timeout = 12 if number % 3 == 0 else 2_000
                with contextlib.suppress(grpc.RpcError):
                    answers.append((text, client.score(text, timeout_ms=timeout, priority=Priority.REAL_TIME)))

    def looked_up() -> int:
        return sum(answer.path is ServingPath.PRECOMPUTED for _, answer in answers)

    callers = [threading.Thread(target=call, args=(text,)) for text in PUBLISHED]
    for caller in callers:
        caller.start()
    try:
        for _ in range(stops):
            eventually(grown(looked_up, 50))
            with stopped(ours):
                eventually(grown(lambda: len(answers), 20))
    finally:
        over.set()
        for caller in callers:
            caller.join()
    wrong = [
        (text, answer)
        for text, answer in answers
        if answer.results[0].labels[0].name
        != (PUBLISHED[text] if answer.path is ServingPath.PRECOMPUTED else LABELS[0])
    ]
    measured(f"Redis stopped {stops} times: wrong answers of {len(answers)}", len(wrong), "0")
    assert wrong == []


def grown(count: Callable[[], int], by: int) -> Callable[[], bool]:
    """A condition: the count has grown by so much."""
    enough = count() + by
    return lambda: count() >= enough


def _milliseconds(client: Client, text: str) -> float:
    """Of one call that a device answers."""
    began = time.monotonic()
    answer = client.score(text, priority=Priority.REAL_TIME)
    took = 1000 * (time.monotonic() - began)
    assert answer.path is ServingPath.LATENCY
    return took
