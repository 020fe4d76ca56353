"""Lines that tell a person how far we are, each with the time since the start. Standard library only."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_STARTED = time.monotonic()
#: A step that says nothing for longer than this reports that it is still at it, seconds.
REMIND_SECONDS = 10.0


def last_line(log: Path, otherwise: str) -> str:
    """The last line of a log that is not blank."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    return next(filter(None, reversed(lines)), otherwise)


def say(line: str) -> None:
    print(f"[{time.monotonic() - _STARTED:6.1f} s] {line}", flush=True)


def complain(line: str) -> None:
    """One line on stderr, for a person to act on."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def step(title: str, state: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Say that a step starts, at times that it still runs (with `state()`), and how long it took."""
    say(f"{title} ...")
    started, finished = time.monotonic(), threading.Event()

    def remind() -> None:
        while not finished.wait(REMIND_SECONDS):
            say(f"{title}: {time.monotonic() - started:.0f} s {state()}".rstrip())

    reminder = threading.Thread(target=remind, daemon=True)
    reminder.start()
    try:
        yield
    finally:
        finished.set()
        reminder.join()
    say(f"{title}: done in {time.monotonic() - started:.1f} s")
