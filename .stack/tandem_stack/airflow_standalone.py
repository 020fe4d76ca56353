"""Airflow on one machine: the processes that `airflow standalone` starts, started by us.

`airflow standalone` offers no way to keep its log servers off other interfaces. They serve only workers on other
hosts (the UI reads this host's logs from disk), so the scheduler is started without one. There is no triggerer: nothing
of ours is deferrable, and a triggerer takes seconds to stop.
"""

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shared_model import tracing
from tandem_stack.processes import Child, Supervisor

USER = "admin"
#: Tasks at a time. Each is an idle process waiting for work, and one machine runs few.
PARALLELISM = 2
#: How often an API server that ends is started again.
_API_RESTARTS = 3
#: How long a process waits for the others, one of which writes to SQLite at a time. SQLite's own are 5, after which the
#: scheduler ends: on a busy disk another's writes took 8.
_LOCKED_SECONDS = 60
#: How often the scheduler says that it lives, and how often a task's supervisor looks after it, which keeps its slot
#: until it sees the task's end. Airflow's own are 5 seconds. And after how many without a sign of life a task is tried
#: again; Airflow's own are 300.
_BEATS = {
    "SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "120",
    "WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
}
#: Where somebody waits for each run: how long the scheduler rests when it finds nothing to do. Airflow's own is 1 s.
_AWAITED = {"SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2"}


@dataclass(frozen=True)
class Airflow:
    """Where Airflow lives: `home` keeps its database, logs and password; `prefix` is its environment.

    With `scheduled` False only what is triggered runs, and the caller waits for it. A DAG whose start lies in the past
    is otherwise run for yesterday as soon as it is unpaused. `approvers`: users beside the administrator, who answer
    for refused days.
    """

    home: Path
    prefix: Path
    dags: Path
    port: int
    scheduled: bool = True
    approvers: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def password_file(self) -> Path:
        return self.home / "passwords.json"

    @property
    def users(self) -> dict[str, str]:
        """Name → role."""
        return {**dict.fromkeys(self.approvers, "user"), USER: "admin"}

    def password(self, user: str = USER) -> str:
        """A user's password, made up once for each home."""
        known = json.loads(self.password_file.read_text()) if self.password_file.exists() else {}
        if missing := self.users.keys() - known.keys():
            known |= {name: secrets.token_urlsafe(12) for name in missing}
            self.home.mkdir(parents=True, exist_ok=True)
            with open(os.open(self.password_file, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w") as file:
                json.dump(known, file)
        return str(known[user])

    def environ(self, base: Mapping[str, str], for_tasks: Mapping[str, str]) -> dict[str, str]:
        """The environment of every Airflow process; tasks inherit it, `for_tasks` included.

        What the caller's shell says about Airflow or Python must not leak in.
        """
        kept = {name: value for name, value in base.items() if not name.startswith(("AIRFLOW", "PYTHON", "PYSPARK"))}
        kept["PATH"] = f"{self.prefix / 'bin'}{os.pathsep}{base.get('PATH', os.defpath)}"
        return {**kept, **_settings(self), **_traces(base), **for_tasks}

    def start_migration(self, supervisor: Supervisor, environ: Mapping[str, str]) -> Child:
        """Start making the database, or bringing it up to date; `start` wants it finished."""
        self.password()
        return supervisor.start("airflow-migrate", [self._airflow, "db", "migrate"], environ, self.home)

    def start(self, supervisor: Supervisor, environ: Mapping[str, str]) -> None:
        commands = {
            "airflow-api": ["api-server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"],
            "airflow-scheduler": ["scheduler", "--skip-serve-logs"],
            "airflow-dag-processor": ["dag-processor"],
        }
        for name, arguments in commands.items():
            # Tasks wait for it; without the others Airflow has lost what it was at.
            restarts = _API_RESTARTS if name == "airflow-api" else 0
            supervisor.start(name, [self._airflow, *arguments], environ, self.home, restarts)

    @property
    def _airflow(self) -> str:
        return str(self.prefix / "bin" / "airflow")


def _settings(airflow: Airflow) -> dict[str, str]:
    """Airflow's settings, all by environment: no file of ours to keep in step with its own."""
    settings = {
        "CORE__DAGS_FOLDER": str(airflow.dags),
        "CORE__PLUGINS_FOLDER": str(airflow.dags / "plugins"),
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__PARALLELISM": str(PARALLELISM),
        "CORE__EXECUTION_API_SERVER_URL": f"{airflow.address}/execution/",
        "CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{role}" for name, role in airflow.users.items()),
        "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(airflow.password_file),
        "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{airflow.home / 'airflow.db'}?timeout={_LOCKED_SECONDS}",
        "API__BASE_URL": airflow.address,
        "API__HOST": "127.0.0.1",
        "API__PORT": str(airflow.port),
        # Each reading of a file is a process of its own, of a fifth of a CPU second; by default it is every 30 s.
        "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "60",
        "SCHEDULER__ENABLE_HEALTH_CHECK": "False",
        "SCHEDULER__USE_JOB_SCHEDULE": str(airflow.scheduled),
        "USAGE_DATA_COLLECTION__ENABLED": "False",
        **_BEATS,
        **({} if airflow.scheduled else _AWAITED),
    }
    return {"AIRFLOW_HOME": str(airflow.home), **{f"AIRFLOW__{name}": value for name, value in settings.items()}}


def _traces(base: Mapping[str, str]) -> dict[str, str]:
    """Tasks are spans, too, where spans have a collector: one that takes them over HTTP, as those of the steps. Airflow
    would call it by gRPC."""
    if not tracing.endpoint(base):
        return {}
    return {"AIRFLOW__TRACES__OTEL_ON": "True", "OTEL_TRACES_EXPORTER": "otlp_proto_http"}
