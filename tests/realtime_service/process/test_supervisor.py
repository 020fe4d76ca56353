"""Supervised workers: each has its own cores, and is replaced when it dies."""

import contextlib
import json
import os
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import psutil
import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from protos.scoring.v1 import scoring_pb2
from protos.scoring.v1.scoring_pb2 import ReplicaDescription
from protos.scoring.v1.scoring_pb2_grpc import ScoringServiceStub
from realtime_service.client import Client, Unavailable
from realtime_service.process.supervisor import backoff
from shared_model.redis_store.server import RedisServer
from shared_model.releases import pointer
from shared_model.releases.store import Store
from shared_model.settings import StateSettings
from tests.realtime_service.conftest import RunningService, eventually, start_service
from tests.realtime_service.heartbeats import Numbers, kept
from tests.realtime_service.process.test_lifecycle import serve_and_fail
from tests.realtime_service.rollout import tiny_releases

#: As many workers as there are cores for, two at most.
WORKERS = min(2, len(os.sched_getaffinity(0)))
RESPAWN_SECONDS = 10.0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("releases"))
    pointer.promote(store, None, tiny_releases.seal_poisonable(store, "poisonable").id)
    return store


@pytest.fixture(scope="module")
def own_redis(own_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(StateSettings(state=tmp_path_factory.mktemp("redis"))) as server:
        yield server


@contextlib.contextmanager
def started(store: Store, folder: Path, workers: int, own_redis: RedisServer) -> Iterator[RunningService]:
    """A supervised service, which leaves nothing behind."""
    root = Path(store.files.root)
    running = start_service(folder, root, TANDEM_WORKERS=str(workers), REDIS_URL=own_redis.url)
    everybody = psutil.Process(running.process.pid).children()
    try:
        yield running
        everybody = psutil.Process(running.process.pid).children()
    finally:
        status = running.stop()
    assert status == 0
    assert not any(process.is_running() for process in everybody)


@pytest.fixture(scope="module")
def supervised(
    store: Store, own_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    with started(store, tmp_path_factory.mktemp("supervised"), WORKERS, own_redis) as running:
        yield running


def workers(running: RunningService) -> list[psutil.Process]:
    """The living workers, oldest first."""
    return sorted(filter(is_worker, psutil.Process(running.process.pid).children()), key=psutil.Process.create_time)


def is_worker(process: psutil.Process) -> bool:
    try:
        return "realtime_service.process.worker" in process.cmdline()
    except psutil.Error:  # it has just ended
        return False


def test_workers_own_their_cores_addresses_and_metrics(supervised: RunningService, own_redis: RedisServer) -> None:
    owned = [set(process.cpu_affinity()) for process in workers(supervised)]
    assert len(owned) == WORKERS
    assert len(set.union(*owned)) == sum(map(len, owned))
    # A busy host may delay a heartbeat past its expiry.
    eventually(lambda: len(heartbeats(own_redis)) == WORKERS)
    addresses = {replica.address for replica, _ in heartbeats(own_redis)}
    assert supervised.address not in addresses
    for address in [*addresses, supervised.address]:
        assert score(address, "my card").release.startswith("poisonable-")
    # The demand of each worker is in its heartbeat.
    eventually(lambda: all(lanes["dynamic"]["load"] > 0.0 for _, lanes in heartbeats(own_redis)))


def test_one_page_has_the_metrics_of_all_workers_and_the_board(supervised: RunningService) -> None:
    assert series(supervised, "tandem_redis_up") == {(str(worker), 1.0) for worker in range(WORKERS)}
    assert series(supervised, "tandem_worker_up") == {(str(worker), 1.0) for worker in range(WORKERS)}
    board = supervised.metrics.removesuffix("/metrics") + "/board.json"
    eventually(lambda: len(json.loads(read(board))["board"]["replicas"]) == WORKERS)


def series(running: RunningService, name: str) -> set[tuple[str, float]]:
    """The samples of a metric, by worker."""
    families = text_string_to_metric_families(read(running.metrics))
    found = (it for family in families for it in family.samples if it.name == name)
    return {(it.labels["worker"], it.value) for it in found}


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as page:  # noqa: S310 - our own
        return str(page.read().decode())


def test_workers_have_the_weights_in_memory_once(supervised: RunningService) -> None:
    mapped = [shared_files(process.pid) for process in workers(supervised)]
    assert mapped[0]
    assert mapped == [mapped[0]] * WORKERS


def shared_files(pid: int) -> set[str]:
    """The files in memory that a process has mapped, by their numbers."""
    return {line.split()[4] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "memfd:tandem" in line}


@pytest.mark.skipif(WORKERS < 2, reason="one core has one worker")
def test_the_calls_of_one_connection_are_dealt_to_all_workers(supervised: RunningService) -> None:
    """Though none is late where it came in, and faster than the load of lanes, which remembers ten seconds, tells."""
    request = scoring_pb2.ScoreRequest(texts=["where is my card please " * 12] * 60)
    with grpc.insecure_channel(supervised.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = ScoringServiceStub(channel).Score
        call(request, timeout=20)
        before = answered_by(supervised)

        def dealt() -> bool:
            calls = [call.future(request, timeout=20) for _ in range(4)]
            assert all(len(each.result().results) == 60 for each in calls)
            found = answered_by(supervised)
            return all(found[worker] > before[worker] for worker in map(str, range(WORKERS)))

        eventually(dealt)


def answered_by(running: RunningService) -> defaultdict[str, float]:
    """Requests that were answered in time, by worker."""
    found = defaultdict[str, float](float)
    for family in text_string_to_metric_families(read(running.metrics)):
        for sample in family.samples:
            if sample.name == "tandem_requests_total" and sample.labels["outcome"] == "met":
                found[sample.labels["worker"]] += sample.value
    return found


def heartbeats(server: RedisServer) -> list[tuple[ReplicaDescription, Numbers]]:
    with redis.Redis.from_url(server.url) as client:
        return list(kept(client))


def test_every_worker_listens_on_the_public_port(supervised: RunningService) -> None:
    assert serving(supervised)


def test_a_killed_worker_is_replaced_while_callers_retry(supervised: RunningService) -> None:
    killed = workers(supervised)[0]
    with retrying_callers(supervised.address) as (answered, failed):
        eventually(lambda: len(answered) > 20)
        assert kill(killed, supervised) <= RESPAWN_SECONDS
    assert failed == []
    assert sum(count for _, count in series(supervised, "tandem_worker_restarts_total")) == 1


@contextlib.contextmanager
def retrying_callers(address: str) -> Iterator[tuple[list[str], list[str]]]:
    """Callers while the context lasts: the releases that answered, and the errors of failed calls."""
    over, answered, failed = threading.Event(), list[str](), list[str]()

    def call() -> None:
        while not over.is_set():
            try:
                answered.append(patiently(address, "where is my card").release)
            except grpc.RpcError as error:
                failed.append(f"{error.code()}: {error.details()}")

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    try:
        yield answered, failed
    finally:
        over.set()
        for caller in callers:
            caller.join()


def kill(victim: psutil.Process, running: RunningService) -> float:
    """Returns the seconds until its successor takes calls."""
    victim.kill()
    began = time.monotonic()
    eventually(lambda: victim not in workers(running) and serving(running))
    return time.monotonic() - began


def serving(running: RunningService) -> bool:
    """Whether every worker takes calls."""
    alive = workers(running)
    return len(alive) == WORKERS and all(listens(process, running.address) for process in alive)


def listens(process: psutil.Process, address: str) -> bool:
    return int(address.rpartition(":")[2]) in ports(process)


def ports(process: psutil.Process) -> set[int]:
    return {it.laddr.port for it in process.net_connections() if it.status == psutil.CONN_LISTEN}


def test_a_text_that_kills_workers_fails_its_own_call_after_two_deaths(
    store: Store, own_redis: RedisServer, tmp_path: Path
) -> None:
    with (
        started(store, tmp_path, WORKERS, own_redis) as running,
        retrying_callers(running.address) as (answered, failed),
        Client(running.address) as client,
        ThreadPoolExecutor() as pool,
    ):
        eventually(lambda: len(answered) > 20)
        processes = set(workers(running))
        # With a harmless text in the same request, so that both run in one batch.
        call = pool.submit(client.score, ["my card please", tiny_releases.POISON])

        def over() -> bool:
            processes.update(workers(running))
            return call.done() and serving(running)

        eventually(over)
        assert isinstance(call.exception(), Unavailable)
        assert 1 <= len(processes) - WORKERS <= 2
        before = len(answered)
        eventually(lambda: len(answered) > before + 20)
        # On a connection of its own: that of `client` may pause after the deaths.
        assert patiently(running.address, "my card please").results[0].labels[0].name == "label-0"
    assert failed == []


def test_no_worker_outlives_its_supervisor(store: Store, own_redis: RedisServer, tmp_path: Path) -> None:
    root = Path(store.files.root)
    running = start_service(tmp_path, root, TANDEM_WORKERS=str(WORKERS), REDIS_URL=own_redis.url)
    orphans = workers(running)
    running.process.kill()
    running.process.wait()
    try:
        # The process that adopts an orphan may leave it a zombie, which counts as ended.
        eventually(lambda: not any(map(is_worker, orphans)))
    finally:
        for orphan in filter(is_worker, orphans):
            orphan.kill()


def test_a_second_service_on_the_port_is_refused(supervised: RunningService, store: Store, tmp_path: Path) -> None:
    root, address = Path(store.files.root), supervised.address
    for count in ("", "1"):
        line = serve_and_fail(tmp_path, root, TANDEM_GRPC_ADDRESS=address, TANDEM_WORKERS=count)
        assert line.startswith(f"realtime_service serve: TANDEM_GRPC_ADDRESS={address}: cannot listen there")


@pytest.mark.heavy
def test_workers_that_cannot_start_end_the_service(store: Store, tmp_path: Path) -> None:
    line = serve_and_fail(tmp_path, Path(store.files.root), TANDEM_WORKERS="1", TANDEM_RELEASE="none-000000000000")
    assert line.startswith("realtime_service serve: release none-000000000000 is not in")
    line = serve_and_fail(tmp_path, Path(store.files.root), TANDEM_WORKERS="1000")
    assert line.startswith("realtime_service serve: TANDEM_WORKERS='1000': expected a number that fits")


def test_the_backoff_of_crashing_workers_grows_up_to_a_bound() -> None:
    waits = [backoff(failures) for failures in range(12)]
    assert waits[0] == 0.0
    assert waits == sorted(waits)
    assert max(waits) < RESPAWN_SECONDS / 2


def score(address: str, *texts: str, priority: int = 0) -> scoring_pb2.ScoreResponse:
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        request = scoring_pb2.ScoreRequest(texts=texts, priority=priority)
        return ScoringServiceStub(channel).Score(request, timeout=20)


def patiently(address: str, text: str, priority: int = 0) -> scoring_pb2.ScoreResponse:
    """Retry while no worker can answer, like a client."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return score(address, text, priority=priority)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


@pytest.mark.proof
def test_a_worker_killed_every_few_seconds_costs_retrying_callers_nothing(
    store: Store, own_redis: RedisServer, tmp_path: Path
) -> None:
    with (
        started(store, tmp_path, WORKERS, own_redis) as running,
        retrying_callers(running.address) as (answered, failed),
    ):
        for number in range(10):
            # The pause is the load of this test, not a wait for a condition.
            time.sleep(3)
            before = len(answered)
            assert kill(workers(running)[number % WORKERS], running) <= RESPAWN_SECONDS
            assert len(answered) > before
    assert failed == []
