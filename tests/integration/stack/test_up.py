"""Ctrl-C in the middle of a nightly run: everything `make up` started is gone, its files are its user's alone."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from shared_model.releases.store import Release
from tests.integration.stack.conftest import own_environ
from tests.private_files import open_to_others
from tests.stack.helpers import REPOSITORY

START_SECONDS = 120.0


def wait_until(condition: Callable[[], object], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def is_java(process: psutil.Process) -> bool:
    try:
        return process.name() == "java"
    except psutil.NoSuchProcess:  # it has just ended
        return False


def test_ctrl_c_stops_everything_even_a_spark_job_at_work(release: Release, releases_dir: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    environ = {**os.environ, **own_environ(state, releases_dir), "PYTHONPATH": str(REPOSITORY / ".stack")}
    command = [sys.executable, "-m", "tandem_stack", "up"]
    with open(tmp_path / "output", "wb") as output:
        # The umask of a shell where other users may read its files.
        up = subprocess.Popen(command, env=environ, cwd=REPOSITORY, stdout=output, stderr=output, umask=0o022)

    def descendants() -> list[psutil.Process]:
        assert up.poll() is None, (tmp_path / "output").read_text()
        return psutil.Process(up.pid).children(recursive=True)

    started: list[psutil.Process] = []
    try:
        # Unpausing starts the run of yesterday, and that a JVM.
        wait_until(lambda: any(map(is_java, descendants())), START_SECONDS)
        started = descendants()
        up.send_signal(signal.SIGINT)
        assert up.wait(60) == 0, (tmp_path / "output").read_text()
        _, left = psutil.wait_procs(started, timeout=0)
    finally:
        started = started or (psutil.Process(up.pid).children(recursive=True) if up.poll() is None else [])
        up.kill()
        up.wait()
        for process in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    said = (tmp_path / "output").read_text()
    assert left == []
    assert open_to_others(state) == []
    assert environ["TANDEM_GRPC_ADDRESS"] in said
    assert "user admin, password " in said
