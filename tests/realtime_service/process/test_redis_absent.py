"""A service that starts before its Redis logs once which functions it lacks, and logs when Redis is reached."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from realtime_service.client import Client
from shared_model.releases import pointer
from shared_model.releases.store import Store
from tests.realtime_service.conftest import READY, eventually
from tests.realtime_service.rollout import tiny_releases
from tests.redis_nodes import Node, running

pytestmark = pytest.mark.heavy

REACHED = "Redis is reached"


@pytest.mark.parametrize("lanes", ["latency", "none"])
def test_a_service_without_its_redis_says_so_and_when_it_is_reached(tmp_path: Path, lanes: str) -> None:
    store, node, log = Store(tmp_path / "releases"), Node(tmp_path / "redis"), tmp_path / "log"
    pointer.promote(store, None, tiny_releases.seal(store, "tiny").id)
    env = {
        **os.environ,
        "TANDEM_STATE": str(tmp_path / "state"),
        "TANDEM_RELEASES": str(store.files.root),
        "TANDEM_LANES": lanes,
        "TANDEM_GRPC_ADDRESS": "127.0.0.1:0",
        "TANDEM_METRICS_ADDRESS": "127.0.0.1:0",
        "REDIS_URL": f"redis://tandem:secret@127.0.0.1:{node.port}/0",
    }
    with log.open("w") as written:
        command = [sys.executable, "-m", "realtime_service", "serve"]
        service = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=written, text=True)
    try:
        eventually(lambda: "is not reached" in log.read_text())
        if lanes == "latency":
            assert service.stdout
            ready = READY.match(service.stdout.readline())
            assert ready
            with Client(ready["grpc"]) as client:
                assert client.score("where is my card").results
        (line,) = (line for line in log.read_text().splitlines() if "is not reached" in line)
        assert f"Redis at redis://127.0.0.1:{node.port}/0 is not reached" in line
        assert ("Score works, on this replica alone" if lanes == "latency" else "finds no endpoint without it") in line
        assert "secret" not in log.read_text()
        processes = [psutil.Process(service.pid), *psutil.Process(service.pid).children(recursive=True)]
        assert "secret" not in str([process.cmdline() for process in processes])
        assert REACHED not in log.read_text()
        with running(Node(node.folder, ("--user", "tandem", "on", ">secret", "~*", "&*", "+@all"), node.port)):
            eventually(lambda: REACHED in log.read_text())
    finally:
        service.kill()
        service.communicate()
