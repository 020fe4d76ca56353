"""Say now and then how far long work is; nothing of what is over sooner."""

import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")

_SECONDS = 5.0


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S', time.gmtime())}  {line}", file=sys.stderr, flush=True)  # noqa: T201


def line(work: str, unit: str, done: int, total: int, seconds: float) -> str:
    """How far `done` of `total` units came in `seconds`, how fast, and how long still."""
    text = f"{work}: {done:,} of {total:,} {unit} in {_span(seconds)}"
    if not done:
        return text
    return f"{text}, {done / seconds:,.0f} {unit}/s, {_span(seconds * (total - done) / done)} left"


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
    """Says, for as long as this context lasts and every so many seconds, how many of `total` units are done. `done`
    counts them; what it counted at the start was done before."""

    def __init__(self, work: str, unit: str, total: int, done: Callable[[], int], seconds: float = _SECONDS) -> None:
        self._work = work
        self._unit = unit
        self._total = total
        self._done = done
        self._seconds = seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> "Progress":
        self._before, self._started = self._done(), time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._seconds):
            # A task that Spark runs twice writes twice.
            done = min(self._done() - self._before, self._total)
            say(line(self._work, self._unit, done, self._total, time.monotonic() - self._started))


def _span(seconds: float) -> str:
    """A span of time as a person says it."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
