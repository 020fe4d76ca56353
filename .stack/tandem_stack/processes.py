"""Child processes that end when we do, with everything they started.

Each child leads a session of its own, so that Ctrl-C in the terminal reaches only us and we choose the order. On
Linux we also adopt whatever our descendants orphan: a process cannot slip away by renaming itself or by outliving
its parent.
"""

import contextlib
import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from tandem_stack.checks import Problem
from tandem_stack.progress import last_line, say

#: How long a child may take to end by itself, seconds.
GRACE_SECONDS = 10.0
_PR_SET_CHILD_SUBREAPER = 36
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Child:
    """`spawn`: starts its command, with its log opened so. `restarts`: how often it is still started again."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    spawn: Callable[[str], subprocess.Popen[bytes]]
    restarts: int = 0

    def wait_for_line(self, start: str, timeout_s: float) -> str:
        """The first line of its output that begins with `start`.

        Raises: Problem when the child ends before, or the time is over; it quotes the last line and names the log.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            ended = self.process.poll() is not None
            for line in self.log.read_text(errors="replace").splitlines():
                if line.startswith(start):
                    return line
            if ended or time.monotonic() > deadline:
                state = "ended" if ended else "is not ready"
                raise Problem(f"{self.name} {state}: {self.last_line()}; log: {self.log}")
            time.sleep(0.1)

    def last_line(self) -> str:
        return last_line(self.log, "no output")


class Supervisor:
    """Starts children in order and stops them in reverse; what a child depends on outlives it.

    Lives in the main thread. A stop signal (Ctrl-C, TERM, HUP) becomes KeyboardInterrupt, once: further ones are
    ignored, for stopping takes a bounded time and must not be cut short.
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._children: list[Child] = []
        self._not_ours: set[psutil.Process] = set()
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Supervisor":
        self._logs.mkdir(parents=True, exist_ok=True)
        if sys.platform == "linux":
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._not_ours = set(psutil.Process().children(recursive=True))
        self._handlers = {number: signal.signal(number, _interrupt) for number in _STOP_SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        _ignore_stop_signals()
        for child in reversed(self._children):
            _stop(child.process)
        # What was orphaned is ours.
        _kill(set(psutil.Process().children(recursive=True)) - self._not_ours)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def start(
        self, name: str, command: Sequence[str], environ: Mapping[str, str], folder: Path, restarts: int = 0
    ) -> Child:
        """Start `command` in `folder`; its output goes to LOGS/name.log, a new file each time. `restarts`: how often
        `check` starts it again where it has ended."""
        log = self._logs / f"{name}.log"
        spawn = partial(_spawn, command, dict(environ), folder, log)
        child = Child(name, spawn("wb"), log, spawn, restarts)
        self._children.append(child)
        return child

    def finish(self, child: Child, timeout_s: float) -> None:
        """Wait for a child that ends by itself.

        Raises: Problem when it fails or takes too long; it quotes its last line and names its log.
        """
        try:
            code = child.process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise Problem(f"{child.name} has not ended after {timeout_s:.0f} s; log: {child.log}") from error
        self._children.remove(child)
        if code:
            raise Problem(f"{child.name} failed: {child.last_line()}; log: {child.log}")

    def check(self) -> None:
        """Raises: Problem naming the first child that ended though nobody stopped it, and may not start again."""
        for number, child in enumerate(self._children):
            if child.process.poll() is None:
                continue
            ended = f"{child.name} ended: {child.last_line()}"
            if not child.restarts:
                raise Problem(f"{ended}; log: {child.log}")
            say(f"{ended}; it is started again")
            self._children[number] = replace(child, process=child.spawn("ab"), restarts=child.restarts - 1)


def _ignore_stop_signals() -> None:
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, frame: object) -> None:
    # Not only once the supervisor exits: another signal on the way there would cut that short.
    _ignore_stop_signals()
    raise KeyboardInterrupt


def _spawn(
    command: Sequence[str], environ: Mapping[str, str], folder: Path, log: Path, mode: str
) -> subprocess.Popen[bytes]:
    with open(log, mode) as output:
        return subprocess.Popen(
            command,
            env=environ,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End a child and all that descends from it. Only the child is asked: it may have an order of its own in which to
    end its children; what is left of them then is killed."""
    tree = _descendants(process.pid)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_SECONDS)
    _kill(tree)
    process.wait()


def _descendants(pid: int) -> set[psutil.Process]:
    try:
        leader = psutil.Process(pid)
        return {leader, *leader.children(recursive=True)}
    except psutil.NoSuchProcess:
        return set()


def _kill(processes: set[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=GRACE_SECONDS)
