"""The stack of docker-compose.yml, with generated secrets, in an engine; and what is done with it."""

import base64
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from tests.compose import images
from tests.compose.engine import Engine
from tests.compose.log import Log, nothing
from tests.conftest import REPOSITORY
from tests.debian import docker_compose
from tests.docs.test_compose import ENDING, SERVICES, TEXT
from tests.realtime_service.conftest import eventually

WITHOUT = "grafana"
#: A day of the demo's messages: `release` writes them.
DAY = "2026-01-14"
_WEBHOOK = "http://webhook:8000/"
_STARTED = [name for name, it in SERVICES.items() if "profiles" not in it and name != WITHOUT]
_TLS = ("--ca", "/run/tandem/tls/ca.pem")
#: In a container of the service.
_DEFER = """
import sys
from realtime_service.client import Client, Tls
with Client("127.0.0.1:50051", tls=Tls("/run/tandem/tls/ca.pem")) as client:
    client.submit("compose-1", sys.argv[1])
    (ended,) = client.watch(["compose-1"], seconds=120)
    print(ended.state, "by", ended.computed_by)
"""
#: The runbook's ways back, of Redis and of files.
_RESTORE = [
    re.sub(r"\s+", " ", it)
    for it in re.findall(
        r"`docker-compose (run --rm --no-deps [^`]+)`", (REPOSITORY / ".deploy" / "RUNBOOK.md").read_text()
    )
]


class Stack:
    """`compose` calls docker-compose."""

    def __init__(self, engine: Engine, folder: Path, log: Log) -> None:
        self._log, self._engine = log, engine
        self._told: dict[str, str] = {}
        self._project = _project(folder)
        command, self._environment = docker_compose()
        self._command = [*command, "--project-name", "tandem", "--project-directory", str(self._project)]
        self._command += [
            "--env-file",
            str(_secrets(folder / "env")),
            "--file",
            str(self._project / "docker-compose.yml"),
        ]
        self._command += ["--file", str(_override(folder / "override.yml")), "--no-ansi"]

    def compose(self, *arguments: str, seconds: float = 600, news: Callable[[], Iterable[str]] = nothing) -> str:
        environment = {**os.environ, **self._environment, "DOCKER_HOST": self._engine.address}
        environment |= {"COMPOSE_HTTP_TIMEOUT": "600"}
        work = " ".join(("docker-compose", *arguments[:2]))
        return self._log.run([*self._command, *arguments], environment, seconds, work=work, news=news)

    def build(self) -> None:
        for name in ("certificates", "router", "airflow-init"):
            self.compose("build", name, seconds=1800)

    def start(self) -> None:
        # A run that was killed may have left containers.
        self.stop()
        self.compose("run", "--rm", "certificates")
        self._up()

    def _up(self) -> None:
        self.compose("up", "--detach", "--no-build", *_STARTED, "webhook", seconds=1800, news=self._changes)
        self._until(self._is_healthy, "services become healthy", 300, 2, self._changes)

    def _until(
        self,
        ready: Callable[[], object],
        work: str,
        seconds: float,
        every: float,
        news: Callable[[], Iterable[str]] = nothing,
    ) -> None:
        """As `eventually`, and says how far it is."""

        def looked() -> bool:
            self._log.goes_on(work, news())
            return bool(ready())

        eventually(looked, seconds=seconds, every=every)

    def _is_healthy(self) -> bool:
        states = self.states()
        return all(states.get(name) == "healthy" for name in _STARTED if name not in ENDING)

    def states(self) -> dict[str, str]:
        """Health, or the state of what has none, of each service that has been created."""
        label = "com.docker.compose.service"
        ids = self._log.run(self._engine.docker("ps", "--all", "--quiet", "--filter", f"label={label}")).split()
        if not ids:
            return {}
        found = json.loads(self._log.run(self._engine.docker("inspect", *ids), quiet=True))
        return {it["Config"]["Labels"][label]: _state(it["State"]) for it in found}

    def _changes(self) -> Iterator[str]:
        """A line for each service whose state has changed since the last call."""
        before, self._told = self._told, self.states()
        return (f"{name}: {state}" for name, state in sorted(self._told.items()) if before.get(name) != state)

    def night(self) -> None:
        self.compose("exec", "-T", "airflow-scheduler", "airflow", "dags", "unpause", "nightly_scoring")
        trigger = ("dags", "trigger", "nightly_scoring", "--run-id", "night", "--conf", json.dumps({"day": DAY}))
        self.compose("exec", "-T", "airflow-scheduler", "airflow", *trigger)
        self._until(self._night_has_ended, "the night", 900, 10)
        assert "success" in self._night_state(), self._night_state()

    def _night_state(self) -> str:
        listed = self.compose(
            "exec", "-T", "airflow-scheduler", "airflow", "dags", "list-runs", "nightly_scoring", "-o", "json"
        )
        runs = json.loads(listed[listed.index("[{") :])
        return str(next(it["state"] for it in runs if it["run_id"] == "night"))

    def _night_has_ended(self) -> bool:
        return self._night_state() in ("success", "failed")

    def call(self, text: str, *options: str) -> dict[str, Any]:
        command = ("python", "-m", "realtime_service", "call", *_TLS, "--json", *options, text)
        return dict(json.loads(self.compose("exec", "-T", "router", *command)))

    def defer(self, text: str) -> str:
        """How a request that can wait ends."""
        return self.compose("exec", "-T", "router", "python", "-c", _DEFER, text).strip()

    def text_of_the_night(self) -> str:
        messages = f"/var/lib/tandem/messages/ds={DAY}/messages.jsonl"
        # The last line, because the first ones may be damaged.
        last = self.compose("exec", "-T", "airflow-scheduler", "tail", "-n", "1", messages)
        return str(json.loads(last)["text"])

    def is_precomputed(self) -> bool:
        """Whether the published night has answered a call."""
        found = self.query('sum(tandem_requests_total{path="precomputed",outcome="met"})')
        return any(value > 0 for value in found.values())

    def rows(self) -> int:
        """Scores of the night, as its table has them."""
        read = ("/opt/tandem/bin/python", "-m", "batch_job", "read", "--ds", DAY, "--limit", "0", "--json")
        return len(self.compose("exec", "-T", "airflow-scheduler", *read).splitlines())

    def lose_and_restore(self, redis_copy: str, state_copy: str, operator_copy: str) -> None:
        """The volumes of Redis, of files and of operators' keys are gone; copies of them, as the services of backups
        print them, come back as the runbook says."""
        self.compose("down", "--timeout", "20")
        self._log.run(self._engine.docker("volume", "rm", *(f"tandem_{it}" for it in ("redis", "state", "operator"))))
        of_redis, of_files = (it.replace("PROJECT", "tandem") for it in _RESTORE)
        files = of_files.replace("state-TIME.tar", Path(state_copy).name)
        keys = of_files.replace("state-TIME.tar", Path(operator_copy).name)
        for command in (
            of_redis.replace("redis-TIME.rdb", Path(redis_copy).name),
            files,
            keys.replace("--directory /var/lib/tandem", "--directory /var/lib/tandem-operator"),
        ):
            self.compose(*command.split())
        self._up()

    def post(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request over HTTP."""
        sent = ("--header", "Content-Type: application/json", "--data", json.dumps(body))
        return dict(json.loads(self.published("https://127.0.0.1:8082/v1/score", *sent)))

    def published(self, url: str, *options: str) -> str:
        """The answer at an address that is published on this machine."""
        ca = self._project / ".deploy" / "certificates" / "ca.pem"
        curl = ("curl", "--silent", "--show-error", "--fail", "--cacert", str(ca))
        return self._log.run([*self._engine.within(), *curl, *options, url])

    def query(self, query: str) -> dict[str, float]:
        """A value of Prometheus for each instance."""
        asked = ("--get", "--data-urlencode", f"query={query}")
        answer = json.loads(self.published("http://127.0.0.1:9090/api/v1/query", *asked))
        return {it["metric"].get("instance", ""): float(it["value"][1]) for it in answer["data"]["result"]}

    def alert(self) -> None:
        """The alert of a replica that is gone fires and arrives; one did while the replica started."""
        known = self._alerts()
        self.compose("stop", "throughput")
        self._until(lambda: self._alerts() - known, "its alert", 300, 5)
        self.compose("start", "throughput")

    def _alerts(self) -> set[str]:
        """Those of the throughput replica that have arrived, each with its beginning."""
        return set(re.findall(r"ReplicaDown of throughput:9464 is firing since \S+", self.compose("logs", "webhook")))

    def stop(self) -> None:
        self.compose("down", "--volumes", "--timeout", "20")


def _state(state: dict[str, Any]) -> str:
    if state["Status"] == "exited":
        return f"exited {state['ExitCode']}"
    return str(state["Health"]["Status"] if "Health" in state else state["Status"])


def _project(folder: Path) -> Path:
    """A copy of the files that it mounts and builds from: certificates are made there."""
    project = folder / "project"
    shutil.rmtree(project, ignore_errors=True)
    names = ["docker-compose.yml", ".deploy", ".dockerignore", "pyproject.toml", "README.md", "protos"]
    names += ["shared_model", "batch_job", "realtime_service", "dags", "requirements-runtime.lock"]
    skipped = shutil.ignore_patterns("__pycache__", "certificates")
    project.mkdir(parents=True)
    for name in names:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, project / name, ignore=skipped)
        else:
            shutil.copy(source, project / name)
    (project / ".deploy" / "certificates").mkdir()
    return project


def _secrets(file: Path) -> Path:
    """.env.example as its comments say."""
    lines = (REPOSITORY / ".env.example").read_text().splitlines()
    values = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    values |= {name: secrets.token_hex(32) for name in re.findall(r"\$\{(\w+):\?", TEXT)}
    values["AIRFLOW_FERNET_KEY"] = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
    values |= {name: images.tag(it) for name, it in images.STAND_INS.items()} | {"ALERT_WEBHOOK_URL": _WEBHOOK}
    file.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    return file


def _override(file: Path) -> Path:
    """Builds with this machine's network, and the receiver of alerts."""
    build = {"network": "host", "args": images.build_arguments()}
    services: dict[str, Any] = {name: {"build": build} for name, it in SERVICES.items() if "build" in it}
    services["webhook"] = {"image": images.tag("webhook")}
    file.write_text(yaml.safe_dump({"services": services}))
    return file
