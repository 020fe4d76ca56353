"""The composition root: Redis, the service and Airflow, started in order and stopped in reverse."""

import dataclasses
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from batch_job.launch import commands, spark_submit
from realtime_service.settings import ServiceSettings
from shared_model import settings
from shared_model.redis_store.server import RedisServer
from shared_model.settings import StateSettings, setting
from shared_model.trust import keyring
from tandem_stack import airflow_standalone, checks
from tandem_stack.airflow_api import AirflowApi
from tandem_stack.airflow_standalone import Airflow
from tandem_stack.environments import environments
from tandem_stack.processes import Supervisor
from tandem_stack.progress import say, step
from tandem_stack.uv import ROOT

DAG, DRAIN, DRIFT = "nightly_scoring", "drain_deferred", "drift"
BACKFILL, HOUSEKEEPING, RELEASE = "backfill_scoring", "housekeeping", "release_model"
_BUILD_SECONDS = 900.0
READY_SECONDS = 120.0
_ALERTS = "AIRFLOW_CONN_TANDEM_ALERTS"


@dataclass(frozen=True)
class StackSettings:
    """What the local stack can be told, beside what each part can."""

    airflow_port: int = setting(8080, "Where Airflow's UI and API listen, on 127.0.0.1.")
    spark_master: str = setting("local[*]", "Where the nightly run's Spark job runs.")


@dataclass(frozen=True)
class Plan:
    """Everything a stack is made from, settled before anything starts."""

    state: StateSettings
    service: ServiceSettings
    airflow: Airflow
    spark_master: str

    @property
    def logs(self) -> Path:
        return self.state.state / "logs"

    def ports(self) -> dict[str, tuple[str, int]]:
        """What listens where."""
        wanted = {"Airflow, TANDEM_AIRFLOW_PORT": ("127.0.0.1", self.airflow.port)}
        for who, address in (("gRPC", self.service.grpc_address), ("metrics", self.service.metrics_address)):
            host, _, port = address.rpartition(":")
            wanted[f"{who}, TANDEM_{who.upper()}_ADDRESS"] = (host, int(port))
        return wanted


def plan(state: StateSettings, scheduled: bool) -> Plan:
    """A plan from the environment's settings. Raises: SettingError."""
    stack = settings.load(StackSettings)
    _, airflow = environments()
    approvers = tuple(spark_submit.approvers())
    home = Airflow(state.state / "airflow", airflow.prefix, ROOT / "dags", stack.airflow_port, scheduled, approvers)
    return Plan(state, settings.load(ServiceSettings), home, stack.spark_master)


@dataclass(frozen=True)
class Stack:
    """What runs. Its supervisor ends with it."""

    plan: Plan
    supervisor: Supervisor
    api: AirflowApi
    redis_url: str


@contextmanager
def running(plan: Plan, *preparations: list[str]) -> Iterator[Stack]:
    """Bring everything up; `preparations` are commands of shared_model to run first.

    Airflow's start takes longest and needs no release, so it comes first and the rest happens meanwhile.

    Raises: Problem in one line for whatever does not come up; what had started is stopped again.
    """
    checks.need_ports(plan.ports())
    with RedisServer(plan.state) as redis_server, Supervisor(plan.logs) as supervisor:
        # Children take this Redis for one of others, which keys are not made for.
        keyring.load(plan.state)
        ours = environ(plan.state, redis_server.url)
        tasks = plan.airflow.environ(os.environ, {**ours, **_task_environ(plan)})
        migration = plan.airflow.start_migration(supervisor, tasks)
        for preparation in preparations:
            _run_shared_model(supervisor, preparation, ours)
        serve = [str(runtime_python()), "-m", "realtime_service", "serve"]
        service = supervisor.start("service", serve, ours, ROOT)
        with step("Airflow's database"):
            supervisor.finish(migration, READY_SECONDS)
        plan.airflow.start(supervisor, tasks)
        with step("starting the service and Airflow", lambda: f"({service.last_line()})"):
            api = AirflowApi(plan.airflow.address, airflow_standalone.USER, plan.airflow.password(), supervisor.check)
            # Its first answer makes Airflow load what answers, while the service still warms up.
            api.wait_ready(READY_SECONDS)
            api.make_pool(commands.DEVICE_POOL, 1, "Tasks that take the device, one at a time.")
            api.wait_dag(DAG, READY_SECONDS)
            service.wait_for_line("ready", READY_SECONDS)
        try:
            yield Stack(plan, supervisor, api, redis_server.url)
        finally:
            say("stopping everything")


def _run_shared_model(supervisor: Supervisor, arguments: list[str], variables: dict[str, str]) -> None:
    command = [str(runtime_python()), "-m", "shared_model", *arguments]
    child = supervisor.start(f"shared-model-{arguments[0]}", command, variables, ROOT)
    with step(f"shared_model {' '.join(arguments)}", lambda: f"({child.last_line()})"):
        supervisor.finish(child, _BUILD_SECONDS)


def runtime_python() -> Path:
    """The interpreter of everything but Airflow."""
    runtime, _ = environments()
    return runtime.python


def environ(state: StateSettings, redis_url: str) -> dict[str, str]:
    """The environment of every process that is not Airflow's. Our own import path must not leak into theirs."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ours = {f"TANDEM_{field.name.upper()}": str(getattr(state, field.name)) for field in dataclasses.fields(state)}
    return {**inherited, **ours, "TANDEM_REDIS_URL": "", "REDIS_URL": redis_url}


def _task_environ(plan: Plan) -> dict[str, str]:
    """What Airflow's tasks need beside that: the planning module, the runtime's Python, where Spark is and who goes
    first."""
    runtime, _ = environments()
    return {
        "PYTHONPATH": str(ROOT),
        "TANDEM_RUNTIME_PREFIX": str(runtime.prefix),
        # Both share this host.
        "TANDEM_NIGHTLY_IDLE": os.environ.get("TANDEM_NIGHTLY_IDLE", "true"),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": plan.spark_master}),
        # Of all that the caller's shell says about Airflow, the one thing that only a person knows.
        _ALERTS: os.environ.get(_ALERTS, ""),
    }
