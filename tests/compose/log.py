"""The lines of a run: each step, and that the work goes on while a step is long."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

#: A program that runs is looked at so often, and a line is written at least so often.
LOOK_SECONDS, QUIET_SECONDS = 2.0, 15.0


def nothing() -> Iterable[str]:
    return ()


class Log:
    """Each step as a line on the terminal and in `out`; the output of programs in `details`."""

    def __init__(self, out: Path, details: Path) -> None:
        self._out, self._details, self._started = out.open("w"), details.open("w"), time.monotonic()
        self._said = self._started

    def say(self, line: str) -> None:
        self._said = time.monotonic()
        line = f"[{self._said - self._started:6.1f} s] {line}"
        print(line, flush=True)
        print(line, file=self._out, flush=True)

    def goes_on(self, work: str, news: Iterable[str]) -> None:
        """Say the news of some work, or, where no line has been written for long, that it goes on."""
        for line in news:
            self.say(f"  {line}")
        if time.monotonic() - self._said >= QUIET_SECONDS:
            self.say(f"  still at it: {work}")

    def run(
        self,
        command: Sequence[str | Path],
        env: Mapping[str, str] | None = None,
        seconds: float = 600,
        quiet: bool = False,
        work: str = "",
        news: Callable[[], Iterable[str]] = nothing,
    ) -> str:
        """Its output. `work`: its name for people; `news`: what has changed since the last call, asked while it runs.
        Raises: SystemExit with the last of what it said, if it failed; TimeoutExpired."""
        print("$", *command, file=self._details, flush=True)
        pipe, until = subprocess.PIPE, time.monotonic() + seconds
        with subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True) as process:
            while True:
                try:
                    out, err = process.communicate(timeout=LOOK_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    if time.monotonic() > until:
                        process.kill()
                        raise
                    self.goes_on(work or Path(command[0]).name, news())
        print("" if quiet else out, err, file=self._details, flush=True)
        if process.returncode:
            sys.exit(f"{command}: {process.returncode}\n{out[-4000:]}\n{err[-4000:]}")
        return out
