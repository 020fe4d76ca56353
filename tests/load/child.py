"""A child process that does what one JSON line asks and answers with one, until its stdin closes."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from tests.benchmarks.harness import REPOSITORY, CannotMeasure


class Child:
    """`module` calls `answer` below. Its first line says what it opened."""

    def __init__(self, module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", module, *arguments]
        self._name = module.rpartition(".")[2]
        self._process = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.opened = self._read()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.communicate()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, **question: Any) -> dict[str, Any]:
        """Raises: CannotMeasure when the child has ended."""
        self.send(**question)
        return self._read()

    def send(self, **question: Any) -> None:
        """Ask without waiting for an answer."""
        assert self._process.stdin
        # Its end is found by reading.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise CannotMeasure(f"{self._name} ended with {self._process.wait()}; its last lines say why")
        read: dict[str, Any] = json.loads(line)
        return read


def answer(opened: Mapping[str, Any], questions: Callable[..., Mapping[str, Any]]) -> None:
    """In the child: say what is open, then answer each question until there are no more."""
    print(json.dumps(dict(opened)), flush=True)
    for line in sys.stdin:
        print(json.dumps(dict(questions(**json.loads(line)))), flush=True)
