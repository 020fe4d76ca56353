"""A worker at idle priority, and the threads that did its work."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from batch_job.launch import spark_submit
from batch_job.scoring.options import ScoringOptions
from batch_job.spark import priority

ROOT = Path(__file__).parents[3]

#: Opens a model as a worker does; prints its width, the threads it was seen to use, and every thread's policy.
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
print(model.engine.width, model.threads, *{os.sched_getscheduler(int(thread)) for thread in threads})
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
        input=json.dumps(dataclasses.asdict(options)),
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
    assert opened(replace(options, idle=idle), width=1)[2:] == [policy]


# Beside other tests it would wait for them.
@pytest.mark.timed
def test_all_of_a_spark_of_one_process_runs_at_idle_priority() -> None:
    environment = {**os.environ, **spark_submit.spark_environment({**os.environ, "TANDEM_RUNTIME_PREFIX": sys.prefix})}
    command = [sys.executable, "-c", _SPARK]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [int(policy) for policy in done.stdout.split()] == [os.SCHED_IDLE] * 4


def test_a_worker_tells_how_many_threads_its_engine_uses(options: ScoringOptions) -> None:
    assert opened(options, width=1)[:2] == [1, 1]
    assert opened(options, width=2)[:2] == [2, 2]


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
    priority.yield_to_others(say=said.append)
    [line] = said
    assert line.startswith("TANDEM_NIGHTLY_IDLE: this system gives no idle priority (")
    assert reason in line
    assert "\n" not in line
    assert not priority.idle()


def write_threads(folder: Path, seconds: dict[str, str]) -> Path:
    for thread, content in seconds.items():
        (folder / thread).mkdir(parents=True, exist_ok=True)
        (folder / thread / "schedstat").write_text(content)
    return folder


def test_threads_that_worked_are_counted_and_those_that_waited_are_not(tmp_path: Path) -> None:
    before = priority.thread_seconds(write_threads(tmp_path, {"1": "500000000 3 9", "2": "0 0 0", "3": "7 0 0"}))
    assert before == {"1": 0.5, "2": 0.0, "3": 7e-9}
    after = priority.thread_seconds(
        write_threads(tmp_path, {"1": "500100000 4 9", "2": "40000000 1 1", "4": "38000000 1 1", "3": "7 0 0"})
    )
    assert priority.busy(before, after) == 2
    assert priority.busy(after, after) == 0


def test_a_system_that_does_not_tell_makes_the_width_unknown(tmp_path: Path) -> None:
    silent = priority.thread_seconds(write_threads(tmp_path, {"1": ""}))
    assert silent == {}
    assert priority.busy(silent, silent) == 0
