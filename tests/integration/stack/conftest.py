"""The whole local stack, as `make up` starts it, in a state and on ports of its own."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from tandem_stack import airflow_standalone, stack
from tandem_stack.airflow_api import AirflowApi
from tandem_stack.stack import Plan

from shared_model import demo_messages, settings
from shared_model.releases.store import Release
from shared_model.settings import StateSettings
from tests.realtime_service.conftest import eventually
from tests.stack.helpers import REPOSITORY

#: Of one day, so few that Spark's start is what takes the time, and enough for the gate to compare labels.
ROWS = 1_000
#: The user who may accept a refused run, and how long that waits: an answer takes a second.
APPROVER, APPROVAL_SECONDS = "ada", 60
START_SECONDS = 120.0


@dataclass(frozen=True)
class Up:
    """`make up` in a process of its own. Its output is in a file."""

    process: "subprocess.Popen[bytes]"
    output: Path
    plan: Plan
    api: AirflowApi

    def descendants(self) -> list[psutil.Process]:
        assert self.process.poll() is None, self.output.read_text()
        return psutil.Process(self.process.pid).children(recursive=True)


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


def own_environ(state: Path, releases: Path) -> dict[str, str]:
    """Settings under which a stack meets no other on this machine, and writes no messages of the demo."""
    return {
        "TANDEM_STATE": str(state),
        "TANDEM_MESSAGES": str(state / "messages"),
        "TANDEM_RELEASES": str(releases),
        "TANDEM_AIRFLOW_PORT": free_address().rpartition(":")[2],
        "TANDEM_GRPC_ADDRESS": free_address(),
        "TANDEM_METRICS_ADDRESS": free_address(),
        # The damaged lines of so small a day are more than a gate would let pass.
        "TANDEM_QUARANTINE_SHARE": "0.05",
        "TANDEM_APPROVERS": APPROVER,
        "TANDEM_APPROVAL_SECONDS": str(APPROVAL_SECONDS),
        # Beside other tests an idle priority may mean none.
        "TANDEM_NIGHTLY_IDLE": "false",
    }


@pytest.fixture(scope="module")
def running(
    own_environment: None, release: Release, releases_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("stack")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in own_environ(folder / "state", releases_dir).items():
            patch.setenv(name, value)
        plan = stack.plan(settings.load(StateSettings), scheduled=True)
        command, environ = [sys.executable, "-m", "tandem_stack", "up"], {"PYTHONPATH": str(REPOSITORY / ".stack")}
        with open(folder / "output", "wb") as output:
            # The umask of a shell where other users may read its files.
            process = subprocess.Popen(
                command, env=os.environ | environ, cwd=REPOSITORY, stdout=output, stderr=output, umask=0o022
            )
    try:
        eventually(lambda: said(process, folder / "output", "Ctrl-C stops everything."), START_SECONDS, every=0.2)
        # Not sooner: the first to ask for the password makes its folder.
        api = AirflowApi(plan.airflow.address, airflow_standalone.USER, plan.airflow.password())
        api.wait_ready(START_SECONDS)
        demo_messages.write_archive(plan.state.messages_dir, ROWS, days=1)
        yield Up(process, folder / "output", plan, api)
    finally:
        end(process)


def said(process: "subprocess.Popen[bytes]", output: Path, line: str) -> bool:
    """Whether a process, which must live, has written a line."""
    assert process.poll() is None, output.read_text()
    return line in output.read_text()


def end(process: "subprocess.Popen[bytes]") -> None:
    """By Ctrl-C, unless it has ended; what is left then is killed."""
    started = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(60)
    process.kill()
    process.wait()
    for left in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            left.kill()
