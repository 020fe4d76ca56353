"""Say every few seconds how far long work is, and once when it is done."""

import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")

_SECONDS = 5.0
#: Before so much is done, or so long has passed, nothing is said of the time that is left: engines warm up.
_SHARE, _LONG = 0.1, 60.0


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S', time.gmtime())}  {line}", file=sys.stderr, flush=True)  # noqa: T201


def line(work: str, unit: str, done: int, total: int, seconds: float, working: float) -> str:
    """How far `done` of `total` units came in `seconds`, how fast, and how long still. `working`: the part of that time
    in which units came; the rest is preparation, which says nothing of the time that is left."""
    text = f"{work}: {done:,} of {total:,} {unit} in {_span(seconds)}"
    if not done or not working:
        return text
    text = f"{text}, {done / working:,.0f} {unit}/s"
    if done >= total or (done < _SHARE * total and working < _LONG):
        return text
    return f"{text}, {_span(working * (total - done) / done)} left"


def watched(
    work: str, unit: str, total: int, items: Iterable[T], seconds: float = _SECONDS
) -> Generator[T, None, None]:
    """The items as they are, while Progress says how many of `total` were taken."""
    taken = 0
    with Progress(work, unit, total, lambda: taken, seconds):
        for item in items:
            yield item
            taken += 1


class Progress:
    """Says, every so many seconds while this context lasts and at its end, how many of `total` units are done. `done`
    counts them; what it counted at the start was done before. Work that fails, or of which there is none, has no end
    to be told."""

    def __init__(self, work: str, unit: str, total: int, done: Callable[[], int], seconds: float = _SECONDS) -> None:
        self._work = work
        self._unit = unit
        self._total = total
        self._done = done
        self._seconds = seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> "Progress":
        self._before = self._done()
        self._started = self._idle_until = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        if kind is None and self._total:
            self._say()

    def _run(self) -> None:
        while not self._over.wait(self._seconds):
            self._say()

    def _say(self) -> None:
        now = time.monotonic()
        # A task that Spark runs twice writes twice.
        done = min(self._done() - self._before, self._total)
        if not done:
            self._idle_until = now
        # Between two looks it began, nobody saw when: a rate over less than the time between them would be made up.
        working = min(now - self._started, max(now - self._idle_until, self._seconds))
        say(line(self._work, self._unit, done, self._total, now - self._started, working))


def _span(seconds: float) -> str:
    """A span of time as a person says it."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
