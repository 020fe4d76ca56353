"""A driver ends with the processes that started it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from batch_job.launch import lost_task, spark_submit

pytestmark = pytest.mark.heavy

SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]
#: A driver that works until its input ends.
WORKS = """
import sys
from batch_job.launch import lost_task
lost_task.end_with(sys.argv[1])
print("at work", flush=True)
input()
"""


def driver(starters: str) -> "subprocess.Popen[str]":
    command, pipe = [sys.executable, "-c", WORKS, starters], subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_driver_whose_task_or_its_supervisor_is_killed_ends_at_once_with_a_code_that_is_tried_again(
    lost: int,
) -> None:
    started = [subprocess.Popen(SLEEPS) for _ in range(2)]
    with driver(lost_task.starters(*(it.pid for it in started))) as working:
        assert working.stdout
        assert working.stdout.readline() == "at work\n"
        assert working.poll() is None
        started[lost].kill()
        started[lost].wait()
        assert working.wait(20) == spark_submit.UNAVAILABLE
        assert working.stderr
        assert working.stderr.read() == f"batch_job score: {lost_task.LINE}\n"
    started[1 - lost].kill()
    started[1 - lost].wait()


def test_a_task_that_is_gone_already_is_lost_too() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    with driver(lost_task.starters(gone.pid)) as working:
        assert working.wait(20) == spark_submit.UNAVAILABLE


def test_the_driver_of_spark_looks_for_them_before_it_does_anything(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    # It is never written: without a look, the driver would read it for ever.
    record = tmp_path / "record.json"
    os.mkfifo(record)
    flags = ["--ds", "2026-01-14", "--record", str(record), f"--ends-with={lost_task.starters(gone.pid)}"]
    done = subprocess.run([sys.executable, spark_submit.APPLICATION, *flags], check=False, timeout=60)
    assert done.returncode == spark_submit.UNAVAILABLE


def test_a_driver_on_another_host_goes_on() -> None:
    """There the numbers are of other processes, or of none."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    with driver(f"elsewhere:{gone.pid}") as working:
        assert working.communicate("\n", timeout=20)[1] == ""
        assert working.returncode == 0
