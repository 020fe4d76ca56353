"""Start and stop: a wrong start has a clear error, and a stop loses no call and leaves no process."""

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import grpc
import psutil
import pytest
from grpc_reflection.v1alpha import reflection_pb2_grpc

from protos.scoring.v1 import scoring_pb2
from protos.scoring.v1.scoring_pb2_grpc import ScoringServiceStub
from realtime_service.client import Client
from shared_model.releases import pointer
from shared_model.releases.store import Store
from shared_model.types import Priority
from tests.realtime_service.conftest import RunningService, eventually, start_service
from tests.realtime_service.rollout import tiny_releases

pytestmark = pytest.mark.heavy

#: gRPC options of a channel that leaves a replica at NOT_SERVING, on a connection of its own.
FOLLOWING_HEALTH = (
    ("grpc.use_local_subchannel_pool", 1),
    (
        "grpc.service_config",
        json.dumps({"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": ""}}),
    ),
)
#: Workers of the supervised stop: as many as there are cores for, two at most.
CORES = min(2, len(os.sched_getaffinity(0)))
#: Enough that calls are under way at any moment.
CALLERS = 24


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose active release is small: the default one takes ten times as long to open."""
    store = Store(tmp_path_factory.mktemp("releases"))
    pointer.promote(store, None, tiny_releases.seal(store, "tiny").id)
    return Path(store.files.root)


def serve_and_fail(state: Path, releases: Path, **environment: str) -> str:
    """The stderr of `serve`, which exits with 2."""
    env = {**os.environ, "TANDEM_STATE": str(state), "TANDEM_RELEASES": str(releases)}
    env |= {"TANDEM_GRPC_ADDRESS": "127.0.0.1:0", "TANDEM_METRICS_ADDRESS": "127.0.0.1:0"} | environment
    command = [sys.executable, "-m", "realtime_service", "serve"]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2, ended.stderr
    return ended.stderr.splitlines()[-1]


@pytest.fixture
def taken_port() -> "socket.socket":
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener


@pytest.mark.parametrize("setting", ["TANDEM_GRPC_ADDRESS", "TANDEM_METRICS_ADDRESS", "TANDEM_HTTP_ADDRESS"])
def test_a_taken_port_is_one_line_and_exit_2(
    setting: str, taken_port: socket.socket, tmp_path: Path, releases: Path
) -> None:
    with taken_port:
        address = f"127.0.0.1:{taken_port.getsockname()[1]}"
        line = serve_and_fail(tmp_path, releases, **{setting: address})
    assert line.startswith(f"realtime_service serve: {setting}={address}: cannot listen there")


def test_a_second_service_on_the_port_is_refused(service: RunningService, tmp_path: Path, releases: Path) -> None:
    # By default the transport shares the port, and calls would reach either service by chance.
    line = serve_and_fail(tmp_path, releases, TANDEM_GRPC_ADDRESS=service.address)
    assert line.startswith(f"realtime_service serve: TANDEM_GRPC_ADDRESS={service.address}: cannot listen there")


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("TANDEM_GRPC_ADDRESS", "nowhere", "HOST:PORT"),
        ("TANDEM_DYNAMIC_MAX_ROWS", "0", "a number above 0"),
        ("TANDEM_THROUGHPUT_TOKEN_BUDGET", "many", "a number above 0"),
        ("TANDEM_THREADS", "-1", "0 or more"),
    ],
)
def test_a_wrong_setting_is_named(setting: str, value: str, expected: str, tmp_path: Path, releases: Path) -> None:
    line = serve_and_fail(tmp_path, releases, **{setting: value})
    assert line == f"realtime_service serve: {setting}={value!r}: expected {expected}"


def test_a_missing_release_is_named(tmp_path: Path, releases: Path) -> None:
    line = serve_and_fail(tmp_path, releases, TANDEM_RELEASE="minilm-000000000000")
    assert "release minilm-000000000000 is not in" in line
    assert "run `python -m shared_model build`" in serve_and_fail(tmp_path, tmp_path / "none")


def test_a_latency_lane_in_stages_answers_and_says_where_it_computes(tmp_path: Path, releases: Path) -> None:
    where = f"cpu in {CORES} stages" if CORES > 1 else "cpu"
    staged = start_service(tmp_path, releases, TANDEM_LATENCY_PIPELINE_PARALLEL=str(CORES))
    try:
        with Client(staged.address) as client:
            assert client.score("where is my card", priority=Priority.REAL_TIME).path == "latency"
            assert {lane.name: lane.device for lane in client.describe().lanes}["latency"] == where
        with urllib.request.urlopen(staged.metrics, timeout=10) as page:  # noqa: S310 - our own loopback address
            assert f'tandem_lane_device_info{{device="{where}",path="latency"}} 1.0' in page.read().decode()
    finally:
        assert staged.stop() == 0


def test_more_stages_than_cores_are_refused(tmp_path: Path, releases: Path) -> None:
    line = serve_and_fail(tmp_path, releases, TANDEM_LATENCY_PIPELINE_PARALLEL="4096")
    assert line.startswith(
        "realtime_service serve: TANDEM_LATENCY_PIPELINE_PARALLEL='4096': expected at most the number"
    )


def has_redis(process: psutil.Process) -> bool:
    names = set[str]()
    for child in process.children():
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            names.add(child.name())
    return "redis-server" in names


def test_sigterm_while_it_starts_leaves_no_process(tmp_path: Path, releases: Path) -> None:
    env = {**os.environ, "TANDEM_STATE": str(tmp_path), "TANDEM_RELEASES": str(releases)}
    env |= {"TANDEM_GRPC_ADDRESS": "127.0.0.1:0", "TANDEM_METRICS_ADDRESS": "127.0.0.1:0"}
    starting = subprocess.Popen([sys.executable, "-m", "realtime_service", "serve"], env=env)
    process = psutil.Process(starting.pid)
    eventually(lambda: has_redis(process))
    children = process.children()
    starting.send_signal(signal.SIGTERM)
    assert starting.wait(timeout=60) == 0
    assert not any(child.is_running() for child in children)


def test_a_killed_service_leaves_no_redis_behind(tmp_path: Path) -> None:
    env = {**os.environ, "TANDEM_STATE": str(tmp_path), "TANDEM_LANES": "none"}
    env |= {"TANDEM_GRPC_ADDRESS": "127.0.0.1:0", "TANDEM_METRICS_ADDRESS": "127.0.0.1:0"}
    router = subprocess.Popen([sys.executable, "-m", "realtime_service", "serve"], env=env)
    eventually((tmp_path / "redis" / "redis.sock").exists)
    children = psutil.Process(router.pid).children()
    assert has_redis(psutil.Process(router.pid))
    router.kill()
    router.wait()
    assert psutil.wait_procs(children, timeout=10)[1] == []


def test_reflection_can_be_turned_off(tmp_path: Path, releases: Path) -> None:
    running = start_service(tmp_path, releases, TANDEM_REFLECTION="false")
    with grpc.insecure_channel(running.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        with pytest.raises(grpc.RpcError) as error:
            list(stub.ServerReflectionInfo(iter([]), timeout=10))
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert running.stop() == 0


@pytest.mark.parametrize("workers", ["", str(CORES)])
def test_sigterm_loses_no_call_and_leaves_no_process(workers: str, tmp_path: Path, releases: Path) -> None:
    stop_under_load(tmp_path, releases, workers, answers=200)


@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize("workers", ["", str(CORES)])
def test_sigterm_loses_none_of_10_000_calls_in_five_stops(workers: str, tmp_path: Path, releases: Path) -> None:
    for _ in range(5):
        stop_under_load(tmp_path, releases, workers, answers=2_000)


def test_calls_under_way_are_finished(tmp_path: Path) -> None:
    store, numbers = Store(tmp_path / "releases"), tiny_releases.table()
    numbers[tiny_releases.WORDS.index("slowly"), 0] += 1000.0
    graph = tiny_releases.embedding(numbers, tiny_releases.slow_where_asked)
    pointer.promote(store, None, tiny_releases.seal_graph(store, "slow", graph).id)
    running = start_service(tmp_path, Path(store.files.root))
    with grpc.insecure_channel(running.address) as channel:
        score = ScoringServiceStub(channel).Score
        # A second each: longer than the lame duck time of half a second, and on a slow machine less than a drain's ten.
        calls = [score.future(scoring_pb2.ScoreRequest(texts=["slowly"]), timeout=60) for _ in range(2)]
        eventually(lambda: decided(running) == len(calls))
        running.process.send_signal(signal.SIGTERM)
        assert [call.result().release for call in calls] == [pointer.read(store, None).active] * len(calls)
    assert running.process.wait(timeout=30) == 0


def decided(running: RunningService) -> int:
    """The number of requests that have been decided."""
    with urllib.request.urlopen(running.metrics, timeout=10) as page:  # noqa: S310 - our own loopback address
        lines = [line for line in str(page.read(), "utf-8").splitlines() if line.startswith("tandem_decisions_total{")]
    return round(sum(float(line.rpartition(" ")[2]) for line in lines))


def stop_under_load(tmp_path: Path, releases: Path, workers: str, answers: int) -> None:
    running = start_service(tmp_path, releases, TANDEM_WORKERS=workers)
    children = psutil.Process(running.process.pid).children(recursive=True)
    assert has_redis(psutil.Process(running.process.pid))
    answered, lost = call_until_refused(running, answers)
    assert running.process.wait(timeout=30) == 0
    assert answered > answers
    assert lost == []
    assert not any(child.is_running() for child in children)


def call_until_refused(running: RunningService, answers: int) -> tuple[int, list[str]]:
    """Call from several threads, SIGTERM the service after so many `answers`, and go on until connections are refused.

    Returns the answers, and the statuses of lost calls, which were sent and not answered. The callers are plain
    stubs that follow the service's health without retries: a call that a client would retry is a loss here.
    """
    answered, lost = [0] * CALLERS, list[str]()

    def caller(index: int) -> None:
        with grpc.insecure_channel(running.address, FOLLOWING_HEALTH) as channel:
            score = ScoringServiceStub(channel).Score
            for number in itertools.count():
                try:
                    score(scoring_pb2.ScoreRequest(texts=[f"caller {index} call {number}"]), timeout=30)
                except grpc.RpcError as error:
                    if not was_never_sent(error):
                        lost.append(f"{error.code()}: {error.details()}")
                    return
                answered[index] += 1

    threads = [threading.Thread(target=caller, args=(index,)) for index in range(CALLERS)]
    for thread in threads:
        thread.start()
    eventually(lambda: sum(answered) >= answers, seconds=300)
    running.process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join()
    return sum(answered), lost


def was_never_sent(error: grpc.RpcError) -> bool:
    """Whether no process listened: the transport has two messages for it."""
    nobody = ("failed to connect to all addresses", "connections to all backends failing")
    return error.code() is grpc.StatusCode.UNAVAILABLE and error.details().lower().startswith(nobody)
