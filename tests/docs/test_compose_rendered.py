"""docker-compose reads its file, and the override for a GPU, as we do, and refuses empty secrets."""

import itertools
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from realtime_service.settings import ServiceSettings
from shared_model import settings
from tests.debian import docker_compose
from tests.docs.test_compose import EXPECTED, REPOSITORY, TEXT

pytestmark = pytest.mark.heavy


def rendered(folder: Path, *overrides: str, **changed: str) -> "subprocess.CompletedProcess[str]":
    """`docker-compose config` with .env.example, each secret of which is set, unless `changed`."""
    lines = (REPOSITORY / ".env.example").read_text().splitlines()
    values = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    secrets = {name: f"secret{number}" for number, name in enumerate(values) if f"${{{name}:?" in TEXT}
    (folder / "env").write_text("".join(f"{k}={v}\n" for k, v in {**values, **secrets, **changed}.items()))
    command, environment = docker_compose()
    files = [it for name in ("docker-compose.yml", *overrides) for it in ("--file", str(REPOSITORY / name))]
    command += ["--env-file", str(folder / "env"), *files, "config"]
    return subprocess.run(command, env={**os.environ, **environment}, check=False, capture_output=True, text=True)


def test_docker_compose_reads_the_file_as_we_do(tmp_path: Path) -> None:
    ran = rendered(tmp_path)
    assert ran.returncode == 0, ran.stderr
    services = yaml.safe_load(ran.stdout)["services"]
    assert set(services) >= EXPECTED - {"certificates", "backup-redis", "backup-postgres", "backup-files"}
    assert services["spark-worker"]["environment"]["SPARK_WORKER_DIR"] == "/var/lib/tandem-spark/work"
    assert "--maxmemory 3gb" in str(services["redis"]["command"])


def test_the_override_for_a_gpu_changes_the_throughput_lane_alone(tmp_path: Path) -> None:
    plain, changed = rendered(tmp_path), rendered(tmp_path, ".deploy/compose.gpu.yml")
    assert changed.returncode == 0, changed.stderr
    before, after = (yaml.safe_load(it.stdout)["services"] for it in (plain, changed))
    # docker-compose puts lists into an order of its own.
    for service, name in itertools.product((*before.values(), *after.values()), ("volumes", "ports")):
        service.get(name, []).sort()
    throughput = after["throughput"]
    assert {name for name in after if after[name] != before[name]} == {"throughput"}
    (device,) = throughput["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["count"], device["capabilities"]) == ("nvidia", 1, ["gpu"])
    read = settings.load(ServiceSettings, {"TANDEM_DEVICES": throughput["environment"]["TANDEM_DEVICES"]})
    assert read.gpus == (0,)
    # All else of the service stays: what confines it, its certificate, its lane.
    same = before["throughput"].keys() - {"image", "build", "mem_limit", "environment"}
    assert {it: throughput[it] for it in same} == {it: before["throughput"][it] for it in same}
    assert throughput["image"] != before["throughput"]["image"]
    (argument,) = throughput["build"]["args"].keys() - before["throughput"]["build"]["args"].keys()
    dockerfile = (REPOSITORY / "realtime_service/Dockerfile").read_text()
    assert re.search(
        rf'^RUN test -z "\${argument}" \|\| uv pip install [^\n]*\\\n +\w+ torch', dockerfile, re.MULTILINE
    )


#: Variables that must not be empty. docker-compose treats all alike, so the suite asks for one.
SECRETS = sorted(set(re.findall(r"\$\{(\w+):\?", TEXT)))


@pytest.mark.parametrize("name", [SECRETS[0], *(pytest.param(it, marks=pytest.mark.proof) for it in SECRETS[1:])])
def test_docker_compose_refuses_an_empty_secret(tmp_path: Path, name: str) -> None:
    ran = rendered(tmp_path, **{name: ""})
    assert ran.returncode != 0
    assert f"{name}" in ran.stderr
    assert "set it in .env" in ran.stderr
