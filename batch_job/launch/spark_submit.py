"""How a nightly run is launched: paths, command lines, and what spark-submit needs to run on the runtime's Python.

Standard library only, as `batch_job.run_record` is: Airflow's environment imports this and nothing else of Tandem.
"""

import os
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

#: This package, wherever it is installed.
PACKAGE = __name__.removesuffix(".launch.spark_submit")

#: The application of spark-submit.
APPLICATION = str(Path(__file__).parents[1] / "jobs" / "spark_application.py")

#: The logging of its JVM.
LOGGING = str(Path(__file__).parents[1] / "jobs" / "log4j2.properties")

#: How long a refused run waits for a person in Airflow, unless TANDEM_APPROVAL_SECONDS says so. Staged files are kept
#: for a week.
APPROVAL_SECONDS, MOST_APPROVAL_SECONDS = 3 * 86_400.0, 6 * 86_400.0
#: How long and how often `plan` looks for messages that are not there, unless TANDEM_INPUT_WAIT_SECONDS and
#: TANDEM_INPUT_POLL_SECONDS say so.
WAIT_SECONDS, POLL_SECONDS = 600.0, 30.0
#: Exit code of `plan` when they are not there.
NO_INPUT = 4
#: Exit code of `score --check` where there is work for Spark.
CHANGED = 5
#: Gates whose failure a person may accept: the labels' distribution, the agreement of INT8 and half precision on clear
#: texts, and on all texts against an earlier day.
ACCEPTABLE = ("labels", "agreement", "agreement-drop")
#: Exit code of `judge` where a gate refused the day and a person may accept it.
WAITING = 6
#: Exit code of `score` for many days where a nightly run goes first and days are left.
YIELDED = 7
#: Exit code of a step that a gate refused.
REFUSED = 1
#: Exit code of an unexpected error: EX_SOFTWARE of sysexits.h. Python's own, 1, is that of a refusing gate.
UNEXPECTED = 70
#: Exit code where Redis or the store does not answer, or workers were killed: EX_TEMPFAIL. A later try may succeed.
UNAVAILABLE = 75
#: Exit codes that a second try ends with as well: a gate refused, input or settings are wrong, a newer attempt owns the
#: day, there are no messages. Other codes, and signals, may pass: a lost executor, a killed process.
FINAL = frozenset({REFUSED, 2, 3, NO_INPUT})
#: Setting: what finds the GPUs of an executor's host, where Spark is to hand them out.
GPU_SCRIPT = "TANDEM_SPARK_GPU_SCRIPT"
#: Setting: more of Spark's own settings.
PASSED_CONF = "TANDEM_SPARK_CONF"
#: Most Python workers that Spark keeps for the next task of an executor; more may work.
IDLE_WORKERS = "spark.python.factory.idleWorkerMaxPoolSize"

#: Spark's name for what the driver's JVM is started with, before what a user adds.
JAVA_OPTIONS = "spark.driver.defaultJavaOptions"

SPARK_CONF = {
    "spark.log.level": "WARN",
    # The driver's JVM leaves scoring to Python. Its second compiler takes cores for the first half minute, and pays for
    # that after about a million rows.
    JAVA_OPTIONS: "-XX:TieredStopAtLevel=1",
    "spark.sql.session.timeZone": "UTC",
    # Days that are scored side by side share slots: each has a pool of its own. Jobs of one day are served in order.
    "spark.scheduler.mode": "FAIR",
    # A file of any size is read by all slots: Spark would leave one of less than 4 MB to a single one.
    "spark.sql.files.openCostInBytes": "65536",
    # One Arrow batch is one window: its rows are sorted by tokens before they are cut into engine batches.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
    "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
    # An engine takes seconds to compile; the next task finds it in the worker.
    "spark.python.worker.reuse": "true",
    # With them, SQL would have Python workers of its own, beside those of other jobs.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    # Only the driver talks to Redis: Python workers, which run the archive's texts, do not get its password.
    "spark.executorEnv.REDIS_URL": "",
    "spark.executorEnv.TANDEM_REDIS_URL": "",
    # The run reports its own progress; a web server per run would be one more open port.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def spark_conf(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """SPARK_CONF; with LOGGING, unless a person keeps Spark's configuration in a folder; with TANDEM_SPARK_GPU_SCRIPT
    also what gives each executor GPUs of its host. What TANDEM_SPARK_CONF sets wins; a file's settings are left to
    spark-submit, so that no command line shows them."""
    conf = dict(SPARK_CONF)
    if not environ.get("SPARK_CONF_DIR"):
        conf[JAVA_OPTIONS] += f' "-Dlog4j2.configurationFile={Path(LOGGING).as_uri()}"'
    ours = {**conf, **_gpu_conf(environ)}
    passed = environ.get(PASSED_CONF, "")
    if file := properties_file(environ):
        named = _names(Path(file).read_text())
        return {name: value for name, value in ours.items() if name not in named}
    return {**ours, **dict(conf_pairs(passed))}


def properties_file(environ: Mapping[str, str] = os.environ) -> str:
    """The file that TANDEM_SPARK_CONF names; empty where it holds settings, or nothing."""
    passed = environ.get(PASSED_CONF, "")
    return passed if passed and "=" not in passed else ""


def conf_pairs(passed: str) -> list[tuple[str, str]]:
    """Settings as NAME=VALUE, by spaces and quoted as in a shell. Raises: ValueError."""
    pairs = [part.partition("=") for part in shlex.split(passed)]
    if strange := [name for name, equals, _ in pairs if not equals or not name.startswith("spark.")]:
        raise ValueError(strange[0])
    return [(name, value) for name, _, value in pairs]


def is_passed_conf(passed: str) -> bool:
    """Whether Spark can be given this: pairs, or a file that can be read."""
    try:
        if file := properties_file({PASSED_CONF: passed}):
            Path(file).read_text()
        else:
            conf_pairs(passed)
    except (ValueError, OSError):
        return False
    return True


def _names(properties: str) -> set[str]:
    """The names that a file of Java's properties sets."""
    lines = (line.strip() for line in properties.splitlines())
    return {re.split(r"[\s=:]", line, maxsplit=1)[0] for line in lines if line and line[0] not in "#!"}


def _gpu_conf(environ: Mapping[str, str]) -> dict[str, str]:
    script = environ.get(GPU_SCRIPT)
    if not script:
        return {}
    return {
        # As many as score a batch together.
        "spark.executor.resource.gpu.amount": environ.get("TANDEM_NIGHTLY_TENSOR_PARALLEL") or "1",
        "spark.executor.resource.gpu.discoveryScript": script,
        "spark.executor.resource.gpu.vendor": "nvidia.com",
        # Reading shares a GPU that it does not use; scoring takes it whole, by a profile of its own.
        "spark.task.resource.gpu.amount": environ.get("TANDEM_SPARK_TASK_GPU") or "0.125",
        # An idle worker that Spark kept beside the one that scores would hold another copy of the model.
        IDLE_WORKERS: "1",
    }


def runtime_prefix(environ: Mapping[str, str] = os.environ) -> str:
    """Prefix of the runtime environment: TANDEM_RUNTIME_PREFIX, else `.venv` beside this package."""
    return environ.get("TANDEM_RUNTIME_PREFIX") or str(Path(__file__).parents[2] / ".venv")


def record_path(ds: str, run_id: str, environ: Mapping[str, str] = os.environ) -> str:
    """Where a run's record is kept: STORE/runs/<ds>/<run id>.json. `ds` and `run_id` may be templates."""
    store = environ.get("TANDEM_STORE") or environ.get("TANDEM_STATE") or ".tandem"
    root = store.rstrip("/") if "://" in store else os.path.abspath(store)
    return f"{root}/runs/{ds}/{run_id}.json"


def python_environment() -> dict[str, str]:
    """Variables that a step on the runtime's Python must not inherit from Airflow's environment."""
    return {"PYTHONPATH": "", "PYTHONHOME": ""}


def spark_environment(environ: Mapping[str, str] = os.environ, master: str = "local") -> dict[str, str]:
    """Environment of spark-submit, to be laid over the inherited one. Executors of another master than a local one
    must reach the driver, so it keeps the address that Spark finds.

    All of it is needed: spark-submit takes its Spark from SPARK_HOME, else from whichever Python is first on PATH,
    and driver and workers from PYSPARK_*; an inherited value of any one of them mixes two environments.
    """
    prefix = runtime_prefix(environ)
    python = os.path.join(prefix, "bin", "python")
    found = sorted(Path(prefix).glob("lib/python3*/site-packages/pyspark"))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    loopback = {"SPARK_LOCAL_IP": environ.get("SPARK_LOCAL_IP") or "127.0.0.1"} if master.startswith("local") else {}
    return {
        **loopback,
        "PATH": os.path.join(prefix, "bin") + os.pathsep + environ.get("PATH", os.defpath),
        "SPARK_HOME": str(found[0] if found else Path(prefix, "lib", version, "site-packages", "pyspark")),
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        **python_environment(),
    }


def step_command(step: str, ds: str, record: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Command line of a step as far as it needs no JVM: of `score` its look whether the day is scored already. No shell
    reads it: a person may have typed the day."""
    python = os.path.join(runtime_prefix(environ), "bin", "python")
    # Airflow looks for messages again by itself. The report fails where `publish` was killed.
    given = {"plan": ["--wait", "0"], "score": ["--check"], "judge": ["--json"], "report": ["--published"]}
    flags = given.get(step, [])
    return [python, "-m", PACKAGE, step, *flags, *step_args(ds, record)]


def step_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    return {**environ, **python_environment()}


def complaint(lines: Sequence[str]) -> str:
    """The line in which a step said why it failed; the last one where it could not."""
    written = [line for line in lines if line.strip()]
    own = [line for line in written if line.startswith("batch_job ")]
    return (own or written or [""])[-1]


def is_final(code: object) -> bool:
    """Whether a step that ended with this exit code would end with it again."""
    return code in FINAL


def day_of(partition_key: str | None, conf: Mapping[str, object] | None) -> str:
    """The day of an Airflow run: its partition key, else the `day` of its configuration; empty without either."""
    return partition_key or str((conf or {}).get("day") or "")


def day_problem(partition_key: str | None, conf: Mapping[str, object] | None) -> str:
    """One line when a run that a person triggered does not say which day, or names two; else empty."""
    asked = (conf or {}).get("day")
    if not day_of(partition_key, conf):
        return 'no day: trigger the DAG with a day, {"day": "YYYY-MM-DD"} in its configuration, or a partition key'
    if partition_key and asked and partition_key != asked:
        return f"two days: day is {asked}, the partition key {partition_key}; trigger the DAG with one of them"
    return ""


def yesterday() -> str:
    return str(datetime.now(UTC).date() - timedelta(days=1))


def input_wait(environ: Mapping[str, str] = os.environ) -> tuple[float, float]:
    """Seconds to wait for a day's messages, and seconds between two looks."""
    wait, poll = environ.get("TANDEM_INPUT_WAIT_SECONDS"), environ.get("TANDEM_INPUT_POLL_SECONDS")
    return float(wait or WAIT_SECONDS), float(poll or POLL_SECONDS)


def score_flags(params: Mapping[str, Any]) -> list[str]:
    """Flags of `score` for the choices of Airflow's trigger form."""
    return [*(["--force"] if params["force"] else []), *(f"--accept={gate}" for gate in params["accept"] or [])]


def score_environment(params: Mapping[str, Any]) -> dict[str, str]:
    """Settings of `score` for the choices of Airflow's trigger form; what it leaves open is as the environment says."""
    return {"TANDEM_NIGHTLY_INT8": "true"} if params["int8"] else {}


def approvers(environ: Mapping[str, str] = os.environ) -> list[str]:
    """TANDEM_APPROVERS: the Airflow users who may accept a refused run, by id; without it all who may answer tasks."""
    return [name.strip() for name in environ.get("TANDEM_APPROVERS", "").split(",") if name.strip()]


def approval_seconds(environ: Mapping[str, str] = os.environ) -> float:
    """How long a refused run waits for a person. Raises: ValueError, which Airflow shows as the DAG's import error."""
    seconds = float(environ.get("TANDEM_APPROVAL_SECONDS") or APPROVAL_SECONDS)
    if not 0 < seconds <= MOST_APPROVAL_SECONDS:
        raise ValueError(f"TANDEM_APPROVAL_SECONDS={seconds:g}: expected more than 0 and at most 518400, six days")
    return seconds


def step_args(ds: str, record: str) -> list[str]:
    return ["--ds", ds, "--record", record]


def spark_submit_command(ds: str, record: str, master: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Command line of `score`, to be run in `spark_environment()`."""
    return [*application_command(master, environ), *step_args(ds, record)]


def application_command(master: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The same up to the application's own arguments."""
    file = properties_file(environ)
    settings = [*(["--properties-file", file] if file else []), *conf_args(spark_conf(environ))]
    # The driver is here, whatever the settings say: its exit code is the step's, and it has the password of Redis.
    return ["spark-submit", "--master", master, "--deploy-mode", "client", *settings, APPLICATION]


def missing_program(environ: Mapping[str, str]) -> str:
    """One line when spark-submit, or the Java that it needs, is not there; empty when both are."""
    home = environ.get("JAVA_HOME")
    for program, remedy in (
        ("spark-submit", "install pyspark beside this Python"),
        (os.path.join(home, "bin", "java") if home else "java", "install a Java, or set JAVA_HOME"),
    ):
        if not shutil.which(program, path=environ["PATH"]):
            return f"no {program} that can be run, PATH being {environ['PATH']}; {remedy}"
    return ""


def conf_args(conf: Mapping[str, str]) -> list[str]:
    """As spark-submit takes it."""
    return [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]


def packages() -> frozenset[str]:
    """Of this Python, with their versions and its own."""
    # A process that imports setuptools has the packages inside it, too.
    path = [entry for entry in sys.path if os.path.basename(entry) != "_vendor"]
    found = (f"{it.name.lower()}=={it.version}" for it in metadata.distributions(path=path))
    return frozenset({f"python=={platform.python_version()}", *found})


def wrong_python(expected_prefix: str, actual_prefix: str, who: str) -> str:
    """One line when `who` runs on another Python than the run was planned on; empty when it is the same."""
    if os.path.realpath(actual_prefix) == os.path.realpath(expected_prefix):
        return ""
    return f"{who} runs on the Python of {actual_prefix}, the run was planned on {expected_prefix}; set PYSPARK_PYTHON"
