"""Start and stop: what a wrong start says, and that a stop loses nothing and leaves nothing behind."""

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import grpc
import psutil
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from realtime_service.client import Client
from shared_model.releases.store import Release
from tests.realtime_service.conftest import RunningService, eventually, start_service

#: Enough that some call is under way at any moment.
CALLERS = 24


def serve_and_fail(state: Path, releases: Path, **environment: str) -> str:
    """What `serve` says on stderr when it exits 2."""
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


@pytest.mark.parametrize("setting", ["TANDEM_GRPC_ADDRESS", "TANDEM_METRICS_ADDRESS"])
def test_a_taken_port_is_one_line_and_exit_2(
    setting: str, taken_port: socket.socket, tmp_path: Path, releases_dir: Path, release: Release
) -> None:
    with taken_port:
        address = f"127.0.0.1:{taken_port.getsockname()[1]}"
        line = serve_and_fail(tmp_path, releases_dir, **{setting: address})
    assert line.startswith(f"realtime_service serve: {setting}={address}: cannot listen there")


def test_a_second_service_on_the_port_is_refused(service: RunningService, tmp_path: Path, releases_dir: Path) -> None:
    # Left to its default the transport shares the port, and callers would meet either service by chance.
    line = serve_and_fail(tmp_path, releases_dir, TANDEM_GRPC_ADDRESS=service.address)
    assert line.startswith(f"realtime_service serve: TANDEM_GRPC_ADDRESS={service.address}: cannot listen there")


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("TANDEM_GRPC_ADDRESS", "nowhere", "HOST:PORT"),
        ("TANDEM_MAX_BATCH_ROWS", "0", "a number above 0"),
        ("TANDEM_TOKEN_BUDGET", "many", "a number above 0"),
        ("TANDEM_THREADS", "-1", "0 or more"),
    ],
)
def test_a_wrong_setting_is_named(setting: str, value: str, expected: str, tmp_path: Path, releases_dir: Path) -> None:
    line = serve_and_fail(tmp_path, releases_dir, **{setting: value})
    assert line == f"realtime_service serve: {setting}={value!r}: expected {expected}"


def test_a_release_that_is_not_there_is_named(tmp_path: Path, releases_dir: Path) -> None:
    line = serve_and_fail(tmp_path, releases_dir, TANDEM_RELEASE="minilm-000000000000")
    assert "release minilm-000000000000 is not in" in line
    assert "run `python -m shared_model build`" in serve_and_fail(tmp_path, tmp_path / "none")


def test_sigterm_while_it_starts_leaves_no_process(tmp_path: Path, releases_dir: Path, release: Release) -> None:
    env = {**os.environ, "TANDEM_STATE": str(tmp_path), "TANDEM_RELEASES": str(releases_dir)}
    env |= {"TANDEM_GRPC_ADDRESS": "127.0.0.1:0", "TANDEM_METRICS_ADDRESS": "127.0.0.1:0"}
    starting = subprocess.Popen([sys.executable, "-m", "realtime_service", "serve"], env=env)
    process = psutil.Process(starting.pid)
    eventually(lambda: any(child.name() == "redis-server" for child in process.children()))
    children = process.children()
    starting.send_signal(signal.SIGTERM)
    assert starting.wait(timeout=60) == 0
    assert not any(child.is_running() for child in children)


def test_reflection_is_there_when_asked_for(tmp_path: Path, releases_dir: Path, release: Release) -> None:
    running = start_service(tmp_path, releases_dir, TANDEM_REFLECTION="true")
    with grpc.insecure_channel(running.address) as channel:
        question = reflection_pb2.ServerReflectionRequest(list_services="")
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        answer = next(stub.ServerReflectionInfo(iter([question]), timeout=10))
    assert "scoring.v1.ScoringService" in {service.name for service in answer.list_services_response.service}
    assert running.stop() == 0


def test_sigterm_loses_no_call_and_leaves_no_process(tmp_path: Path, releases_dir: Path, release: Release) -> None:
    stop_under_load(tmp_path, releases_dir)


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_sigterm_loses_no_call_in_twenty_stops(tmp_path: Path, releases_dir: Path, release: Release) -> None:
    for _ in range(20):
        stop_under_load(tmp_path, releases_dir)


def stop_under_load(tmp_path: Path, releases_dir: Path) -> None:
    running = start_service(tmp_path, releases_dir)
    children = psutil.Process(running.process.pid).children(recursive=True)
    assert any(child.name() == "redis-server" for child in children)
    answered, lost = call_until_refused(running)
    assert running.process.wait(timeout=30) == 0
    assert answered > 100
    assert lost == []
    assert not any(child.is_running() for child in children)


def call_until_refused(running: RunningService) -> tuple[int, list[str]]:
    """Call from several threads, SIGTERM the service on the way, and go on until its listener is gone.

    Returns the answers, and the statuses of calls that were lost: accepted and then not answered.
    """
    answered, lost, warmed = [0] * CALLERS, [], threading.Barrier(CALLERS + 1)

    def caller(index: int) -> None:
        with Client(running.address) as client:
            for number in range(100_000):
                if number == 5:
                    warmed.wait()
                try:
                    client.score(f"caller {index} call {number}")
                except grpc.RpcError as error:
                    # A drained replica is UNAVAILABLE before a call is sent: safe to send elsewhere, nothing was lost.
                    if error.code() is not grpc.StatusCode.UNAVAILABLE or "Cancelling" in error.details():
                        lost.append(f"{error.code()}: {error.details()}")
                    return
                answered[index] += 1

    threads = [threading.Thread(target=caller, args=(index,)) for index in range(CALLERS)]
    for thread in threads:
        thread.start()
    warmed.wait()
    running.process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join()
    return sum(answered), lost
