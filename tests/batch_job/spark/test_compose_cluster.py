"""Spark's master and worker as docker-compose.yml starts them: by a user who may not write into Spark's own folder."""

import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.batch_job import cluster
from tests.conftest import REPOSITORY
from tests.realtime_service.conftest import eventually
from tests.redis_nodes import free_port

pytestmark = pytest.mark.heavy

SERVICES: dict[str, Any] = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())["services"]
#: As the image's user, one that has a name and does not own Spark's folder.
USER = pwd.getpwuid(65534)
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Of the image's user, who may not enter pytest's."""
    with tempfile.TemporaryDirectory() as made:
        if os.geteuid() == 0:
            os.chown(made, USER.pw_uid, USER.pw_gid)
        yield Path(made)


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Starts a service's command, in which some words are replaced; `other`: further variables."""
    started = list[subprocess.Popen[bytes]]()

    def begin(name: str, replaced: dict[str, str], *options: str, **other: str) -> "subprocess.Popen[bytes]":
        words = [replaced.get(it, it).replace("$$", "$") for it in SERVICES[name]["command"]]
        words[2] = words[2].replace("/tmp/spark.conf", f"{folder}/{name}.conf")  # noqa: S108 - as it is there
        own = cluster.environment({"SPARK_SECRET": "secret", "SPARK_LOCAL_IP": "127.0.0.1", **other})
        own["PATH"] = f"{own['SPARK_HOME']}/bin{os.pathsep}{own['PATH']}"
        user = {"user": USER.pw_uid, "group": USER.pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
        with (folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen([*words, *options], env=own, stdout=log, stderr=log, cwd=folder, **user)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.terminate()
        process.wait(20)


def healthy(name: str, replaced: str, by: str) -> bool:
    """Whether the service's health check passes, at another address."""
    _, python, option, program = SERVICES[name]["healthcheck"]["test"]
    assert (python, option) == ("python", "-c")
    ran = subprocess.run([sys.executable, "-c", program.replace(replaced, by)], check=False, capture_output=True)
    return ran.returncode == 0


def wait_until_healthy(folder: Path, name: str, replaced: str, by: str) -> None:
    try:
        eventually(lambda: healthy(name, replaced, by), every=0.5)
    except AssertionError:
        pytest.fail(f"{name} is not healthy:\n{(folder / f'{name}.log').read_text()[-2000:]}", pytrace=False)


def volume(name: str, variable: str, folder: Path) -> dict[str, str]:
    """A variable that names a place in the service's volume, which is here a folder."""
    mounted = [it.split(":")[1] for it in SERVICES[name]["volumes"] if it.startswith("spark:")]
    value = SERVICES[name]["environment"][variable]
    assert value.startswith(f"{mounted[0]}/")
    return {variable: value.replace(mounted[0], str(folder))}


def test_the_worker_starts_and_the_health_checks_know_it(folder: Path, start: Start) -> None:
    port, page = str(free_port()), str(free_port())
    start("spark-master", {"spark-master": "127.0.0.1", "7077": port}, "--webui-port", page)
    wait_until_healthy(folder, "spark-master", "127.0.0.1:8080", f"127.0.0.1:{page}")
    assert not healthy("spark-worker", "spark-master:8080", f"127.0.0.1:{page}"), "there is no worker yet"
    url = {"spark://spark-master:7077": f"spark://127.0.0.1:{port}"}
    own = volume("spark-worker", "SPARK_WORKER_DIR", folder) | volume("spark-worker", "SPARK_LOCAL_DIRS", folder)
    worker = start("spark-worker", url, "--webui-port", "0", **own)
    wait_until_healthy(folder, "spark-worker", "spark-master:8080", f"127.0.0.1:{page}")
    assert worker.poll() is None
