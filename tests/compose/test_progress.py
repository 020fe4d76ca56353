"""A run of `make compose` says that it goes on, and takes no earlier alert for the one that it waits for."""

import sys
from pathlib import Path

import pytest

from tests.compose import log, stack
from tests.compose.log import Log
from tests.compose.stack import Stack

pytestmark = pytest.mark.heavy

#: A program that ends once a file is there.
WAITS = "import pathlib, sys, time\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.01)\nprint('output')"
STILL = "  still at it: up"


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    """A log that looks often. Its lines are in `out`."""
    monkeypatch.setattr(log, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(log, "QUIET_SECONDS", 0.03)
    return Log(tmp_path / "out", tmp_path / "details")


def lines(folder: Path) -> list[str]:
    return [line.partition("] ")[2] for line in (folder / "out").read_text().splitlines()]


def test_a_long_program_is_told_with_its_news_and_that_it_goes_on(told: Log, tmp_path: Path) -> None:
    news = ["redis: healthy", "redis: starting"]

    def changes() -> list[str]:
        if STILL in lines(tmp_path):
            (tmp_path / "end").touch()
        return [news.pop()] if news else []

    command = [sys.executable, "-c", WAITS, str(tmp_path / "end")]
    assert told.run(command, work="up", news=changes) == "output\n"
    assert lines(tmp_path)[:2] == ["  redis: starting", "  redis: healthy"]
    assert set(lines(tmp_path)[2:]) == {STILL}


def test_a_program_that_fails_ends_the_run_with_what_it_said(told: Log) -> None:
    with pytest.raises(SystemExit, match="why"):
        told.run([sys.executable, "-c", "exit('why')"])


def test_an_alert_of_the_start_is_not_that_of_a_replica_that_was_stopped(
    told: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While replicas start, that they do not answer has fired, too."""
    monkeypatch.setattr(stack, "eventually", lambda ready, **_: [ready(), ready()][1] or pytest.fail("no alert"))
    arrived = "webhook_1 | arrived: ReplicaDown of throughput:9464 is firing since {}\n"
    of_start, of_another = arrived.format("10:00"), arrived.replace("throughput", "latency").format("10:05")
    made = Stack.__new__(Stack)
    made._log = told
    logs = [of_start, of_start + of_another, of_start + of_another]
    monkeypatch.setattr(made, "compose", lambda *words, **_: logs.pop(0) if words[0] == "logs" else "")
    with pytest.raises(pytest.fail.Exception, match="no alert"):
        made.alert()
    logs = [of_start, of_start, of_start + arrived.format("10:07")]
    made.alert()
