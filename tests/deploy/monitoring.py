"""Prometheus and Alertmanager as they are deployed, for as long as a test needs them."""

import contextlib
import os
import shlex
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from tests.debian import program, with_its_files
from tests.realtime_service.conftest import RunningService, eventually
from tests.redis_nodes import free_port

DEPLOY = Path(__file__).parents[2] / ".deploy"


@contextlib.contextmanager
def running(command: list[str], log: Path, **environment: str) -> Iterator[None]:
    with log.open("w") as out:
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=out, stderr=out)
        try:
            yield
        finally:
            process.terminate()
            process.wait(20)


@contextlib.contextmanager
def alertmanager(folder: Path, webhook: str) -> Iterator[str]:
    """Its address; started as in docker-compose.yml."""
    (folder / "bin").mkdir()
    script = shlex.join(with_its_files("prometheus-alertmanager", "prometheus-alertmanager"))
    (folder / "bin" / "alertmanager").write_text(f'#!/bin/sh\nexec {script} "$@"\n')
    (folder / "bin" / "alertmanager").chmod(0o755)
    address = f"127.0.0.1:{free_port()}"
    command = ["/bin/sh", str(DEPLOY / "alertmanager" / "start.sh"), f"--storage.path={folder / 'silences'}"]
    command += ["--cluster.listen-address=", f"--web.listen-address={address}"]
    own = {"ALERT_WEBHOOK_URL": webhook, "TANDEM_ALERTMANAGER_CONFIG": str(folder / "alertmanager.yml")}
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    with running(command, folder / "alertmanager.log", PATH=path, **own):
        eventually(lambda: _is_ready(address))
        yield address


@contextlib.contextmanager
def prometheus(folder: Path, manager: str, *services: RunningService) -> Iterator[str]:
    """Its address. With the deployed rules and configuration, but other addresses, no TLS, and seconds instead of
    minutes between looks and until an alert fires."""
    for path in (DEPLOY / "prometheus").glob("*.yml"):
        if "groups:" in (text := path.read_text()):
            rules = yaml.safe_load(text)
            for rule in (rule for group in rules["groups"] for rule in group["rules"] if "for" in rule):
                rule["for"] = "1s"
            (folder / path.name).write_text(yaml.safe_dump(rules))
    settings = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    settings["global"] = {"scrape_interval": "500ms", "scrape_timeout": "400ms", "evaluation_interval": "500ms"}
    settings["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [manager]
    (job,) = settings["scrape_configs"]
    job["scheme"] = "http"
    del job["tls_config"]
    job["static_configs"][0]["targets"] = [it.metrics.split("/")[2] for it in services]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    address = f"127.0.0.1:{free_port()}"
    command = [program("prometheus", "prometheus"), f"--config.file={folder / 'prometheus.yml'}"]
    command += [f"--storage.tsdb.path={folder / 'series'}", f"--web.listen-address={address}"]
    with running(command, folder / "prometheus.log"):
        eventually(lambda: _is_ready(address))
        yield address


def _is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/-/ready", timeout=10) as page:
            return bool(page.status == 200)
    except OSError:
        return False
