"""Whole nights on clusters of separate processes, by the commands that people type, and a history server that shows
them."""

import json
import os
import subprocess
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from batch_job.run_record import State
from tests.batch_job.conftest import DAY, Cli
from tests.integration.nightly.conftest import House, check_complete
from tests.realtime_service.conftest import eventually
from tests.redis_nodes import free_port

pytestmark = pytest.mark.proof

#: Two executors of one core each.
LOCAL_CLUSTER = "local-cluster[2,1,1024]"


@pytest.mark.parametrize("kind", [LOCAL_CLUSTER, "standalone"])
def test_a_whole_night_is_committed_published_and_logged(
    house: House,
    cli: Cli,
    environment: dict[str, str],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    kind: str,
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    environment |= {
        **{name: os.environ[name] for name in ("TANDEM_NIGHTLY_UNIT_ROWS", "TANDEM_QUARANTINE_SHARE")},
        "TANDEM_SPARK_MASTER": kind if kind == LOCAL_CLUSTER else request.getfixturevalue("master"),
        "TANDEM_SPARK_CONF": f"spark.eventLog.enabled=true spark.eventLog.dir={logs.as_uri()} "
        "spark.executor.memory=512m spark.driver.memory=512m spark.scheduler.minRegisteredResourcesRatio=1",
    }
    for step in ("score", "publish", "report"):
        done = cli(step, "--ds", DAY)
        assert done.returncode == 0, done.stderr[-3000:]
    run = house.record
    assert run.state is State.PUBLISHED
    check_complete(house, run)
    assert shown(logs, house) == [("0", 1), ("1", 1), ("driver", 0)]


def shown(logs: Path, house: House) -> list[tuple[str, int]]:
    """By a history server: the executors of the one application, and the cores of each."""
    port = free_port()
    options = f"-Dspark.history.fs.logDirectory={logs.as_uri()} -Dspark.history.ui.port={port}"
    own = {**house.environment, "SPARK_HISTORY_OPTS": options, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [f"{own['SPARK_HOME']}/bin/spark-class", "org.apache.spark.deploy.history.HistoryServer"]
    found = list[list[dict[str, object]]]()

    def look() -> bool:
        try:
            [application] = ask(port, "applications?status=completed")
            found.append(ask(port, f"applications/{application['id']}/allexecutors"))
        except (URLError, ValueError):
            return False
        return True

    with (logs.parent / "history.log").open("wb") as log:
        server = subprocess.Popen(command, env=own, stdout=log, stderr=log)
    try:
        eventually(look, every=0.5)
    finally:
        server.terminate()
        server.wait(20)
    return sorted((str(it["id"]), int(str(it["totalCores"]))) for it in found[-1])


def ask(port: int, path: str) -> list[dict[str, object]]:
    with urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=10) as answer:
        listed: list[dict[str, object]] = json.load(answer)
    return listed
