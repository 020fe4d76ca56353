"""Command lines of DAGs that are not about one night, and when a task is tried again.

Standard library only, as `spark_submit` is: Airflow's environment imports this.
"""

import os
from collections.abc import Mapping
from typing import Any

from batch_job.launch import spark_submit

#: Airflow's pool of the tasks that take the device. It has one slot, so that two never share it.
DEVICE_POOL = "tandem_device"
#: Seconds after which many days that let a nightly run go first ask for the device again.
YIELD_SECONDS = 30.0
#: The meaning of exit codes of a command where they differ from those of a step, which retries go by.
CODES: Mapping[str, Mapping[int, int]] = {"shared_model": {3: spark_submit.UNAVAILABLE}}
#: Exit code of `shared_model watch` for a canary that is worse than the active release.
WORSE = 5
#: A release as commands take it: its id or the beginning of it, its name, or @canary and the like.
RELEASE = r"^@?[a-z0-9][a-z0-9:-]{0,99}(?!\n)$"
#: Seconds before the first retry, and most before a later one. Each waits twice as long as the one before.
FIRST_RETRY_SECONDS, MOST_RETRY_SECONDS = 30.0, 600.0


def command(package: str, *arguments: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """`python -m PACKAGE …` on the runtime's Python; no shell reads it. `package`: as in a checkout."""
    python = os.path.join(spark_submit.runtime_prefix(environ), "bin", "python")
    return [python, "-m", spark_submit.PACKAGE.removesuffix("batch_job") + package, *arguments]


def step_code(package: str, code: int) -> int:
    """The exit code of a step that means what this one of a command means."""
    return CODES.get(package, {}).get(code, code)


def canary_flags(params: Mapping[str, Any]) -> list[str]:
    """Flags of `canary` for the choices of Airflow's trigger form."""
    return [f"--weight={params['weight']}", *(["--default"] if params["default"] else [])]


def retry_seconds(failures: int) -> float:
    """How long to wait after so many tries that failed."""
    # A power that is too large for a float would raise.
    return min(FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 10), MOST_RETRY_SECONDS)


def drift_flags(params: Mapping[str, Any]) -> list[str]:
    """Flags of `drift` for the choices of Airflow's trigger form."""
    named = [f"--{name}={params[name]}" for name in ("to", "model") if params[name]]
    return [*named, *(f"--days={days}" for days in params["days"])]


def backfill_flags(params: Mapping[str, Any], run_id: str) -> list[str]:
    """Flags of `score` for many days, for the choices of Airflow's trigger form. Each try of a run has its name."""
    chosen = [f"--{name}" for name in ("force", "publish") if params[name]]
    return [f"--from={params['from']}", f"--to={params['to']}", f"--run={run_id}", *chosen]


def model_environment(params: Mapping[str, Any]) -> dict[str, str]:
    """The model that the trigger form names, as a setting of the step."""
    return {"TANDEM_NIGHTLY_MODEL": params["model"]} if params["model"] else {}


def drain_environment(params: Mapping[str, Any]) -> dict[str, str]:
    """Settings of `drain` for the choices of Airflow's trigger form."""
    return {"TANDEM_DEFERRED_DRAIN_LIMIT": str(params["limit"])} if params["limit"] else {}
