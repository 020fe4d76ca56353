"""Say now and then how far a Spark job is."""

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

_SECONDS = 5.0


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S', time.gmtime())}  {line}", file=sys.stderr, flush=True)  # noqa: T201


def line(done: int, rows: int, seconds: float) -> str:
    """How far `done` of `rows` came in `seconds`, how fast, and how long still."""
    text = f"scoring: {done:,} of {rows:,} rows in {_span(seconds)}"
    if not done:
        return text
    return f"{text}, {done / seconds:,.0f} rows/s, {_span(seconds * (rows - done) / done)} left"


class Progress:
    """Says, for as long as this context lasts, how many of `rows` are done. `done` counts them; what it counted at the
    start was done before."""

    def __init__(self, rows: int, done: Callable[[], int], seconds: float = _SECONDS) -> None:
        self._rows = rows
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
            done = min(self._done() - self._before, self._rows)
            say(line(done, self._rows, time.monotonic() - self._started))


def _span(seconds: float) -> str:
    """A span of time as a person says it."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
