"""The whole local stack, as `make demo` starts it, in a state and on ports of its own."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tandem_stack import stack
from tandem_stack.stack import Stack

from shared_model import settings
from shared_model.releases.store import Release
from shared_model.settings import StateSettings

#: One day, small enough that Spark's start is what takes the time.
MESSAGES = ["messages", "--count", "300", "--days", "1"]


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


def own_environ(state: Path, releases: Path) -> dict[str, str]:
    """Settings under which a stack meets no other on this machine."""
    return {
        "TANDEM_STATE": str(state),
        "TANDEM_RELEASES": str(releases),
        "TANDEM_AIRFLOW_PORT": free_address().rpartition(":")[2],
        "TANDEM_GRPC_ADDRESS": free_address(),
        "TANDEM_METRICS_ADDRESS": free_address(),
        # The damaged lines of so small a day are more than a gate would let pass.
        "TANDEM_QUARANTINE_SHARE": "0.05",
        # Beside other tests an idle priority may mean none.
        "TANDEM_NIGHTLY_IDLE": "false",
    }


@pytest.fixture(scope="module")
def running(
    own_environment: None, release: Release, releases_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    environ = own_environ(tmp_path_factory.mktemp("stack"), releases_dir)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        plan = stack.plan(settings.load(StateSettings), scheduled=False)
        # As a shell has it where other users may read its files.
        former = os.umask(0o022)
        try:
            with stack.running(plan, MESSAGES) as running:
                yield running
        finally:
            os.umask(former)
