"""A worker at idle priority."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest

from batch_job.launch import spark_submit
from batch_job.scoring.options import ScoringOptions
from batch_job.spark import priority

ROOT = Path(__file__).parents[3]

#: Opens a model as a worker does; prints the policy of every thread.
_OPEN = """
import json, os, sys
import numpy as np
from batch_job.scoring.models import open_model
from batch_job.scoring.options import ScoringOptions
from shared_model.types import Device
told = json.load(sys.stdin)
options = ScoringOptions(**{**told, "device": Device(told["device"])})
# Threads that are there already, as in a worker that has worked.
np.ones((500, 500)) @ np.ones((500, 500))
model = open_model(options, int(sys.argv[1]))
model.encoder.encode_many(["where is my card"] * 100)
threads = os.listdir("/proc/self/task")
print(*{os.sched_getscheduler(int(thread)) for thread in threads})
"""


#: Starts a Spark of one process at idle priority; prints the policies of its driver, its JVM and a worker.
_SPARK = """
import os
from batch_job.spark import session
from pyspark import SparkContext
def policies(process):
    return {os.sched_getscheduler(int(thread)) for thread in os.listdir(f"/proc/{process}/task")}
session.yield_to_others()
with SparkContext("local[1]", "idle") as context:
    [(worker, daemon)] = context.parallelize([0], 1).map(lambda _: (policies("self"), policies(os.getppid()))).collect()
    jvm = SparkContext._jvm.java.lang.ProcessHandle.current().pid()
    print(*worker, *daemon, *policies(jvm), *policies("self"))
"""


def opened(options: ScoringOptions, width: int) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", _OPEN, str(width)],
        input=json.dumps(
            {field.name: getattr(options, field.name) for field in fields(options) if field.name != "keys"}
        ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [int(number) for number in done.stdout.split()]


@pytest.mark.parametrize(("idle", "policy"), [(True, os.SCHED_IDLE), (False, os.SCHED_OTHER)])
def test_every_thread_of_a_worker_runs_at_idle_priority_if_that_is_wanted(
    options: ScoringOptions, idle: bool, policy: int
) -> None:
    assert opened(replace(options, idle=idle), width=1) == [policy]


# Beside other tests it would wait for them.
@pytest.mark.timed
def test_all_of_a_spark_of_one_process_runs_at_idle_priority() -> None:
    environment = {**os.environ, **spark_submit.spark_environment({**os.environ, "TANDEM_RUNTIME_PREFIX": sys.prefix})}
    command = [sys.executable, "-c", _SPARK]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [int(policy) for policy in done.stdout.split()] == [os.SCHED_IDLE] * 4


def refused(*_: object) -> None:
    raise PermissionError(1, "Operation not permitted")


@pytest.mark.parametrize(
    ("break_it", "reason"),
    [
        (lambda patch: patch.setattr(os, "sched_setscheduler", refused), "Operation not permitted"),
        (lambda patch: patch.delattr(os, "SCHED_IDLE"), "SCHED_IDLE"),
    ],
)
def test_where_idle_priority_is_refused_one_line_says_so_and_work_goes_on(
    monkeypatch: pytest.MonkeyPatch, break_it: Callable[[pytest.MonkeyPatch], None], reason: str
) -> None:
    break_it(monkeypatch)
    said: list[str] = []
    priority.yield_to_others(warn=said.append)
    [line] = said
    assert line.startswith("TANDEM_NIGHTLY_IDLE: this system gives no idle priority (")
    assert reason in line
    assert "\n" not in line
