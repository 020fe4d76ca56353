"""Whatever the supervisor started is gone when it ends, however it ends. Real processes, real signals."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tandem_stack.checks import Problem
from tandem_stack.processes import Supervisor

from tests.stack.helpers import REPOSITORY

pytestmark = pytest.mark.heavy

STOP_SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]

#: A child that leaves behind what is hardest to find: a grandchild in a session of its own, orphaned at once, renamed,
#: deaf to SIGTERM. Both write their process ids.
RUNAWAY = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (folder / "orphan.part").write_text(str(os.getpid()))
        (folder / "orphan.part").rename(folder / "orphan")
        os.execv("/bin/sleep", ["renamed", "600"])
    os._exit(0)
os.wait()
(folder / "child.part").write_text(str(os.getpid()))
(folder / "child.part").rename(folder / "child")
print("ready", flush=True)
time.sleep(600)
"""

#: A program that supervises a runaway until it is told to stop.
SUPERVISING = """
import os, pathlib, sys, time
from tandem_stack.processes import Supervisor
folder = pathlib.Path(sys.argv[1])
try:
    with Supervisor(folder / "logs") as supervisor:
        command = [sys.executable, "-c", sys.argv[2], str(folder)]
        supervisor.start("runaway", command, os.environ, folder).wait_for_line("ready", 20)
        print("up", flush=True)
        time.sleep(600)
except KeyboardInterrupt:
    sys.exit(130)
"""


def wait_until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def pids(folder: Path) -> list[int]:
    return [int((folder / name).read_text()) for name in ("child", "orphan")]


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def sleeping(seconds: str) -> list[psutil.Process]:
    """The children that sleep so long."""
    found = list[psutil.Process]()
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            found += [child] if child.cmdline() == ["sleep", seconds] else []
    return found


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def test_nothing_is_left_of_a_child_that_hides_its_own_children(tmp_path: Path) -> None:
    with Supervisor(tmp_path / "logs") as supervisor:
        child = supervisor.start("runaway", python(RUNAWAY, str(tmp_path)), os.environ, tmp_path)
        child.wait_for_line("ready", 20)
        started = pids(tmp_path)
        assert all(map(alive, started))

    assert not any(map(alive, started))


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_nothing_is_left_after_a_stop_signal(number: signal.Signals, tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY / ".stack")}
    program = subprocess.Popen(
        python(SUPERVISING, str(tmp_path), RUNAWAY), env=environ, stdout=subprocess.PIPE, start_new_session=True
    )
    with program:
        assert program.stdout
        assert program.stdout.readline() == b"up\n"
        started = pids(tmp_path)
        program.send_signal(number)
        # An impatient second signal must not cut the stopping short.
        program.send_signal(number)
        assert program.wait(30) == 130

    assert not any(map(alive, started))


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_from_the_first_stop_signal_on_others_are_ignored(number: signal.Signals, tmp_path: Path) -> None:
    """Also before the supervisor exits: until then another one would be raised on the way there."""
    with Supervisor(tmp_path / "logs"):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        assert {signal.getsignal(it) for it in STOP_SIGNALS} == {signal.SIG_IGN}
    assert signal.SIG_IGN not in {signal.getsignal(it) for it in STOP_SIGNALS}


def test_children_stop_in_reverse_order(tmp_path: Path) -> None:
    code = """
import signal, sys, pathlib
print("ready", flush=True)
signal.sigwait([signal.SIGTERM])
with open(sys.argv[1], "a") as log: log.write(sys.argv[2] + "\\n")
"""
    log = tmp_path / "order"
    # Blocked before the child exists, so that no signal is too early.
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        with Supervisor(tmp_path / "logs") as supervisor:
            for name in ("first", "second", "third"):
                child = supervisor.start(name, python(code, str(log), name), os.environ, tmp_path)
                child.wait_for_line("ready", 20)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)

    assert log.read_text().split() == ["third", "second", "first"]


def test_processes_of_others_are_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        with Supervisor(tmp_path / "logs"):
            pass
        assert alive(other.pid)
        other.kill()


def test_a_child_that_ends_is_reported_with_its_last_words(tmp_path: Path) -> None:
    with Supervisor(tmp_path / "logs") as supervisor:
        child = supervisor.start("short", python("print('out of cheese'); raise SystemExit(3)"), os.environ, tmp_path)
        child.process.wait()
        with pytest.raises(Problem, match=r"short ended: out of cheese; log: .*short\.log"):
            supervisor.check()
        with pytest.raises(Problem, match="short ended: out of cheese"):
            child.wait_for_line("ready", 20)
        with pytest.raises(Problem, match="short failed: out of cheese"):
            supervisor.finish(child, 20)
        supervisor.check()


def test_a_child_that_may_be_started_again_is_and_only_so_often(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def words() -> list[str]:
        return log.read_text().split()

    with Supervisor(tmp_path / "logs") as supervisor:
        command = ["sh", "-c", "echo up; exec sleep 613"]
        child = supervisor.start("needed", command, os.environ, tmp_path, restarts=1)
        log = child.log
        child.wait_for_line("up", 20)
        child.process.kill()
        child.process.wait()
        supervisor.check()
        wait_until(lambda: words() == ["up", "up"])
        assert "needed ended: up; it is started again" in capsys.readouterr().out
        supervisor.check()
        # The shell says that it is up before it becomes what it starts.
        wait_until(lambda: sleeping("613"))
        [again] = sleeping("613")
        again.kill()
        wait_until(lambda: not alive(again.pid))
        with pytest.raises(Problem, match="needed ended: up"):
            supervisor.check()


def test_a_child_that_is_never_ready_is_reported(tmp_path: Path) -> None:
    with Supervisor(tmp_path / "logs") as supervisor:
        child = supervisor.start("slow", ["sleep", "600"], os.environ, tmp_path)
        with pytest.raises(Problem, match="slow is not ready: no output"):
            child.wait_for_line("ready", 0.2)
        with pytest.raises(Problem, match="slow has not ended"):
            supervisor.finish(child, 0.2)


def test_a_command_that_does_not_exist_leaves_nothing_behind(tmp_path: Path) -> None:
    with Supervisor(tmp_path / "logs") as supervisor:
        other = supervisor.start("other", ["sleep", "600"], os.environ, tmp_path)
        with pytest.raises(FileNotFoundError):
            supervisor.start("missing", [str(tmp_path / "no-such-program")], os.environ, tmp_path)

    assert not alive(other.process.pid)
