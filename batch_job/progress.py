"""Progress of long work on standard error, a line every few seconds and one at its end; and its seconds by stage."""

import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

from shared_model import tracing

T = TypeVar("T")

_SECONDS = 5.0
#: The share done or the seconds passed before a time left is shown: engines warm up.
_SHARE, _LONG = 0.1, 60.0
#: The pause between two looks is at least so many times as long as a look.
_LOOKS = 20


def log(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S', time.gmtime())}  {line}", file=sys.stderr, flush=True)  # noqa: T201


def line(work: str, unit: str, done: int, total: int, seconds: float, working: float) -> str:
    """Progress in one line: `done` of `total` units in `seconds`, their rate and the time left. `working`: the part of
    that time in which units came; the rest is preparation, from which no time left follows."""
    share = f" ({done / total:.0%})" if total else ""
    text = f"{work}: {done:,} of {total:,} {unit}{share} in {_span(seconds)}"
    if not done or not working:
        return text
    text = f"{text}, {done / working:,.0f} {unit}/s"
    if done >= total or (done < _SHARE * total and working < _LONG):
        return text
    return f"{text}, {_span(working * (total - done) / done)} left"


def watched(
    work: str, unit: str, total: int, items: Iterable[T], seconds: float = _SECONDS
) -> Generator[T, None, None]:
    """The items as they are, while Progress shows how many of `total` were taken."""
    taken = 0
    with Progress(work, unit, total, lambda: taken, seconds):
        for item in items:
            yield item
            taken += 1


class Progress:
    """Logs every few seconds while this context lasts, and at its end, how many of `total` units are done. `done`
    counts them; its count at the start was done before. Work that fails, or that is empty, logs no end."""

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
        pause = self._seconds
        while not self._over.wait(pause):
            began = time.monotonic()
            self._say()
            # A look may list hundreds of files in a store: it takes a small share of the time, however many they are.
            pause = max(self._seconds, _LOOKS * (time.monotonic() - began))

    def _say(self) -> None:
        now = time.monotonic()
        # A task that Spark runs twice writes twice.
        done = min(self._done() - self._before, self._total)
        if not done:
            self._idle_until = now
        # It began at an unknown moment between two looks: a rate over less than the time between them would be made up.
        working = min(now - self._started, max(now - self._idle_until, self._seconds))
        log(line(self._work, self._unit, done, self._total, now - self._started, working))


def _span(seconds: float) -> str:
    """A span of time as a person says it."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@dataclass
class Stopwatch:
    """Seconds per stage, all its parts together; each part is a span, if the program is traced."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            with tracing.stage(name):
                yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
